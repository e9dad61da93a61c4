//! Symbolic links.

use super::error::{Error, Fault, Result, Structure};
use super::filesystem::Ext4;
use super::inode::{FileType, Inode};

impl Ext4 {
    /// A symbolic link's target as it is on disk. Of an encrypted link: a little-endian 16-bit length and the
    /// ciphertext.
    pub fn symlink_target(&self, inode: &Inode) -> Result<Vec<u8>> {
        if inode.file_type != FileType::Symlink {
            return Err(Error::WrongKind { ino: inode.ino, wanted: "symbolic link" });
        }
        let corrupt = |fault: Fault| Error::from(fault.of(Structure::Symlink).in_inode(inode.ino));
        let target = match self.inline_data(inode)? {
            Some(target) => target,
            None => {
                // A target in a block is followed by a zero byte, unless it is encrypted.
                let last = self.block_size().saturating_sub(u64::from(!inode.is_encrypted()));
                let len = usize::try_from(inode.size).ok().filter(|_| (1..=last).contains(&inode.size));
                let fault = Fault::Range { field: "the target's length", value: inode.size, first: 1, last };
                let mut target = vec![0; len.ok_or_else(|| corrupt(fault))?];
                self.read_metadata(inode, &mut target)?;
                target
            }
        };
        if !inode.is_encrypted() && target.contains(&0) {
            return Err(corrupt(Fault::Rule("the target holds a zero byte")));
        }
        Ok(target)
    }
}
