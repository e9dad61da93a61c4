//! A loaded file system: blocks, group descriptors and inodes by number, through the cache.
//!
//! Everything built on them is in `impl` blocks of [`Ext4`] next to the types that they open.

use std::fmt;
use std::io;
use std::sync::Arc;

use postread_io::ReadAt;

use super::bytes::{to_u64, to_usize};
use super::cache::{Cache, Cached};
use super::changes::{Changes, DirChanges};
use super::error::{Error, Fault, Result, Structure, Warning};
use super::extent::RawExtent;
use super::group_descriptor::GroupDescriptor;
use super::inode::{Inode, InodeFlags};
use super::replay::Replay;
use super::superblock::{SUPERBLOCK_OFFSET, Superblock};
use super::zones::Zones;

/// The root directory's inode number.
pub const ROOT_INO: u32 = 2;

/// An ext4 (or ext3, ext2) file system, read-only. Cloning is cheap: clones share one cache.
#[derive(Clone)]
pub struct Ext4(Arc<Inner>);

/// The state of an [`Ext4`].
pub(crate) struct Inner {
    pub(crate) superblock: Superblock,
    /// The block that the superblock was read from: the group descriptors follow it.
    pub(crate) superblock_block: u64,
    pub(crate) cache: Cache,
    /// Whether checksums of metadata are verified, if there are any.
    pub(crate) checksums: bool,
    pub(crate) replay: Option<Replay>,
    pub(crate) changes: Option<Changes>,
    pub(crate) zones: Zones,
    pub(crate) warnings: Vec<Warning>,
}

impl fmt::Debug for Ext4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ext4").field("superblock", &self.0.superblock).finish_non_exhaustive()
    }
}

impl Ext4 {
    pub(crate) fn from_inner(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// The parts, of a file system that has no clones yet.
    pub(crate) fn into_inner(self) -> Option<Inner> {
        Arc::into_inner(self.0)
    }

    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.0.superblock
    }

    /// The file system's bytes as they are after the journal's replay: [`Extent::physical`](super::Extent::physical)
    /// points into them. This is the source itself if nothing had to be replayed.
    pub fn device(&self) -> &Arc<dyn ReadAt> {
        self.0.cache.source()
    }

    /// What the journal's replay did; nothing if none was needed. If there is one, plans must read through
    /// [`Ext4::device`], not the source.
    pub fn replay(&self) -> Option<&Replay> {
        self.0.replay.as_ref()
    }

    /// Problems found when the file system was loaded that do not prevent reading it.
    pub fn warnings(&self) -> impl Iterator<Item = &Warning> {
        self.0.warnings.iter().chain(&self.0.zones.warnings)
    }

    /// Whether metadata has checksums that are to be verified.
    pub(crate) fn verifies_checksums(&self) -> bool {
        self.0.checksums && self.0.superblock.has_metadata_csum()
    }

    /// Whether checksums are to be verified, of structures that have them whatever the features are.
    pub(crate) fn wants_checksums(&self) -> bool {
        self.0.checksums
    }

    /// Whether an inode may have these blocks for its file blocks from `logical` on: they are the file system's, and hold
    /// none of its metadata.
    pub(crate) fn may_have(&self, ino: u32, logical: u64, first: u64, blocks: u64) -> Result<(), Fault> {
        if !self.superblock().has_blocks(first, blocks) {
            return Err(self.superblock().out_of_range("a block number", first));
        }
        if !self.0.zones.allow(ino, first, blocks) {
            return Err(Fault::Metadata { logical, block: first });
        }
        Ok(())
    }

    /// The block size in bytes.
    pub(crate) fn block_size(&self) -> u64 {
        self.0.superblock.block_size.into()
    }

    /// Blocks that are there: a truncated image has fewer than its superblock claims.
    pub(crate) fn usable_blocks(&self) -> u64 {
        let len = self.device().len().unwrap_or(u64::MAX);
        self.0.superblock.blocks_count.min(len.div_ceil(self.block_size().max(1)))
    }

    /// A whole block.
    pub(crate) fn block(&self, block: u64) -> Result<Cached> {
        self.bytes(block.saturating_mul(self.block_size()), to_usize(self.0.superblock.block_size))
    }

    /// How many bytes the file system has and how many its source has, if those are fewer.
    pub fn truncated(&self) -> Option<(u64, u64)> {
        let (expected, found) = (self.superblock().size(), self.device().len().ok()?);
        (found < expected).then_some((expected, found))
    }

    /// A read that failed: of a truncated image, past its end, for that reason.
    pub(crate) fn read_failed(&self, offset: u64, len: usize, source: io::Error) -> Error {
        let end = offset.saturating_add(to_u64(len));
        match self.truncated().filter(|_| source.kind() == io::ErrorKind::UnexpectedEof) {
            Some((expected, found)) if end > found => Error::Truncated { end, expected, found },
            _ => Error::Io { offset, len, source },
        }
    }

    fn bytes(&self, offset: u64, len: usize) -> Result<Cached> {
        self.0.cache.read(offset, len).map_err(|source| self.read_failed(offset, len, source))
    }

    /// The descriptor of block group `group`. A wrong checksum is no error: see
    /// [`Warning::GroupChecksum`].
    pub fn group_descriptor(&self, group: u64) -> Result<GroupDescriptor> {
        Ok(self.checked_group_descriptor(group)?.0)
    }

    /// The descriptor of block group `group`, and whether its checksum is wrong.
    pub(crate) fn checked_group_descriptor(&self, group: u64) -> Result<(GroupDescriptor, bool)> {
        let superblock = self.superblock();
        let groups = superblock.groups_count();
        if group >= groups {
            let fault = Fault::Range { field: "the group", value: group, first: 0, last: groups.saturating_sub(1) };
            return Err(fault.of(Structure::GroupDescriptor).in_block(group).into());
        }
        let (block, at) = superblock.descriptor_location(group, self.0.superblock_block);
        let offset = block.saturating_mul(self.block_size()).saturating_add(to_u64(at));
        let bytes = self.bytes(offset, to_usize(superblock.desc_size))?;
        let wrong = self.0.checksums && GroupDescriptor::wrong_checksum(&bytes, group, superblock).is_some();
        Ok((GroupDescriptor::parse(&bytes, group, superblock, false)?, wrong))
    }

    /// The inode that a name may refer to: not a reserved one, not free. The root directory is [`ROOT_INO`].
    pub fn inode(&self, ino: u32) -> Result<Inode> {
        let superblock = self.superblock();
        if (ino < superblock.first_inode && ino != ROOT_INO) || ino > superblock.inodes_count {
            return Err(self.no_such_inode(ino));
        }
        let inode = self.any_inode(ino)?;
        if inode.flags.contains(InodeFlags::EA_INODE) {
            let fault = Fault::Rule("a name refers to an inode that holds an attribute's value");
            return Err(fault.of(Structure::Inode).in_inode(ino).into());
        }
        Ok(inode)
    }

    /// Any inode in use, reserved ones too.
    pub(crate) fn any_inode(&self, ino: u32) -> Result<Inode> {
        let inode = self.raw_inode(ino)?;
        if inode.nlink == 0 { Err(Error::Deleted { ino }) } else { Ok(inode) }
    }

    /// Any inode, free ones too.
    pub(crate) fn raw_inode(&self, ino: u32) -> Result<Inode> {
        let superblock = self.superblock();
        if let Some(raw) = self.0.changes.as_ref().and_then(|changes| changes.inodes.get(&ino)) {
            return Ok(Inode::parse(raw, ino, superblock, false)?);
        }
        Ok(Inode::parse(&self.inode_in_table(ino)?, ino, superblock, self.0.checksums)?)
    }

    /// An inode's bytes in its table, whatever they hold.
    pub(crate) fn inode_in_table(&self, ino: u32) -> Result<Cached> {
        let superblock = self.superblock();
        let index = match ino.checked_sub(1) {
            Some(index) if ino <= superblock.inodes_count => index,
            _ => return Err(self.no_such_inode(ino)),
        };
        let per_group = superblock.inodes_per_group;
        let (group, slot) = (index.checked_div(per_group).unwrap_or(0), index.checked_rem(per_group).unwrap_or(0));
        let table = self.group_descriptor(group.into())?.inode_table.saturating_mul(self.block_size());
        let offset = table.saturating_add(u64::from(slot).saturating_mul(superblock.inode_size.into()));
        self.bytes(offset, to_usize(superblock.inode_size))
    }

    /// An inode's extents as changed by fast commits, in order.
    pub(crate) fn changed_extents(&self, ino: u32) -> Option<&Arc<[RawExtent]>> {
        self.0.changes.as_ref()?.extents.get(&ino)
    }

    /// A directory as changed by fast commits.
    pub(crate) fn changed_directory(&self, ino: u32) -> Option<&Arc<DirChanges>> {
        self.0.changes.as_ref()?.directories.get(&ino)
    }

    fn no_such_inode(&self, ino: u32) -> Error {
        Error::NoSuchInode { ino, first: self.superblock().first_inode, last: self.superblock().inodes_count }
    }

    /// The root directory.
    pub fn root(&self) -> Result<Inode> {
        let root = self.inode(ROOT_INO)?;
        if !root.is_dir() {
            let fault = Fault::Rule("the root is not a directory");
            return Err(fault.of(Structure::Inode).in_inode(ROOT_INO).into());
        }
        // Its entries are never in the inode, regardless of its flags.
        if root.size == 0 || root.sectors == 0 {
            let fault = Fault::Rule("the root has no blocks");
            return Err(fault.of(Structure::Inode).in_inode(ROOT_INO).into());
        }
        Ok(root)
    }
}

/// The block that the superblock is in by default.
pub(crate) fn default_superblock_block(superblock: &Superblock) -> u64 {
    SUPERBLOCK_OFFSET.checked_div(superblock.block_size.into()).unwrap_or(0)
}
