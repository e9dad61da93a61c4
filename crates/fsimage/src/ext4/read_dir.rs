//! Reads a directory's entries, in any of its formats.

use std::sync::Arc;

use super::bytes::to_u64;
use super::changes::DirChanges;
use super::dir_index::DirIndex;
use super::directory::{DirEntry, DirFormat, Slot, own_dots, slot_at, verify_leaf};
use super::error::{Error, Fault, Result, Structure};
use super::features::{Compat, Incompat};
use super::filesystem::Ext4;
use super::htree::{self, parse_htree_root};
use super::inode::{Inode, InodeFlags};
use super::map::{Extent, ExtentKind, Extents};

/// A directory's entries in the order on disk, raw, without its own `.` and `..`: the first entry of the first
/// block, if it leads to the directory itself, and the second. Any other entry of such a name comes as it is: Linux
/// makes none, so the caller should refuse it.
///
/// An error concerns one entry, one block, a run of missing blocks, or the rest of the map, which is the end; the next
/// call continues after it.
#[derive(Debug)]
pub struct ReadDir {
    fs: Ext4,
    ino: u32,
    /// The directory's size in bytes: entries past it do not count.
    size: u64,
    indexed: bool,
    /// Where names are expected.
    index: Option<Arc<DirIndex>>,
    checksum_seed: u32,
    format: DirFormat,
    blocks: Blocks,
    /// The block being read and the position of its next entry.
    current: Option<(Vec<u8>, usize)>,
    /// Where that block starts, and where the next one does.
    start: u64,
    after: u64,
    /// Blocks read; a directory can't have more than the file system.
    read: u64,
    /// Changes by fast commits, and how many of the added names were returned.
    changes: Option<Arc<DirChanges>>,
    added: usize,
}

#[derive(Debug)]
enum Blocks {
    Inline(std::vec::IntoIter<Vec<u8>>),
    Mapped { extents: Box<Extents>, extent: Option<Extent> },
    End,
}

/// A place in a directory, to continue from later without keeping anything open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Position {
    /// Byte of the directory where the block starts; the part's index for inline entries; `ADDED` after them all.
    block: u64,
    /// Byte within the block; the index of an added name.
    at: usize,
}

/// The place of names that fast commits added.
const ADDED: u64 = u64::MAX;

impl Ext4 {
    /// A directory's entries, raw, without `.` and `..`.
    pub fn read_dir(&self, inode: &Inode) -> Result<ReadDir> {
        ReadDir::starting_at(self, inode, Position::default(), None)
    }

    /// The entry whose name, as it is on disk, is `name`.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<DirEntry> {
        let mut broken = None;
        for entry in self.read_dir(dir)? {
            match entry {
                Ok(entry) if *entry.name == *name => return Ok(entry),
                Ok(_) => {}
                Err(error) => broken = broken.or(Some(error)),
            }
        }
        // The name may be in the part that cannot be read.
        Err(broken.unwrap_or_else(|| Error::NotFound { dir: dir.ino, name: name.to_vec() }))
    }

    /// The inode at `path`, whose names are as they are on disk, from the root; symbolic links are not followed.
    pub fn resolve(&self, path: &[u8]) -> Result<Inode> {
        let mut inode = self.root()?;
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            inode = self.inode(self.lookup(&inode, name)?.ino)?;
        }
        Ok(inode)
    }
}

impl ReadDir {
    /// `index` is what [`ReadDir::index`] gave before.
    pub(crate) fn starting_at(
        fs: &Ext4,
        inode: &Inode,
        position: Position,
        index: Option<Arc<DirIndex>>,
    ) -> Result<Self> {
        if !inode.is_dir() {
            return Err(Error::WrongKind { ino: inode.ino, wanted: "directory" });
        }
        let changes = fs.changed_directory(inode.ino).cloned();
        let blocks = if position.block == ADDED || changes.as_ref().is_some_and(|changes| changes.new) {
            Blocks::End
        } else if inode.has_inline_data() {
            let mut parts = Vec::from(fs.inline_entries(inode)?).into_iter();
            (0..position.block.min(2)).for_each(|_| drop(parts.next()));
            Blocks::Inline(parts)
        } else {
            Blocks::Mapped { extents: Box::new(fs.extents_from(inode, position.block)), extent: None }
        };
        let mut dir = Self {
            fs: fs.clone(),
            ino: inode.ino,
            size: inode.size,
            indexed: inode.flags.contains(InodeFlags::INDEX) && fs.superblock().compat.contains(Compat::DIR_INDEX),
            index: match changes {
                // Fast commits add names without an index.
                Some(_) => None,
                None => index.or_else(|| DirIndex::read(fs, inode).map(Arc::new)),
            },
            checksum_seed: inode.checksum_seed,
            format: DirFormat {
                filetype: fs.superblock().incompat.contains(Incompat::FILETYPE),
                hashes: inode.is_encrypted() && inode.is_casefolded(),
            },
            blocks,
            current: None,
            start: position.block,
            after: position.block,
            read: 0,
            changes,
            added: if position.block == ADDED { position.at } else { 0 },
        };
        if position.at > 0 && position.block != ADDED {
            // The block was good a moment ago. If it no longer is, that is an error here.
            if let Some(block) = dir.next_block().transpose()? {
                dir.current = Some((block, position.at));
            }
        }
        Ok(dir)
    }

    /// Blocks read so far.
    pub(crate) fn blocks_read(&self) -> u64 {
        self.read
    }

    /// Where names are expected, to be used again in the same directory.
    pub(crate) fn index(&self) -> Option<Arc<DirIndex>> {
        self.index.clone()
    }

    /// Where the next entry is.
    pub(crate) fn position(&self) -> Position {
        match &self.current {
            _ if self.added > 0 => Position { block: ADDED, at: self.added },
            Some((_, at)) => Position { block: self.start, at: *at },
            None => Position { block: self.after, at: 0 },
        }
    }

    fn corrupt(&self, fault: Fault) -> Error {
        fault.of(Structure::Directory).in_inode(self.ino).into()
    }

    fn next_block(&mut self) -> Option<Result<Vec<u8>>> {
        let block_size = self.fs.block_size();
        let next = match &mut self.blocks {
            Blocks::Inline(parts) => {
                self.start = self.after;
                self.after = self.after.saturating_add(1);
                return parts.next().map(Ok);
            }
            Blocks::End => return None,
            Blocks::Mapped { extents, extent } => match extent.take().filter(|rest| rest.len > 0) {
                Some(rest) => rest,
                None => match extents.next()? {
                    Ok(next) => next,
                    Err(error) => return Some(Err(error)),
                },
            },
        };
        if next.logical >= self.size {
            self.blocks = Blocks::End;
            return None;
        }
        if next.kind == ExtentKind::Hole {
            self.after = next.end();
            return Some(Err(self.corrupt(Fault::Rule("blocks are missing"))));
        }
        // Blocks that are marked as not written are read like others, as Linux does.
        let (logical, physical) = (next.logical, next.physical);
        if let Blocks::Mapped { extent, .. } = &mut self.blocks {
            *extent = Some(next.without(block_size));
        }
        (self.start, self.after) = (logical, logical.saturating_add(block_size));
        self.read = self.read.saturating_add(1);
        if self.read > self.fs.superblock().blocks_count {
            self.blocks = Blocks::End;
            return Some(Err(self.corrupt(Fault::Rule("more blocks than the file system has"))));
        }
        Some(self.load(physical.checked_div(block_size).unwrap_or(0), logical == 0))
    }

    fn load(&self, block: u64, first: bool) -> Result<Vec<u8>> {
        let bytes = self.fs.block(block)?;
        if self.fs.verifies_checksums() {
            let is_index = self.indexed && (first || htree::is_node(&bytes));
            let (structure, result) = if is_index {
                (Structure::Htree, htree::verify(&bytes, first, self.checksum_seed))
            } else {
                (Structure::Directory, verify_leaf(&bytes, self.checksum_seed))
            };
            result.map_err(|fault| fault.of(structure).in_inode(self.ino).in_block(block))?;
        }
        Ok(bytes.to_vec())
    }
}

impl ReadDir {
    /// The next entry on disk.
    fn next_on_disk(&mut self) -> Option<Result<DirEntry>> {
        loop {
            let Some((block, at)) = &mut self.current else {
                match self.next_block()? {
                    Ok(block) => self.current = Some((block, 0)),
                    Err(error) => return Some(Err(error)),
                }
                continue;
            };
            let inline = matches!(self.blocks, Blocks::Inline(_));
            let past_end = !inline && self.start.saturating_add(to_u64(*at)) >= self.size;
            if *at >= block.len() || past_end {
                self.current = None;
                continue;
            }
            match slot_at(block, *at, self.format) {
                Ok((next, slot)) => {
                    // Inline entries have no `.` and `..` of their own.
                    let own = !inline && self.start == 0 && own_dots(block, *at, self.ino);
                    // After them the root of an index has no entries.
                    let root = own && *at > 0 && self.indexed && parse_htree_root(block).is_some();
                    *at = if root { block.len() } else { next };
                    match slot {
                        Slot::Entry(entry) if !own => {
                            // Linux refuses such an entry as a whole: it does not even list the name.
                            let last = self.fs.superblock().inodes_count;
                            if entry.ino > last {
                                let (value, last) = (entry.ino.into(), last.into());
                                let fault = Fault::Range { field: "an inode number", value, first: 1, last };
                                return Some(Err(self.corrupt(fault)));
                            }
                            let block = self.start.checked_div(self.fs.block_size()).unwrap_or(0);
                            if self.index.as_ref().is_some_and(|index| !index.expects(&entry.name, block)) {
                                let fault = Fault::Rule("a name is not where the index of the directory expects it");
                                return Some(Err(self.corrupt(fault)));
                            }
                            return Some(Ok(entry));
                        }
                        Slot::Nameless => return Some(Err(self.corrupt(Fault::Rule("an entry has no name")))),
                        Slot::Entry(_) | Slot::Unused => {}
                    }
                }
                Err(fault) => {
                    self.current = None;
                    return Some(Err(self.corrupt(fault)));
                }
            }
        }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = self.next_on_disk();
            let Some(changes) = &self.changes else { return entry };
            match entry {
                Some(Ok(entry)) if !changes.keeps(&entry.name) => {}
                Some(entry) => return Some(entry),
                None => {
                    let entry = changes.added.get(self.added).cloned()?;
                    self.added = self.added.saturating_add(1);
                    return Some(Ok(entry));
                }
            }
        }
    }
}
