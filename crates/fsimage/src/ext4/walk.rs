//! Walking a tree, in bounded time and memory whatever the image holds.

use std::collections::HashSet;
use std::sync::Arc;

use super::dir_index::DirIndex;
use super::directory::DirEntry;
use super::error::{Error, Fault, Result, Structure};
use super::filesystem::Ext4;
use super::inode::Inode;
use super::read_dir::{Position, ReadDir};

/// One step of a walk.
#[derive(Debug)]
#[non_exhaustive]
pub struct Visit {
    /// The depth: 0 for the entries of the directory that the walk began with. A caller that keeps a path cuts it to
    /// this length before it appends the name.
    pub depth: usize,
    /// The directory's inode number.
    pub dir: u32,
    /// The entry; nothing if a block of the directory, or all of it, could not be read.
    pub entry: Option<DirEntry>,
    /// Its inode, or why there is none; without an entry, what is wrong with the directory.
    pub inode: Result<Inode>,
}

/// A walk, depth first: each directory comes before what is in it. Nothing is followed or decrypted. A corrupt part is
/// reported and left out, and the walk continues. No directory is entered twice.
#[derive(Debug)]
pub struct Walk {
    fs: Ext4,
    open: Option<ReadDir>,
    stack: Vec<Frame>,
    /// The directory to enter next.
    enter: Option<u32>,
    seen: HashSet<u32>,
    /// Directory blocks that may still be read: all directories together can't have more than the file system.
    blocks_left: u64,
    counted: u64,
}

#[derive(Debug)]
struct Frame {
    dir: u32,
    resume: Position,
    /// The directory's index, of the outermost ones: those of a hostile chain of directories would fill the memory.
    index: Option<Arc<DirIndex>>,
}

/// How many directories keep their index while the walk is in what is below them.
const INDEXES_KEPT: usize = 8;

impl Ext4 {
    /// Walks the tree below the directory `dir`, depth first.
    pub fn walk(&self, dir: u32) -> Walk {
        Walk::new(self, dir)
    }
}

impl Walk {
    fn new(fs: &Ext4, dir: u32) -> Self {
        Self {
            fs: fs.clone(),
            open: None,
            stack: Vec::new(),
            enter: Some(dir),
            seen: HashSet::from([dir]),
            blocks_left: fs.usable_blocks(),
            counted: 0,
        }
    }

    /// Skips what is in the directory that was visited last.
    pub fn skip_dir(&mut self) {
        self.enter = None;
    }

    fn count(&mut self) -> Result<(), Error> {
        let read = self.open.as_ref().map_or(0, ReadDir::blocks_read);
        self.blocks_left = self.blocks_left.checked_sub(read.saturating_sub(self.counted)).ok_or_else(|| {
            let fault = Fault::Rule("the directories together have more blocks than the file system");
            Error::from(fault.of(Structure::Directory))
        })?;
        self.counted = read;
        Ok(())
    }

    /// Opens the directory on top of the stack, at the place where reading it stopped.
    fn open_top(&mut self) -> Result<()> {
        let Some(frame) = self.stack.last() else { return Ok(()) };
        self.counted = 0;
        let inode = self.fs.inode(frame.dir)?;
        self.open = Some(ReadDir::starting_at(&self.fs, &inode, frame.resume, frame.index.clone())?);
        // The block that reading continues in was counted before.
        self.counted = self.open.as_ref().map_or(0, ReadDir::blocks_read);
        Ok(())
    }

    fn broken(&mut self, dir: u32, error: Error) -> Visit {
        self.open = None;
        self.stack.pop();
        Visit { depth: self.stack.len(), dir, entry: None, inode: Err(error) }
    }
}

impl Iterator for Walk {
    type Item = Visit;

    fn next(&mut self) -> Option<Visit> {
        if let Some(dir) = self.enter.take() {
            let keeps = self.stack.len() <= INDEXES_KEPT;
            if let (Some(open), Some(frame)) = (&self.open, self.stack.last_mut()) {
                frame.resume = open.position();
                frame.index = open.index().filter(|_| keeps);
            }
            self.open = None;
            self.stack.push(Frame { dir, resume: Position::default(), index: None });
        }
        loop {
            let dir = self.stack.last()?.dir;
            if self.open.is_none()
                && let Err(error) = self.open_top()
            {
                return Some(self.broken(dir, error));
            }
            let next = self.open.as_mut().and_then(Iterator::next);
            if let Err(error) = self.count() {
                // No directory can be trusted any more.
                let depth = self.stack.len().saturating_sub(1);
                self.stack.clear();
                return Some(Visit { depth, dir, entry: None, inode: Err(error) });
            }
            let depth = self.stack.len().saturating_sub(1);
            let entry = match next {
                None => {
                    self.open = None;
                    self.stack.pop();
                    continue;
                }
                Some(Err(error)) => return Some(Visit { depth, dir, entry: None, inode: Err(error) }),
                Some(Ok(entry)) => entry,
            };
            let mut inode = self.fs.inode(entry.ino);
            if let Ok(found) = &inode
                && found.is_dir()
            {
                if self.seen.insert(found.ino) {
                    self.enter = Some(found.ino);
                } else {
                    let fault = Fault::Rule("the directory is in two places of the tree");
                    inode = Err(fault.of(Structure::Directory).in_inode(found.ino).into());
                }
            }
            return Some(Visit { depth, dir, entry: Some(entry), inode });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::filesystem::ROOT_INO;
    use super::super::fuzz::{BLOCK, INODE_TABLE, template};
    use super::super::load::{JournalPolicy, Options};
    use super::*;

    /// Six directories that all map the same 50 blocks: a file system of 112 blocks cannot have 300 directory blocks.
    #[test]
    fn directories_that_share_their_blocks_end_the_walk() {
        let mut image = template();
        for ino in 11..=16usize {
            let entry = 8 * BLOCK + 24 + (ino - 11) * 16;
            image[entry..entry + 12].copy_from_slice(&[ino as u8, 0, 0, 0, 16, 0, 2, 2, b'd', ino as u8, 0, 0]);
            let root = INODE_TABLE * BLOCK + (ROOT_INO as usize - 1) * 128;
            let at = INODE_TABLE * BLOCK + (ino - 1) * 128;
            image.copy_within(root..root + 128, at);
            image[at + 4..at + 8].copy_from_slice(&(50 * BLOCK as u32).to_le_bytes());
            image[at + 0x38] = 50;
            image[at + 0x3c] = 10;
        }
        // `..` no longer takes the rest of the block; the last entry does.
        image[8 * BLOCK + 16..8 * BLOCK + 18].copy_from_slice(&12u16.to_le_bytes());
        let last = 8 * BLOCK + 24 + 5 * 16;
        image[last + 4..last + 6].copy_from_slice(&((BLOCK - 24 - 5 * 16) as u16).to_le_bytes());
        // Blocks 10 to 59 are one unused entry each.
        for block in 10..60 {
            image[block * BLOCK + 4..block * BLOCK + 6].copy_from_slice(&(BLOCK as u16).to_le_bytes());
        }
        let options = Options { journal: JournalPolicy::Ignore, ..Options::default() };
        let fs = Ext4::load_with(Arc::new(image), options).unwrap();
        let visits: Vec<Visit> = fs.walk(ROOT_INO).collect();
        let last = visits.last().unwrap();
        assert!(visits.len() < 6 && last.entry.is_none());
        let error = last.inode.as_ref().unwrap_err().to_string();
        assert!(error.contains("together have more blocks"), "{error}");
        // One of them alone is sound.
        assert_eq!(fs.walk(11).count(), 0);
    }
}
