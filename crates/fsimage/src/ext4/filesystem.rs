//! A loaded file system: metadata by number, through the cache.

use std::fmt;
use std::sync::Arc;

use postread_io::ReadAt;

use super::cache::{Cache, Cached};
use super::changes::{Changes, DirChanges};
use super::checksum::crc32c;
use super::directory::DirEntry;
use super::error::{Error, Fault, Result, Structure};
use super::extent::RawExtent;
use super::file::File;
use super::group_descriptor::GroupDescriptor;
use super::inline_data::inline_data;
use super::inode::{FileType, Inode, InodeFlags};
use super::journal::{self, Replay};
use super::map::{Extent, Extents};
use super::read_dir::ReadDir;
use super::superblock::{SUPERBLOCK_LEN, SUPERBLOCK_OFFSET, Superblock};
use super::walk::Walk;
use super::xattr::{self, RawXattr, ValuePlace, XATTR_INDEX_ENCRYPTION, Xattr};

/// The root directory's inode number.
pub const ROOT_INO: u32 = 2;

/// How to treat the journal of a file system that was not unmounted cleanly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JournalPolicy {
    /// Read as the file system would after mounting: what the journal holds lies over what is on disk.
    #[default]
    Replay,
    /// Read what is on disk, as a read-only mount with `noload` does.
    Ignore,
}

/// How to load a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// What to do about a journal that was not replayed.
    pub journal: JournalPolicy,
    /// Verify the checksums of metadata, where there are any.
    pub checksums: bool,
    /// Bytes of metadata kept in memory.
    pub cache: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { journal: JournalPolicy::Replay, checksums: true, cache: 8 << 20 }
    }
}

/// An ext4 (or ext3, ext2) file system, read-only. Cloning is cheap: clones share one cache.
#[derive(Clone)]
pub struct Ext4(Arc<Inner>);

struct Inner {
    superblock: Superblock,
    cache: Cache,
    options: Options,
    replay: Option<Replay>,
    changes: Option<Changes>,
}

impl fmt::Debug for Ext4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ext4").field("superblock", &self.0.superblock).finish_non_exhaustive()
    }
}

impl Ext4 {
    /// Loads the file system that starts at byte 0 of `source`.
    pub fn load(source: Arc<dyn ReadAt>) -> Result<Self> {
        Self::load_with(source, Options::default())
    }

    /// Loads the file system that starts at byte 0 of `source`.
    pub fn load_with(source: Arc<dyn ReadAt>, options: Options) -> Result<Self> {
        let on_disk = Self::open(source, options, None, None)?;
        if options.journal == JournalPolicy::Ignore || !on_disk.superblock().needs_recovery() {
            return Ok(on_disk);
        }
        let Some(replayed) = journal::replay(&on_disk)? else {
            return Ok(on_disk);
        };
        // The superblock itself may be among what the journal holds.
        let (device, replay) = (replayed.device.clone(), replayed.replay);
        let fs = Self::open(device, options, Some(replay), None)?;
        match replayed.changes(&fs)? {
            Some(changes) => fs.with_changes(changes),
            None => Ok(fs),
        }
    }

    /// The same file system with `changes` laid over it.
    pub(super) fn with_changes(&self, changes: Changes) -> Result<Self> {
        Self::open(self.device().clone(), self.0.options, self.0.replay, Some(changes))
    }

    fn open(
        source: Arc<dyn ReadAt>,
        options: Options,
        replay: Option<Replay>,
        changes: Option<Changes>,
    ) -> Result<Self> {
        let mut bytes = vec![0; SUPERBLOCK_LEN];
        source.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).map_err(|source| Error::Io {
            offset: SUPERBLOCK_OFFSET,
            len: SUPERBLOCK_LEN,
            source,
        })?;
        let superblock = Superblock::parse(&bytes, options.checksums)?;
        Ok(Self(Arc::new(Inner { superblock, cache: Cache::new(source, options.cache), options, replay, changes })))
    }

    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.0.superblock
    }

    /// The file system's bytes as they are after the journal's replay: what [`Extent::physical`] points into.
    /// It is the source itself where nothing had to be replayed.
    pub fn device(&self) -> &Arc<dyn ReadAt> {
        self.0.cache.source()
    }

    /// What the journal's replay did; nothing where none was needed. Where there is one, plans must read through
    /// [`Ext4::device`], not the source.
    pub fn replay(&self) -> Option<&Replay> {
        self.0.replay.as_ref()
    }

    pub(crate) fn verifies_checksums(&self) -> bool {
        self.0.options.checksums && self.0.superblock.has_metadata_csum()
    }

    pub(crate) fn verifies_journal(&self) -> bool {
        self.0.options.checksums
    }

    /// Blocks that are there: a truncated image has fewer than its superblock says.
    pub(crate) fn usable_blocks(&self) -> u64 {
        let superblock = self.superblock();
        let len = self.device().len().unwrap_or(u64::MAX);
        superblock.blocks_count.min(len.div_ceil(superblock.block_size.into()))
    }

    /// A whole block.
    pub(crate) fn block(&self, block: u64) -> Result<Cached> {
        self.bytes(block * u64::from(self.0.superblock.block_size), self.0.superblock.block_size as usize)
    }

    fn bytes(&self, offset: u64, len: usize) -> Result<Cached> {
        self.0.cache.read(offset, len).map_err(|source| Error::Io { offset, len, source })
    }

    /// The descriptor of block group `group`.
    pub fn group_descriptor(&self, group: u64) -> Result<GroupDescriptor> {
        let superblock = self.superblock();
        let groups = superblock.groups_count();
        if group >= groups {
            let fault = Fault::Limit { field: "the group", value: group, limit: groups };
            return Err(fault.of(Structure::GroupDescriptor).in_block(group).into());
        }
        let (block, at) = superblock.descriptor_location(group);
        let offset = block * u64::from(superblock.block_size) + at as u64;
        let bytes = self.bytes(offset, superblock.desc_size as usize)?;
        Ok(GroupDescriptor::parse(&bytes, group, superblock, self.0.options.checksums)?)
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
        Ok(Inode::parse(&self.inode_in_table(ino)?, ino, superblock, self.0.options.checksums)?)
    }

    /// An inode's bytes in its table, whatever they say.
    pub(crate) fn inode_in_table(&self, ino: u32) -> Result<Cached> {
        let superblock = self.superblock();
        if ino == 0 || ino > superblock.inodes_count {
            return Err(self.no_such_inode(ino));
        }
        let (group, index) = ((ino - 1) / superblock.inodes_per_group, (ino - 1) % superblock.inodes_per_group);
        let table = self.group_descriptor(group.into())?.inode_table;
        let offset = table * u64::from(superblock.block_size) + u64::from(index) * u64::from(superblock.inode_size);
        self.bytes(offset, superblock.inode_size as usize)
    }

    /// What fast commits have made of an inode's extents, in order.
    pub(crate) fn changed_extents(&self, ino: u32) -> Option<&Arc<[RawExtent]>> {
        self.0.changes.as_ref()?.extents.get(&ino)
    }

    /// What fast commits have made of a directory.
    pub(crate) fn changed_directory(&self, ino: u32) -> Option<&Arc<DirChanges>> {
        self.0.changes.as_ref()?.directories.get(&ino)
    }

    fn no_such_inode(&self, ino: u32) -> Error {
        Error::NoSuchInode { ino, first: self.superblock().first_inode, last: self.superblock().inodes_count }
    }

    /// The root directory.
    pub fn root(&self) -> Result<Inode> {
        self.inode(ROOT_INO)
    }

    /// The extents of an inode's contents in order, from the one with byte `from` on, holes included, up to the end
    /// of the last block that is mapped or lies before the end of the file. Empty where the data lives in the inode
    /// (inline data, fast symbolic links) and for what has no data.
    pub fn extents_from(&self, inode: &Inode, from: u64) -> Extents {
        Extents::new(self, inode, from)
    }

    /// All extents of an inode's contents: see [`Ext4::extents_from`], which needs less memory.
    pub fn extents(&self, inode: &Inode) -> Result<Vec<Extent>> {
        self.extents_from(inode, 0).collect()
    }

    /// An inode's contents as they lie on disk (ciphertext where they are encrypted; holes and unwritten extents as
    /// zeros). Reads are not limited to the file's size: see [`File`].
    pub fn open_raw(&self, inode: &Inode) -> Result<File> {
        File::new(self, inode)
    }

    /// Data that lives in the inode itself, where it does.
    pub fn inline_data(&self, inode: &Inode) -> Result<Option<Vec<u8>>> {
        if inode.is_fast_symlink() {
            return Ok(Some(inode.block[..inode.size as usize].to_vec()));
        }
        if inode.has_inline_data() && !inode.is_dir() { inline_data(self, inode).map(Some) } else { Ok(None) }
    }

    /// A symbolic link's target as it lies on disk. Of an encrypted link: a little-endian 16-bit length and the
    /// ciphertext.
    pub fn symlink_target(&self, inode: &Inode) -> Result<Vec<u8>> {
        if inode.file_type != FileType::Symlink {
            return Err(Error::WrongKind { ino: inode.ino, wanted: "symbolic link" });
        }
        if let Some(target) = self.inline_data(inode)? {
            return Ok(target);
        }
        let limit = u64::from(self.superblock().block_size);
        if inode.size == 0 || inode.size > limit {
            let fault = Fault::Limit { field: "the target's length", value: inode.size, limit };
            return Err(fault.of(Structure::Symlink).in_inode(inode.ino).into());
        }
        let mut target = vec![0; inode.size as usize];
        self.open_raw(inode)?.read_raw_at(&mut target, 0)?;
        Ok(target)
    }

    /// A directory's entries, raw, without `.` and `..`.
    pub fn read_dir(&self, inode: &Inode) -> Result<ReadDir> {
        ReadDir::new(self, inode)
    }

    /// The entry whose name, as it lies on disk, is `name`.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<DirEntry> {
        for entry in self.read_dir(dir)? {
            match entry {
                Ok(entry) if *entry.name == *name => return Ok(entry),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::NotFound { dir: dir.ino, name: name.to_vec() })
    }

    /// The inode at `path`, whose names are as they lie on disk, from the root; symbolic links are not followed.
    pub fn resolve(&self, path: &[u8]) -> Result<Inode> {
        let mut inode = self.root()?;
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            inode = self.inode(self.lookup(&inode, name)?.ino)?;
        }
        Ok(inode)
    }

    /// Goes through the tree below the directory `dir`, depth first.
    pub fn walk(&self, dir: u32) -> Walk {
        Walk::new(self, dir)
    }

    /// An inode's extended attributes, raw, those that Linux hides included: in-inode ones first.
    pub fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        let mut out = self.xattrs_in_inode(inode)?;
        for raw in self.raw_xattrs_in_block(inode)? {
            out.push(self.fetch(inode, raw)?);
        }
        Ok(out)
    }

    pub(crate) fn xattrs_in_inode(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        self.raw_xattrs_in_inode(inode)?.into_iter().map(|raw| self.fetch(inode, raw)).collect()
    }

    /// fscrypt's context, raw (28 bytes in version 1, 40 in version 2), of an inode that has one.
    pub fn fscrypt_context(&self, inode: &Inode) -> Result<Option<Vec<u8>>> {
        let wanted = |raw: &RawXattr| raw.index == XATTR_INDEX_ENCRYPTION && &*raw.name == b"c";
        let mut found = self.raw_xattrs_in_inode(inode)?.into_iter().find(wanted);
        if found.is_none() {
            found = self.raw_xattrs_in_block(inode)?.into_iter().find(wanted);
        }
        found.map(|raw| self.fetch(inode, raw).map(|attribute| attribute.value)).transpose()
    }

    fn raw_xattrs_in_inode(&self, inode: &Inode) -> Result<Vec<RawXattr>> {
        let corrupt = |fault: Fault| fault.of(Structure::Xattr).in_inode(inode.ino);
        Ok(xattr::parse_body(&inode.xattr_body).map_err(corrupt)?)
    }

    fn raw_xattrs_in_block(&self, inode: &Inode) -> Result<Vec<RawXattr>> {
        let block = inode.file_acl;
        if block == 0 {
            return Ok(Vec::new());
        }
        let corrupt = |fault: Fault| fault.of(Structure::Xattr).in_inode(inode.ino).in_block(block);
        let seed = self.verifies_checksums().then_some(self.superblock().checksum_seed);
        Ok(xattr::parse_block(&self.block(block)?, block, seed).map_err(corrupt)?)
    }

    fn fetch(&self, inode: &Inode, raw: RawXattr) -> Result<Xattr> {
        let value = match raw.value {
            ValuePlace::Here(value) => value,
            ValuePlace::Inode { ino, size } => self.ea_inode(inode.ino, ino, size)?,
        };
        Ok(Xattr { index: raw.index, name: raw.name, value })
    }

    /// The value of an attribute of inode `owner` that lives in inode `ino`.
    fn ea_inode(&self, owner: u32, ino: u32, size: u32) -> Result<Vec<u8>> {
        let corrupt = |fault: Fault| Error::from(fault.of(Structure::Xattr).in_inode(owner));
        let inode = self.any_inode(ino)?;
        if !inode.flags.contains(InodeFlags::EA_INODE) || inode.size != u64::from(size) {
            return Err(corrupt(Fault::Field { field: "the inode of a value", value: ino.into() }));
        }
        let mut value = vec![0; size as usize];
        self.open_raw(&inode)?.read_raw_at(&mut value, 0)?;
        // The hash of the value stands in the access time; the old scheme had the owner's number as the time of
        // change instead, and no hash.
        let old_scheme = inode.mtime.seconds as u32 == owner;
        if self.verifies_checksums() && !old_scheme {
            let (found, wanted) = (inode.atime.seconds as u32, crc32c(self.superblock().checksum_seed, &value));
            if found != wanted {
                return Err(corrupt(Fault::Checksum { found, wanted }));
            }
        }
        Ok(value)
    }
}
