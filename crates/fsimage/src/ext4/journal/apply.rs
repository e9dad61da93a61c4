//! Applies fast commits to what the whole transactions left, as the kernel's replay does.
//!
//! Three things are left as they are, since the kernel sets them only when it mounts: the times of directories that got
//! or lost names, the blocks that a directory grows by, and how many blocks an extent tree's nodes take.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::fast_commit::Change;
use crate::ext4::bytes::{le16, le32, to_u64};
use crate::ext4::changes::{Changes, DirChanges, name_key};
use crate::ext4::directory::DirEntry;
use crate::ext4::error::{Error, Fault, Result, Structure};
use crate::ext4::extent::{EXTENT_MAGIC, RawExtent};
use crate::ext4::filesystem::{Ext4, ROOT_INO};
use crate::ext4::inode::{Inode, InodeFlags};
use crate::ext4::map::raw_extents;

/// Where the fields of an inode are: its links, its flags, and the map of its data.
const LINKS: usize = 0x1a;
const LINKS_END: usize = 0x1c;
const FLAGS: usize = 0x20;
const BLOCK: usize = 0x28;
const BLOCK_END: usize = 0x64;

/// The bytes of an inode that there are in every version.
const GOOD_OLD_SIZE: usize = 128;

/// Extents of changed inodes that are kept in memory, all together.
const EXTENTS_MAX: usize = 1 << 20;

/// Lays the changes over `fs`.
pub(super) fn apply(fs: &Ext4, changes: Vec<Change>) -> Result<Changes> {
    let mut apply = Apply { fs, inodes: HashMap::new(), directories: HashMap::new(), extents: 0 };
    apply.find_names(&changes)?;
    for change in changes {
        match change {
            Change::Inode { ino, raw } => apply.inode(ino, &raw)?,
            Change::AddRange { ino, extent } => apply.add_range(ino, extent)?,
            Change::DelRange { ino, first, len } => apply.del_range(ino, first, len)?,
            Change::Link { dir, ino, name, create } => apply.link(dir, ino, &name, create)?,
            Change::Unlink { dir, ino, name } => apply.unlink(dir, ino, &name)?,
        }
    }
    apply.finish()
}

struct Apply<'a> {
    fs: &'a Ext4,
    inodes: HashMap<u32, Changed>,
    directories: HashMap<u32, Directory>,
    /// Extents in memory.
    extents: usize,
}

/// An inode that changes.
struct Changed {
    raw: Vec<u8>,
    extents: Option<BTreeMap<u64, RawExtent>>,
}

/// A directory that changes: the names that fast commits mention, by their keys.
#[derive(Default)]
struct Directory {
    new: bool,
    folds_case: bool,
    names: HashMap<Vec<u8>, Name>,
}

#[derive(Default)]
struct Name {
    on_disk: Option<u32>,
    now: Option<(u32, Vec<u8>)>,
}

fn field(field: &'static str, value: u64) -> Error {
    Fault::Field { field, value }.of(Structure::Journal).into()
}

impl Apply<'_> {
    /// Looks for all names that the changes mention, each directory once.
    fn find_names(&mut self, changes: &[Change]) -> Result<()> {
        for change in changes {
            if let Change::Link { dir, name, .. } | Change::Unlink { dir, name, .. } = change {
                if !self.directories.contains_key(dir) {
                    let known = self.fs.inode(*dir).ok();
                    let folds_case = known.as_ref().is_some_and(Inode::is_casefolded);
                    if known.is_some_and(|inode| inode.is_encrypted()) {
                        return Err(Error::UnsupportedJournal("it holds fast commits in an encrypted directory"));
                    }
                    self.directories.insert(*dir, Directory { folds_case, ..Directory::default() });
                }
                let directory = self.directories.get_mut(dir).expect("just inserted");
                directory.names.entry(name_key(name, directory.folds_case)).or_default();
            }
        }
        for (dir, directory) in &mut self.directories {
            let Ok(inode) = self.fs.inode(*dir) else { continue };
            if !inode.is_dir() {
                continue;
            }
            for entry in self.fs.read_dir(&inode)? {
                match entry {
                    Ok(entry) => {
                        if let Some(name) = directory.names.get_mut(&name_key(&entry.name, directory.folds_case)) {
                            name.on_disk = Some(entry.ino);
                            name.now = Some((entry.ino, entry.name.into_vec()));
                        }
                    }
                    Err(error @ Error::Io { .. }) => return Err(error),
                    // Whoever reads the directory gets the error.
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    fn changed(&mut self, ino: u32) -> Result<&mut Changed> {
        let superblock = self.fs.superblock();
        if (ino < superblock.first_inode && ino != ROOT_INO) || ino > superblock.inodes_count {
            return Err(field("an inode number of a fast commit", ino.into()));
        }
        Ok(match self.inodes.entry(ino) {
            std::collections::hash_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(Changed { raw: self.fs.inode_in_table(ino)?.to_vec(), extents: None })
            }
        })
    }

    fn parse(&mut self, ino: u32) -> Result<Inode> {
        let superblock = self.fs.superblock();
        Ok(Inode::parse(&self.changed(ino)?.raw, ino, superblock, false)?)
    }

    /// An inode that is in use. Linux ignores changes of those that are not.
    fn in_use(&mut self, ino: u32) -> Result<Option<Inode>> {
        Ok(self.parse(ino).ok().filter(|inode| inode.nlink > 0))
    }

    fn inode(&mut self, ino: u32, new: &[u8]) -> Result<()> {
        let changed = self.changed(ino)?;
        let size = changed.raw.len();
        if new.len() < GOOD_OLD_SIZE || new.len() > size {
            let fault = Fault::Limit {
                field: "the size of a fast commit's inode",
                value: to_u64(new.len()),
                limit: to_u64(size),
            };
            return Err(fault.of(Structure::Journal).in_inode(ino).into());
        }
        let raw = &mut changed.raw;
        raw[..BLOCK].copy_from_slice(&new[..BLOCK]);
        raw[BLOCK_END..new.len()].copy_from_slice(&new[BLOCK_END..]);
        let flags = InodeFlags::from_bits_retain(le32(new, FLAGS));
        if flags.contains(InodeFlags::EXTENTS) {
            if le16(raw, BLOCK) != EXTENT_MAGIC {
                raw[BLOCK..BLOCK_END].copy_from_slice(&no_extents());
            }
        } else if flags.contains(InodeFlags::INLINE_DATA) {
            raw[BLOCK..BLOCK_END].copy_from_slice(&new[BLOCK..BLOCK_END]);
        }
        // Fail if the inode no longer parses.
        self.parse(ino).map(|_| ())
    }

    /// The extents of an inode in use that is mapped by extents.
    fn extents(&mut self, ino: u32) -> Result<Option<&mut BTreeMap<u64, RawExtent>>> {
        let Some(inode) = self.in_use(ino)? else { return Ok(None) };
        if !inode.flags.contains(InodeFlags::EXTENTS) || inode.has_inline_data() {
            return Err(Error::UnsupportedJournal("its fast commits change a file that is not mapped by extents"));
        }
        let Some(room) = EXTENTS_MAX.checked_sub(self.extents).filter(|&room| room > 0) else {
            return Err(Error::UnsupportedJournal("its fast commits change files of more than a million extents"));
        };
        if self.changed(ino)?.extents.is_none() {
            let found = raw_extents(self.fs, &inode, room)?;
            self.extents = self.extents.saturating_add(found.len());
            self.changed(ino)?.extents = Some(found.into_iter().map(|extent| (extent.logical, extent)).collect());
        }
        // A range that is cut out of a longer one leaves two.
        self.extents = self.extents.saturating_add(2);
        Ok(self.changed(ino)?.extents.as_mut())
    }

    fn add_range(&mut self, ino: u32, extent: RawExtent) -> Result<()> {
        if extent.len == 0 || extent.end() > 1 << 32 {
            return Err(field("the length of a fast commit's extent", extent.len));
        }
        self.fs
            .may_have(ino, extent.logical, extent.physical, extent.len)
            .map_err(|fault| fault.of(Structure::Journal).in_inode(ino))?;
        if let Some(extents) = self.extents(ino)? {
            cut(extents, extent.logical, extent.end());
            extents.insert(extent.logical, extent);
        }
        Ok(())
    }

    fn del_range(&mut self, ino: u32, first: u64, len: u64) -> Result<()> {
        if let Some(extents) = self.extents(ino)? {
            cut(extents, first, first.saturating_add(len));
        }
        Ok(())
    }

    fn set_links(&mut self, ino: u32, links: u16) -> Result<()> {
        let changed = self.changed(ino)?;
        changed.raw[LINKS..LINKS_END].copy_from_slice(&links.to_le_bytes());
        if links == 0 {
            // It is free: what uses it next begins with no data.
            changed.extents = Some(BTreeMap::new());
            changed.raw[BLOCK..BLOCK_END].copy_from_slice(&no_extents());
        }
        Ok(())
    }

    fn directory(&mut self, dir: u32) -> Result<&mut Directory> {
        match self.in_use(dir)? {
            Some(inode) if inode.is_dir() && !inode.is_encrypted() => {
                Ok(self.directories.get_mut(&dir).expect("find_names has them all"))
            }
            _ => Err(field("a directory of a fast commit", dir.into())),
        }
    }

    fn link(&mut self, dir: u32, ino: u32, name: &[u8], create: bool) -> Result<()> {
        let Some(inode) = self.in_use(ino)? else { return Ok(()) };
        if create && inode.is_dir() {
            let made = self.directories.entry(ino).or_default();
            *made = Directory { new: true, folds_case: inode.is_casefolded(), names: HashMap::new() };
        }
        let directory = self.directory(dir)?;
        let key = name_key(name, directory.folds_case);
        let slot = directory.names.entry(key).or_default();
        // A name that is already there stays: it was in the last whole transaction.
        if slot.now.is_none() {
            slot.now = Some((ino, name.to_vec()));
            self.set_links(ino, inode.nlink.saturating_add(1))?;
        }
        // The kernel's count, of a new directory too, until the inode comes once more.
        if create { self.set_links(ino, 1) } else { Ok(()) }
    }

    fn unlink(&mut self, dir: u32, ino: u32, name: &[u8]) -> Result<()> {
        let Some(inode) = self.in_use(ino)? else { return Ok(()) };
        let directory = self.directory(dir)?;
        let key = name_key(name, directory.folds_case);
        let slot = directory.names.entry(key).or_default();
        let Some((there, _)) = slot.now else { return Ok(()) };
        // The name may have become another inode's since.
        if there == ino {
            slot.now = None;
        }
        self.set_links(ino, inode.nlink.saturating_sub(1))
    }

    fn finish(mut self) -> Result<Changes> {
        let mut out = Changes::default();
        let filetype = self.fs.superblock().incompat.contains(crate::ext4::Incompat::FILETYPE);
        for (dir, directory) in std::mem::take(&mut self.directories) {
            let mut changes =
                DirChanges { new: directory.new, folds_case: directory.folds_case, ..DirChanges::default() };
            for (key, Name { on_disk, now }) in directory.names {
                if now.as_ref().map(|(ino, _)| *ino) == on_disk {
                    continue;
                }
                if on_disk.is_some() {
                    changes.gone.insert(key);
                }
                if let Some((ino, name)) = now {
                    let file_type = self.parse(ino).ok().map(|inode| inode.file_type).filter(|_| filetype);
                    changes.added.push(DirEntry { ino, name: name.into(), file_type, hash: None });
                }
            }
            changes.added.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            out.directories.insert(dir, Arc::new(changes));
        }
        for (ino, Changed { raw, extents }) in self.inodes {
            out.inodes.insert(ino, raw.into());
            if let Some(extents) = extents {
                out.extents.insert(ino, extents.into_values().collect());
            }
        }
        Ok(out)
    }
}

/// The root of an extent tree without extents.
fn no_extents() -> [u8; 60] {
    let mut root = [0; 60];
    root[..2].copy_from_slice(&EXTENT_MAGIC.to_le_bytes());
    root[4] = 4;
    root
}

/// Takes blocks `start` to `end` of the file out of its extents.
fn cut(extents: &mut BTreeMap<u64, RawExtent>, start: u64, end: u64) {
    let before = extents.range(..start).next_back().map(|(_, extent)| *extent).filter(|extent| extent.end() > start);
    let inside: Vec<RawExtent> = before.into_iter().chain(extents.range(start..end).map(|(_, e)| *e)).collect();
    for extent in inside {
        extents.remove(&extent.logical);
        if let Some(left) = extent.before(start) {
            extents.insert(left.logical, left);
        }
        if extent.end() > end {
            extents.insert(end, extent.without(end.saturating_sub(extent.logical)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_out() {
        let extent = |logical, len, physical| RawExtent { logical, len, physical, unwritten: false };
        let whole: BTreeMap<u64, RawExtent> =
            [extent(0, 10, 100), extent(20, 10, 200)].into_iter().map(|e| (e.logical, e)).collect();
        let without = |start, end| {
            let mut extents = whole.clone();
            cut(&mut extents, start, end);
            extents.into_values().map(|e| (e.logical, e.len, e.physical)).collect::<Vec<_>>()
        };
        assert_eq!(without(3, 5), [(0, 3, 100), (5, 5, 105), (20, 10, 200)]);
        assert_eq!(without(5, 25), [(0, 5, 100), (25, 5, 205)]);
        assert_eq!(without(10, 20), [(0, 10, 100), (20, 10, 200)]);
        assert_eq!(without(0, 1 << 32), []);
        assert_eq!(without(20, 30), [(0, 10, 100)]);
    }
}
