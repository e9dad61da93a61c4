//! Lists a whole ext4 image, raw, with the time and memory it took: `ext4-list IMAGE`.

use std::sync::Arc;

use postread_fsimage::ext4::{Ext4, ROOT_INO};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: ext4-list IMAGE")?;
    let fs = Ext4::load(Arc::new(std::fs::File::open(image)?))?;
    let start = std::time::Instant::now();
    let mut count = 0;
    for visit in fs.walk(ROOT_INO) {
        count += 1;
        match (&visit.entry, &visit.inode) {
            (Some(entry), Ok(inode)) => println!(
                "{:indent$}{} {} {:?} {} bytes {:?}",
                "",
                entry.name.escape_ascii(),
                inode.ino,
                inode.file_type,
                inode.size,
                fs.fscrypt_context(inode)?.map(|context| context.len()),
                indent = visit.depth
            ),
            (_, Err(error)) => println!("{error}"),
            (None, Ok(_)) => {}
        }
    }
    // Linux tells the peak of resident memory.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    eprintln!("{count} visited in {:.3} s; {peak}", start.elapsed().as_secs_f64());
    Ok(())
}
