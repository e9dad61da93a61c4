//! The directory that is extracted into: what its file system does not distinguish, whose it is, who else writes there.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use postread_tests::{Mount, require_root, require_tool, skip};

use crate::common::*;

/// An ext4 image of the tree that `fill` makes.
fn image_of(dir: &Path, fill: impl Fn(&Path)) -> Option<()> {
    let mke2fs = require_tool("mke2fs")?;
    let tree = dir.join("tree");
    fs::create_dir(&tree).unwrap();
    fill(&tree);
    let mut command = Command::new(mke2fs);
    command
        .current_dir(dir)
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-O", "ea_inode", "-d", "tree", "image", "32M"]);
    postread_tests::run(&mut command);
    Some(())
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A directory whose file system folds case, and what must be done to leave it.
struct Folding {
    kind: &'static str,
    path: PathBuf,
    mount: Option<Mount>,
}

impl Drop for Folding {
    fn drop(&mut self) {
        if self.mount.is_none() {
            let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        }
    }
}

/// Those that this machine can have: a case-folded directory of ext4, FAT, NTFS in user space.
fn folding(dir: &Path) -> Vec<Folding> {
    let mut found = Vec::new();
    let mut why = Vec::new();
    if require_root().is_none() {
        return found;
    }
    let make = |command: &str, file: &str, args: &[&str]| {
        let tool = ["/usr/sbin", "/sbin", "/usr/bin"].map(|dir| Path::new(dir).join(command));
        let tool = tool.into_iter().find(|tool| tool.exists()).ok_or_else(|| format!("no {command}"))?;
        let image = dir.join(file);
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let output = Command::new(tool).args(args).arg(&image).output().map_err(|error| error.to_string())?;
        output.status.success().then_some(image).ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
    };
    match make("mke2fs", "ext4", &["-q", "-F", "-t", "ext4", "-O", "casefold"])
        .and_then(|image| Mount::image(&image, "ext4", ""))
    {
        Ok(mount) => {
            let path = mount.path().join("folded");
            fs::create_dir(&path).unwrap();
            match Command::new("chattr").arg("+F").arg(&path).status() {
                Ok(status) if status.success() => found.push(Folding { kind: "ext4", path, mount: Some(mount) }),
                _ => why.push("chattr +F".to_owned()),
            }
        }
        Err(error) => why.push(format!("casefold: {error}")),
    }
    match make("mkfs.vfat", "vfat", &[]).and_then(|image| Mount::image(&image, "vfat", "")) {
        Ok(mount) => found.push(Folding { kind: "vfat", path: mount.path().to_owned(), mount: Some(mount) }),
        Err(error) => why.push(format!("vfat: {error}")),
    }
    let ntfs = make("mkntfs", "ntfs", &["-qFf"]).and_then(|image| {
        let path = dir.join("mounted");
        fs::create_dir(&path).unwrap();
        let run = Command::new("lowntfs-3g").args(["-o", "ignore_case"]).arg(image).arg(&path).output();
        let run = run.map_err(|error| format!("lowntfs-3g: {error}"))?;
        run.status.success().then_some(path).ok_or_else(|| String::from_utf8_lossy(&run.stderr).into_owned())
    });
    match ntfs {
        Ok(path) => found.push(Folding { kind: "ntfs", path, mount: None }),
        Err(error) => why.push(format!("ntfs: {error}")),
    }
    if found.is_empty() {
        skip(format!("no case-insensitive file system: {}", why.join("; ").replace('\n', " ")));
    }
    found
}

/// A second extraction brings the first one up to date where the driver lists no name as it was given: each file is known
/// by its inode number.
#[test]
fn a_second_extraction_where_names_are_listed_in_another_case() {
    let dir = tempfile::tempdir().unwrap();
    let fill = |tree: &Path| {
        fs::create_dir_all(tree.join("Sub/DEEP")).unwrap();
        for name in ["README", "Makefile", "small", "Sub/Name", "Sub/DEEP/File"] {
            fs::write(tree.join(name), name.repeat(2000)).unwrap();
        }
    };
    let Some(()) = image_of(dir.path(), fill) else { return };
    for target in folding(dir.path()) {
        let out = target.path.join("again");
        for run in 0..3 {
            let output = postread(dir.path(), &["extract", "image", "-C", out.to_str().unwrap(), "--jobs=4"]);
            let context = || format!("{} run {run}: {}", target.kind, stderr(&output));
            assert!(!stderr(&output).contains("refused"), "{}", context());
            // FAT and NTFS keep no modes: what is left of the status is theirs.
            for name in ["README", "Makefile", "small", "Sub/Name", "Sub/DEEP/File"] {
                assert!(fs::read(out.join(name)).unwrap() == name.repeat(2000).as_bytes(), "{name} {}", context());
            }
            fs::write(out.join("Makefile"), "changed").unwrap();
            fs::write(out.join("Sub/Name"), "Sub/Name".repeat(1999)).unwrap();
        }
    }
}

/// Names that the target does not distinguish: one of them is there, with its own contents, and the others are refused by
/// name. So it stays when the extraction is repeated.
#[test]
fn names_that_the_target_equates_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let targets = folding(dir.path());
    if targets.is_empty() {
        return;
    }
    let (one, other) = (b"one".repeat(40_000), b"other".repeat(24_000));
    let fill = |tree: &Path| {
        for (name, contents) in [("Config", &one), ("CONFIG", &other), ("config", &other), ("only", &one)] {
            fs::write(tree.join(name), contents).unwrap();
        }
        for name in ["Dir", "DIR"] {
            fs::create_dir(tree.join(name)).unwrap();
            fs::write(tree.join(name).join("in"), name).unwrap();
        }
        fs::write(tree.join("mixed"), "file").unwrap();
        fs::create_dir(tree.join("MIXED")).unwrap();
        fs::write(tree.join("Twice"), "twice").unwrap();
        fs::hard_link(tree.join("Twice"), tree.join("TWICE")).unwrap();
        symlink("one", tree.join("Link")).unwrap();
        symlink("other", tree.join("LINK")).unwrap();
        // The directory that earlier versions kept unfinished files in.
        fs::create_dir(tree.join(".Postread-partial")).unwrap();
        (1..40).for_each(|ino| fs::write(tree.join(format!(".Postread-partial/{ino}")), "EVIL").unwrap());
    };
    let Some(()) = image_of(dir.path(), fill) else { return };
    for target in targets {
        let out = target.path.join("out");
        fs::create_dir(&out).unwrap();
        for run in 0..3 {
            let output = postread(dir.path(), &["extract", "image", "-C", out.to_str().unwrap(), "--jobs=4"]);
            let messages = stderr(&output);
            let context = || format!("{} run {run}: {messages}", target.kind);
            assert!(output.status.code().is_some_and(|code| code != 0 && code != 101), "{}", context());
            let refused =
                |name: &str| messages.contains(&format!("{name}: refused: this directory already has this name"));
            let count = |names: &[&str]| names.iter().filter(|name| refused(name)).count();
            assert_eq!(count(&["Config", "CONFIG", "config"]), 2, "{}", context());
            assert_eq!(count(&["Dir", "DIR"]), 1, "{}", context());
            assert_eq!(count(&["mixed", "MIXED"]), 1, "{}", context());
            assert_eq!(count(&["only"]), 0, "{}", context());
            assert_eq!(fs::read(out.join("only")).unwrap(), one, "{}", context());
            // Each that is there has its own contents, not another's.
            for entry in fs::read_dir(&out).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                match name.as_str() {
                    "config" if target.kind == "ntfs" => {
                        let found = fs::read(out.join(&name)).unwrap();
                        assert!(found == one || found == other, "{}", context());
                    }
                    _ if target.kind == "ntfs" => {}
                    "Config" => assert!(fs::read(out.join(&name)).unwrap() == one, "{}", context()),
                    "CONFIG" | "config" => assert!(fs::read(out.join(&name)).unwrap() == other, "{}", context()),
                    "Dir" | "DIR" => assert_eq!(fs::read_to_string(out.join(&name).join("in")).unwrap(), name),
                    "Twice" | "TWICE" => assert_eq!(fs::read_to_string(out.join(&name)).unwrap(), "twice"),
                    _ => {}
                }
            }
            if target.kind == "ext4" {
                assert_eq!(count(&["Twice", "TWICE"]), 1, "{}", context());
                assert_eq!(count(&["Link", "LINK"]), 1, "{}", context());
            }
        }
    }
}

/// Two names of an inode that says it has one: both are there, whole, whoever is quicker.
#[test]
fn two_names_of_an_inode_with_one_link() {
    let dir = tempfile::tempdir().unwrap();
    let contents = postread_tests::noise(4 << 20, 7);
    let fill = |tree: &Path| fs::write(tree.join("a"), &contents).unwrap();
    let Some(()) = image_of(dir.path(), fill) else { return };
    let Some(()) = debugfs(dir.path(), "image", &["ln /a /b", "ln /a /c", "set_inode_field /a links_count 1"]) else {
        return;
    };
    for run in 0..4 {
        let out = format!("out{run}");
        expect(&postread(dir.path(), &["extract", "image", "-C", &out, "--jobs=3"]), 0);
        for name in ["a", "b", "c"] {
            assert!(fs::read(dir.path().join(&out).join(name)).unwrap() == contents, "{run} {name}");
        }
        // lost+found, and nothing unfinished.
        assert_eq!(fs::read_dir(dir.path().join(out)).unwrap().count(), 4);
    }
}

/// A directory of somebody else keeps its mode, owner and time, whatever lies in it and however the run ends.
#[test]
fn the_directory_of_somebody_else_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = image_of(dir.path(), |tree| fs::write(tree.join("file"), "x").unwrap()) else { return };
    fs::write(dir.path().join("broken"), "not an image").unwrap();
    type Plant = (&'static str, fn(&Path));
    let plant: [Plant; 4] = [
        ("other", |out| fs::write(out.join("other"), "y").unwrap()),
        ("directory", |out| fs::create_dir(out.join(".postread-partial")).unwrap()),
        ("link", |out| symlink("/nonexistent", out.join(".postread-partial")).unwrap()),
        ("leftover", |out| fs::write(out.join(format!(".postread-{}", "0".repeat(31))), "y").unwrap()),
    ];
    for (name, plant) in plant {
        let out = dir.path().join(name);
        fs::create_dir(&out).unwrap();
        plant(&out);
        fs::set_permissions(&out, fs::Permissions::from_mode(0o1777)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&out, Some(12345), Some(12345)).unwrap();
        }
        let facts = || fs::metadata(&out).map(|found| (found.mode(), found.uid(), found.gid())).unwrap();
        let before = facts();
        let planted = fs::read_dir(&out).unwrap().count();
        expect(&postread(dir.path(), &["extract", "image", "-C", name]), 0);
        assert_eq!(facts(), before, "{name}");
        // The file and lost+found.
        assert_eq!(fs::read_dir(&out).unwrap().count(), planted + 2);
        assert!(!postread(dir.path(), &["extract", "broken", "-C", name]).status.success());
        assert_eq!(facts(), before, "{name}");
    }
}

/// A run that fails early, or is killed, leaves an empty directory with the mode that it had.
#[test]
fn a_failure_leaves_the_mode() {
    let dir = tempfile::tempdir().unwrap();
    let fill = |tree: &Path| fs::write(tree.join("file"), vec![7; 8 << 20]).unwrap();
    let Some(()) = image_of(dir.path(), fill) else { return };
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::set_permissions(&out, fs::Permissions::from_mode(0o1777)).unwrap();
    let held = fs::File::open(&out).unwrap();
    held.lock().unwrap();
    expect(&postread(dir.path(), &["extract", "image", "-C", "out"]), 4);
    assert_eq!(mode(&out), 0o1777);
    drop(held);
    let mut child =
        Command::new(env!("CARGO_BIN_EXE_postread")).current_dir(&dir).args(["extract", "image", "-C", "out"]).spawn();
    child.as_mut().unwrap().kill().unwrap();
    child.unwrap().wait().unwrap();
    assert!([0o1777, 0o755].contains(&mode(&out)), "{:o}", mode(&out));
    // No file can be made at all.
    if require_root().is_some()
        && let Ok(mount) = Mount::tmpfs(1 << 20)
    {
        postread_tests::run(Command::new("mount").args(["-o", "remount,nr_inodes=1,mode=1777"]).arg(mount.path()));
        let output = postread(dir.path(), &["extract", "image", "-C", mount.path().to_str().unwrap()]);
        expect(&output, 4);
    }
}

/// An attribute that could not be set is a failure of every run until it is set.
#[test]
fn a_missing_attribute_fails_until_it_is_set() {
    let Some(()) = require_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let fill = |tree: &Path| fs::write(tree.join("file"), "x").unwrap();
    let Some(()) = image_of(dir.path(), fill) else { return };
    fs::write(dir.path().join("value"), [b'v'; 20_000]).unwrap();
    let set = "ea_set -f value file user.big";
    let Some(()) = debugfs(dir.path(), "image", &[set, "set_inode_field file mode 0100400"]) else { return };
    // A file system that has no room for it.
    let target = dir.path().join("target");
    fs::File::create(&target).unwrap().set_len(16 << 20).unwrap();
    let Some(mke2fs) = require_tool("mke2fs") else { return };
    postread_tests::run(Command::new(mke2fs).args(["-q", "-F", "-t", "ext4", "-b", "4096"]).arg(&target));
    let Some(mount) = postread_tests::require("an ext4 mount", Mount::image(&target, "ext4", "")) else { return };
    let out = mount.path().join("out");
    let extract = || postread(dir.path(), &["extract", "image", "-C", out.to_str().unwrap()]);
    for run in 0..3 {
        let output = extract();
        expect(&output, 4);
        assert!(stderr(&output).contains("file: its extended attribute user.big: "), "{run} {output:?}");
    }
    // Others are mended.
    let file = out.join("file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o777)).unwrap();
    std::os::unix::fs::chown(&file, Some(77), Some(77)).unwrap();
    expect(&extract(), 4);
    let found = fs::metadata(&file).unwrap();
    let owner = fs::metadata(dir.path().join("tree/file")).unwrap();
    assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o400, owner.uid(), owner.gid()));
    // Where there is room the next run sets it, and is good.
    let Some(mount) = postread_tests::require("a tmpfs", Mount::tmpfs(1 << 20)) else { return };
    let out = mount.path().join("out");
    let extract = || postread(dir.path(), &["extract", "image", "-C", out.to_str().unwrap()]);
    let mut value = vec![0; 30_000];
    let set = rustix::fs::setxattr(mount.path(), "user.any", b"x", rustix::fs::XattrFlags::empty());
    if postread_tests::require("user xattrs on tmpfs", set).is_none() {
        return;
    }
    expect(&extract(), 0);
    rustix::fs::removexattr(out.join("file"), "user.big").unwrap();
    let text = expect(&extract(), 0);
    assert!(text.contains("extracted 0 files"), "{text}");
    let len = rustix::fs::getxattr(out.join("file"), "user.big", &mut value[..]).unwrap();
    assert!(len > 4000 && value[..len].iter().all(|&byte| byte == b'v'), "{len}");
}

/// Somebody who may write into the directory swaps what root creates there for links that lead out: nothing outside is
/// changed.
#[test]
fn what_is_swapped_while_it_is_created_leads_nowhere() {
    let Some(()) = require_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    const COUNT: usize = 300;
    let Some(()) = image_of(dir.path(), |_| ()) else { return };
    let mut script = String::new();
    for n in 0..COUNT {
        script += &format!("mknod p{n} p\nset_inode_field p{n} mode 0010666\nsymlink l{n} target\nwrite script f{n}\n");
        script +=
            &format!("set_inode_field f{n} mode 0100666\nset_inode_field l{n} uid 77\nset_inode_field f{n} uid 77\n");
    }
    fs::write(dir.path().join("script"), script).unwrap();
    let Some(tool) = require_tool("debugfs") else { return };
    postread_tests::run(Command::new(tool).current_dir(&dir).args(["-w", "-f", "script", "image"]));
    let (out, victim) = (dir.path().join("out"), dir.path().join("victim"));
    fs::create_dir(&out).unwrap();
    fs::write(out.join("own"), "x").unwrap();
    fs::write(&victim, "secret").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
    let facts = || fs::metadata(&victim).map(|m| (m.mode(), m.uid(), m.mtime(), m.nlink(), m.len())).unwrap();
    let before = facts();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for part in 0..2 {
            let (out, victim, stop) = (&out, &victim, &stop);
            scope.spawn(move || {
                let own = out.join(format!(".swap{part}"));
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    // Whatever is new: a link in its place.
                    for entry in fs::read_dir(out).unwrap().flatten() {
                        let name = entry.file_name();
                        if name == "own" || name.to_string_lossy().starts_with(".swap") || entry.path().is_symlink() {
                            continue;
                        }
                        let _ = symlink(victim, &own);
                        let _ = fs::rename(&own, entry.path());
                    }
                }
            });
        }
        for _ in 0..3 {
            let output = postread(dir.path(), &["extract", "-q", "image", "-C", "out"]);
            assert!(output.status.code().is_some_and(|code| code != 101), "{output:?}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(facts(), before);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "secret");
}
