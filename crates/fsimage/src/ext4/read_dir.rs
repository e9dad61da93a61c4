//! Going through a directory's entries, whatever the directory is made of.

use std::sync::Arc;

use super::changes::DirChanges;
use super::directory::{DirEntry, DirFormat, entry_at, own_dots, verify_leaf};
use super::error::{Error, Fault, Result, Structure};
use super::features::Incompat;
use super::filesystem::Ext4;
use super::htree;
use super::inline_data::inline_entries;
use super::inode::{Inode, InodeFlags};
use super::map::{Extent, ExtentKind, Extents};

/// A directory's entries in the order they lie on disk, raw, without its own `.` and `..`: the first entry of the first
/// block, where it leads to the directory itself, and the second. Any other entry of such a name comes as it is: Linux
/// makes none, so it is for the caller to refuse.
///
/// An error concerns one block (or the rest of the map, after which nothing more comes); the next call goes on behind
/// it.
#[derive(Debug)]
pub struct ReadDir {
    fs: Ext4,
    ino: u32,
    indexed: bool,
    checksum_seed: u32,
    format: DirFormat,
    blocks: Blocks,
    /// The block being read and the position of its next entry.
    current: Option<(Vec<u8>, usize)>,
    /// Where that block starts, and where the one behind it does.
    start: u64,
    after: u64,
    /// Blocks read; a directory can't have more than the file system.
    read: u64,
    /// What fast commits have made of it, and how many of the names that they added have come.
    changes: Option<Arc<DirChanges>>,
    added: usize,
}

#[derive(Debug)]
enum Blocks {
    Inline(std::vec::IntoIter<Vec<u8>>),
    Mapped { extents: Box<Extents>, extent: Option<Extent> },
    End,
}

/// A place in a directory, to go on from later without keeping anything open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Position {
    /// Byte of the directory where the block starts; the part's index for inline entries; `ADDED` behind them all.
    block: u64,
    /// Byte within the block; the index of an added name.
    at: usize,
}

/// The place of names that fast commits added.
const ADDED: u64 = u64::MAX;

impl ReadDir {
    pub(crate) fn new(fs: &Ext4, inode: &Inode) -> Result<Self> {
        Self::from(fs, inode, Position::default())
    }

    pub(crate) fn from(fs: &Ext4, inode: &Inode, position: Position) -> Result<Self> {
        if !inode.is_dir() {
            return Err(Error::WrongKind { ino: inode.ino, wanted: "directory" });
        }
        let changes = fs.changed_directory(inode.ino).cloned();
        let blocks = if position.block == ADDED || changes.as_ref().is_some_and(|changes| changes.new) {
            Blocks::End
        } else if inode.has_inline_data() {
            let mut parts = Vec::from(inline_entries(fs, inode)?);
            parts.drain(..(position.block as usize).min(parts.len()));
            Blocks::Inline(parts.into_iter())
        } else {
            Blocks::Mapped { extents: Box::new(fs.extents_from(inode, position.block)), extent: None }
        };
        let mut dir = Self {
            fs: fs.clone(),
            ino: inode.ino,
            indexed: inode.flags.contains(InodeFlags::INDEX),
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
            // A block that was good a moment ago; if it is not any more, its error comes with the next entry.
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

    /// Where the next entry is.
    pub(crate) fn position(&self) -> Position {
        match &self.current {
            _ if self.added > 0 => Position { block: ADDED, at: self.added },
            Some((_, at)) => Position { block: self.start, at: *at },
            None => Position { block: self.after, at: 0 },
        }
    }

    fn block_size(&self) -> u64 {
        self.fs.superblock().block_size.into()
    }

    fn next_block(&mut self) -> Option<Result<Vec<u8>>> {
        let block_size = self.block_size();
        let (block, first) = match &mut self.blocks {
            Blocks::Inline(parts) => {
                self.start = self.after;
                self.after += 1;
                return parts.next().map(Ok);
            }
            Blocks::End => return None,
            Blocks::Mapped { extents, extent } => loop {
                match extent {
                    // A hole is skipped, as Linux does.
                    Some(e) if e.kind == ExtentKind::Written && e.len > 0 => {
                        let (logical, physical) = (e.logical, e.physical);
                        e.logical += block_size;
                        e.physical += block_size;
                        e.len -= block_size;
                        (self.start, self.after) = (logical, e.logical);
                        break (physical / block_size, logical == 0);
                    }
                    _ => match extents.next()? {
                        Ok(next) => *extent = Some(next),
                        Err(error) => return Some(Err(error)),
                    },
                }
            },
        };
        self.read += 1;
        if self.read > self.fs.superblock().blocks_count {
            self.blocks = Blocks::End;
            let fault = Fault::Rule("more blocks than the file system has");
            return Some(Err(fault.of(Structure::Directory).in_inode(self.ino).into()));
        }
        Some(self.load(block, first))
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
            if *at >= block.len() {
                self.current = None;
                continue;
            }
            match entry_at(block, *at, self.format) {
                Ok((next, entry)) => {
                    // Inline entries have no `.` and `..` of their own.
                    let first_block = self.start == 0 && !matches!(self.blocks, Blocks::Inline(_));
                    let own = first_block && own_dots(block, *at, self.ino);
                    *at = next;
                    match entry {
                        Some(entry) if !own => return Some(Ok(entry)),
                        _ => {}
                    }
                }
                Err(fault) => {
                    self.current = None;
                    return Some(Err(fault.of(Structure::Directory).in_inode(self.ino).into()));
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
                    self.added += 1;
                    return Some(Ok(entry));
                }
            }
        }
    }
}
