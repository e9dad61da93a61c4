//! A tar archive as it is written: headers, contents, padding.

use std::io::{self, Write};

/// Bytes of a tar record.
const RECORD: usize = 512;

/// Writes an archive in the ustar format (POSIX.1-1988).
#[derive(Debug)]
pub(crate) struct Archive<W: Write> {
    out: W,
    /// Bytes of the file being written that are still to come.
    left: u64,
    pad: usize,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Self {
        Archive { out, left: 0, pad: 0 }
    }

    /// Begins a file. Names have at most 100 bytes here.
    pub(crate) fn file(&mut self, name: &str, size: u64) -> io::Result<()> {
        debug_assert_eq!(self.left, 0);
        let mut header = [0u8; RECORD];
        let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        let name = &name[..name.len().min(100)];
        put(0, name);
        put(100, "0000644\0");
        put(108, "0000000\0");
        put(116, "0000000\0");
        put(124, &format!("{size:011o}\0"));
        put(136, "00000000000\0");
        put(148, "        ");
        put(156, "0");
        put(257, "ustar\x0000");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.left = size;
        self.pad = (size as usize).next_multiple_of(RECORD) - size as usize;
        self.out.write_all(&header)
    }

    /// Adds to the file's contents.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.left = self.left.saturating_sub(bytes.len() as u64);
        self.out.write_all(bytes)?;
        if self.left == 0 {
            self.out.write_all(&[0; RECORD][..std::mem::take(&mut self.pad)])?;
        }
        Ok(())
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * RECORD])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_reads_it_back() {
        let mut archive = Archive::new(Vec::new());
        for (name, data) in [("a/empty", &b""[..]), ("a/one", b"x"), ("b", &[7; 512]), ("c", &[8; 1000])] {
            archive.file(name, data.len() as u64).unwrap();
            archive.data(data).unwrap();
        }
        let bytes = archive.finish().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.tar");
        std::fs::write(&file, bytes).unwrap();
        let listed = std::process::Command::new("tar").arg("-xvf").arg(&file).current_dir(dir.path()).output().unwrap();
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        assert_eq!(String::from_utf8_lossy(&listed.stdout), "a/empty\na/one\nb\nc\n");
        assert_eq!(std::fs::read(dir.path().join("c")).unwrap(), [8; 1000]);
        assert_eq!(std::fs::read(dir.path().join("a/one")).unwrap(), b"x");
    }
}
