//! Images: unpacked from the repository, mounted by the kernel that runs the tests.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

use tempfile::{NamedTempFile, TempDir};

use crate::run;

/// Unpacks `NAME.zst` into a temporary file, with holes in place of zeros.
///
/// # Panics
/// When the file cannot be read or is not in zstd format.
#[track_caller]
pub fn unpack_image(packed: &Path) -> NamedTempFile {
    let file = File::open(packed).unwrap_or_else(|e| panic!("{}: {e}", packed.display()));
    let mut reader = ruzstd::decoding::StreamingDecoder::new(BufReader::new(file)).expect("the format of zstd");
    let mut image = NamedTempFile::new().expect("a temporary file");
    let mut buf = vec![0; 1 << 16];
    let mut len = 0;
    loop {
        let mut filled = 0;
        while filled < buf.len() {
            match reader.read(&mut buf[filled..]).expect("the format of zstd") {
                0 => break,
                n => filled += n,
            }
        }
        if filled == 0 {
            break;
        }
        if buf[..filled].iter().all(|&b| b == 0) {
            image.seek(SeekFrom::Current(filled as i64)).expect("seek in a temporary file");
        } else {
            image.write_all(&buf[..filled]).expect("write a temporary file");
        }
        len += filled as u64;
    }
    image.as_file().set_len(len).expect("the length of a temporary file");
    image
}

/// A mounted image; dropping it unmounts. Needs root.
#[derive(Debug)]
pub struct Mount {
    dir: TempDir,
}

impl Mount {
    /// Mounts an image through a loop device, with mount's options (`ro`, `test_dummy_encryption`).
    ///
    /// # Errors
    /// The message of `mount`: the kernel lacks this file system or a loop device.
    pub fn image(image: &Path, kind: &str, options: &str) -> Result<Mount, String> {
        let dir = TempDir::new().map_err(|e| e.to_string())?;
        let options = if options.is_empty() { "loop".to_owned() } else { format!("loop,{options}") };
        let output = Command::new("mount")
            .args(["-t", kind, "-o", &options])
            .args([image, dir.path()])
            .output()
            .map_err(|e| format!("mount: {e}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(Mount { dir })
    }

    /// Mounts a file system in memory with room for this many bytes.
    ///
    /// # Errors
    /// The message of `mount`.
    pub fn tmpfs(bytes: u64) -> Result<Mount, String> {
        let dir = TempDir::new().map_err(|e| e.to_string())?;
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "postread-test"])
            .arg(dir.path())
            .output()
            .map_err(|e| format!("mount: {e}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(Mount { dir })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Unmounts now, so that everything is in the image.
    ///
    /// A program that another test starts has the files of this process open until it executes, and keeps the mount busy
    /// for that moment: so this tries for some seconds.
    ///
    /// # Panics
    /// When something in it stays in use.
    pub fn unmount(self) {
        for _ in 0..100 {
            let tried = Command::new("umount").arg(self.dir.path()).output();
            if tried.is_ok_and(|output| output.status.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        run(Command::new("umount").arg(self.dir.path()));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Nothing may stay mounted, whatever failed. After `unmount` there is nothing to do.
        if std::fs::read_to_string("/proc/self/mountinfo")
            .is_ok_and(|m| m.contains(&*self.dir.path().to_string_lossy()))
        {
            let _ = Command::new("umount").arg("-l").arg(self.dir.path()).status();
        }
    }
}
