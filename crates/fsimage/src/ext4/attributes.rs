//! Extended attributes of an inode: those in the inode, those in its block, and values in separate inodes.

use super::bytes::{low32, to_usize};
use super::checksum::crc32c;
use super::error::{Error, Fault, Result, Structure};
use super::features::Incompat;
use super::filesystem::Ext4;
use super::inode::{Inode, InodeFlags};
use super::xattr::{self, RawXattr, ValuePlace, XATTR_INDEX_ENCRYPTION, Xattr};

/// The extended attributes of an inode, raw, including those that Linux hides: in-inode ones first.
///
/// An error concerns one attribute, or all of those in the inode or in the block; the next call continues after it. A
/// value in a separate inode is read when its attribute is returned, so that at most one is in memory.
#[derive(Debug)]
pub struct Xattrs {
    fs: Ext4,
    owner: Owner,
    raw: std::vec::IntoIter<Result<RawXattr>>,
}

/// What the value of an attribute is checked against.
#[derive(Debug, Clone, Copy)]
struct Owner {
    ino: u32,
    generation: u32,
}

impl Iterator for Xattrs {
    type Item = Result<Xattr>;

    fn next(&mut self) -> Option<Self::Item> {
        let raw = self.raw.next()?;
        Some(raw.and_then(|raw| fetch(&self.fs, self.owner, raw)))
    }
}

impl Ext4 {
    /// The extended attributes of an inode.
    pub fn xattrs(&self, inode: &Inode) -> Xattrs {
        let mut raw = Vec::new();
        for place in [self.raw_xattrs_in_inode(inode), self.raw_xattrs_in_block(inode)] {
            match place {
                Ok(found) => raw.extend(found.into_iter().map(Ok)),
                Err(error) => raw.push(Err(error)),
            }
        }
        let owner = Owner { ino: inode.ino, generation: inode.generation };
        Xattrs { fs: self.clone(), owner, raw: raw.into_iter() }
    }

    /// fscrypt's context, raw (28 bytes in version 1, 40 in version 2), of an inode that has one.
    pub fn fscrypt_context(&self, inode: &Inode) -> Result<Option<Vec<u8>>> {
        let wanted = |raw: &RawXattr| raw.index == XATTR_INDEX_ENCRYPTION && &*raw.name == b"c";
        let mut found = self.raw_xattrs_in_inode(inode)?.into_iter().find(wanted);
        if found.is_none() {
            found = self.raw_xattrs_in_block(inode)?.into_iter().find(wanted);
        }
        let owner = Owner { ino: inode.ino, generation: inode.generation };
        found.map(|raw| fetch(self, owner, raw).map(|attribute| attribute.value)).transpose()
    }

    pub(crate) fn raw_xattrs_in_inode(&self, inode: &Inode) -> Result<Vec<RawXattr>> {
        let corrupt = |fault: Fault| fault.of(Structure::Xattr).in_inode(inode.ino);
        Ok(xattr::parse_body(&inode.xattr_body, self.has_ea_inodes()).map_err(corrupt)?)
    }

    fn raw_xattrs_in_block(&self, inode: &Inode) -> Result<Vec<RawXattr>> {
        let block = inode.file_acl;
        if block == 0 {
            return Ok(Vec::new());
        }
        let corrupt = |fault: Fault| fault.of(Structure::Xattr).in_inode(inode.ino).in_block(block);
        self.may_have(inode.ino, 0, block, 1)
            .map_err(|_| corrupt(Fault::Rule("the block is in the file system's metadata")))?;
        let seed = self.verifies_checksums().then_some(self.superblock().checksum_seed);
        Ok(xattr::parse_block(&self.block(block)?, block, seed, self.has_ea_inodes()).map_err(corrupt)?)
    }

    fn has_ea_inodes(&self) -> bool {
        self.superblock().incompat.contains(Incompat::EA_INODE)
    }
}

fn fetch(fs: &Ext4, owner: Owner, raw: RawXattr) -> Result<Xattr> {
    let value = match raw.value {
        ValuePlace::Here(value) => value,
        ValuePlace::Inode { ino, size } => value_in_inode(fs, owner, ino, size)?,
    };
    Ok(Xattr { index: raw.index, name: raw.name, value })
}

/// The value of an attribute that is in inode `ino`.
fn value_in_inode(fs: &Ext4, owner: Owner, ino: u32, size: u32) -> Result<Vec<u8>> {
    let corrupt = |fault: Fault| Error::from(fault.of(Structure::Xattr).in_inode(owner.ino));
    let inode = fs.any_inode(ino)?;
    if ino == owner.ino || size == 0 {
        return Err(corrupt(Fault::Field { field: "the inode of a value", value: ino.into() }));
    }
    if !inode.flags.contains(InodeFlags::EA_INODE) || inode.size != u64::from(size) {
        return Err(corrupt(Fault::Field { field: "the inode of a value", value: ino.into() }));
    }
    if !inode.xattr_body.is_empty() || inode.file_acl != 0 {
        return Err(corrupt(Fault::Rule("the inode of a value has attributes itself")));
    }
    let mut value = vec![0; to_usize(size)];
    fs.read_metadata(&inode, &mut value)?;
    // The access time is the hash of the value. An older scheme has no hash, and the owner's number as the time of
    // modification instead.
    let (hash, parent) = (low32(inode.atime.seconds.cast_unsigned()), low32(inode.mtime.seconds.cast_unsigned()));
    let old_scheme = parent == owner.ino && inode.generation == owner.generation;
    let wanted = crc32c(fs.superblock().checksum_seed, &value);
    if fs.wants_checksums() && !old_scheme && hash != wanted {
        return Err(corrupt(Fault::Checksum { found: hash, wanted }));
    }
    Ok(value)
}
