//! Records a real program's start with tracefs, as a workload.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use postread_sys::{residency, tracefs};

use crate::filemap::{self, Counts, Event};
use crate::workload::{App, WorkloadFile};

const EVENTS: [&str; 3] = ["mm_filemap_fault", "mm_filemap_get_pages", "mm_filemap_add_to_page_cache"];

/// Runs `command` twice: once to learn which files it touches, then, with those dropped from the page cache, to record.
/// Needs root, and a kernel with these `filemap` events (6.13 or later).
pub fn record(name: &str, command: &[String]) -> io::Result<(App, Counts)> {
    let first = run_traced(command)?;
    let paths = name_files(&first)?;
    for (path, _) in paths.values() {
        // A file that can't be dropped (locked, in use) is just warm.
        if let Ok(file) = fs::File::open(path) {
            let _ = residency::drop_cache(&file);
        }
    }
    let events = run_traced(command)?;
    let files = name_files(&events)?.into_iter().map(|(key, (_, file))| (key, file)).collect();
    let (app, counts) = filemap::to_app(name, &events, &files);
    if app.reads() == 0 {
        return Err(io::Error::other("the program read nothing that could be recorded"));
    }
    Ok((app, counts))
}

fn run_traced(command: &[String]) -> io::Result<Vec<Event>> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no command"))?;
    let tracefs = tracefs::Tracefs::find()?;
    let instance = tracefs.create_instance(&format!("postread-{}", std::process::id()))?;
    instance.set_clock("mono")?;
    instance.set_buffer_kb(32768)?;
    // This thread and what it starts.
    fs::write(instance.dir().join("options/event-fork"), "1")?;
    fs::write(instance.dir().join("set_event_pid"), postread_sys::gettid().to_string())?;
    for event in EVENTS {
        instance.enable(&format!("filemap/{event}"))?;
    }
    instance.start()?;
    let status =
        Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    instance.stop()?;
    status?;
    Ok(filemap::parse(&instance.text()?))
}

type Named = HashMap<(u32, u32, u64), (PathBuf, WorkloadFile)>;

/// Finds the files of the events by device and inode number, where programs have theirs.
fn name_files(events: &[Event]) -> io::Result<Named> {
    let mut wanted: HashMap<(u32, u32, u64), ()> = events.iter().map(|event| (event.file, ())).collect();
    let mut found = Named::new();
    let mut stack: Vec<PathBuf> = ["/usr", "/etc", "/opt", "/var/lib", "/lib", "/bin"].map(PathBuf::from).to_vec();
    while let Some(dir) = stack.pop() {
        if wanted.is_empty() {
            break;
        }
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                stack.push(entry.path());
            } else if metadata.is_file() {
                let key = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()), metadata.ino());
                if wanted.remove(&key).is_some() {
                    let name = short_name(&entry.path());
                    found.insert(key, (entry.path(), WorkloadFile { size: metadata.len(), name }));
                }
            }
        }
    }
    Ok(found)
}

/// The last part of a path, on one line: a workload names files for people only.
fn short_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.chars().map(|c| if c.is_control() || c == '#' { '_' } else { c }).collect()
}
