//! Fast commits: what changed since the last whole transaction, as a log of tags, in the last blocks of the journal.
//!
//! Tags and their meanings from the kernel's documentation, `Documentation/filesystems/ext4/journal.rst`; all numbers
//! are little-endian. A tag does not cross blocks. A tail ends each commit with the CRC-32C of all tags since the one
//! before, and takes the rest of its block.

use crate::ext4::bytes::{le16, le32, le32s, to_u64};
use crate::ext4::checksum::crc32c;
use crate::ext4::error::Fault;
use crate::ext4::extent::RawExtent;

const ADD_RANGE: u16 = 1;
const DEL_RANGE: u16 = 2;
const CREAT: u16 = 3;
const LINK: u16 = 4;
const UNLINK: u16 = 5;
const INODE: u16 = 6;
const PAD: u16 = 7;
const TAIL: u16 = 8;
const HEAD: u16 = 9;

/// Bytes of a tag and its length.
const TAG_LEN: usize = 4;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// An inode as it is now, all but where its data is.
    Inode { ino: u32, raw: Vec<u8> },
    /// A run of an inode's blocks is in this place.
    AddRange { ino: u32, extent: RawExtent },
    /// A run of an inode's blocks, from the first, is a hole.
    DelRange { ino: u32, first: u64, len: u64 },
    /// A directory has a name, of an inode that was made for it or that has others.
    Link { dir: u32, ino: u32, name: Vec<u8>, create: bool },
    /// A directory has lost a name.
    Unlink { dir: u32, ino: u32, name: Vec<u8> },
}

/// Gathers the changes of all fast commits that are whole.
#[derive(Debug)]
pub(crate) struct Scan {
    sequence: u32,
    crc: u32,
    verify: bool,
    /// Changes of the commit that has no tail yet.
    open: Vec<Change>,
    started: bool,
    pub(crate) changes: Vec<Change>,
    pub(crate) commits: u32,
}

impl Scan {
    /// For fast commits on top of the transactions before `sequence`.
    pub(crate) fn new(sequence: u32, verify: bool) -> Self {
        Self { sequence, crc: 0, verify, open: Vec::new(), started: false, changes: Vec::new(), commits: 0 }
    }

    /// Takes the next block; false after the last commit. What follows a whole commit may be anything; if not even
    /// the first one is whole, the kernel does not mount the file system.
    pub(crate) fn block(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if !self.started {
            self.started = true;
            if !self.begins(block) {
                return Ok(false);
            }
        }
        match self.tags(block) {
            Ok(go_on) => Ok(go_on),
            Err(_) if self.commits > 0 => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// To be called after the last block.
    pub(crate) fn finish(self, go_on: bool) -> Result<(Vec<Change>, u32), Fault> {
        if go_on && self.started && self.commits == 0 {
            return Err(Fault::Rule("the first fast commit has no end"));
        }
        Ok((self.changes, self.commits))
    }

    /// Whether the first block starts with a head that is on top of the right transaction.
    fn begins(&self, block: &[u8]) -> bool {
        block.len() >= 12 && le16(block, 0) == HEAD && le16(block, 2) >= 8 && le32(block, 8) == self.sequence
    }

    fn tags(&mut self, block: &[u8]) -> Result<bool, Fault> {
        let mut rest = block;
        while let Some((head, values)) = rest.split_at_checked(TAG_LEN) {
            let (tag, len) = (le16(head, 0), usize::from(le16(head, 2)));
            let Some((value, after)) = values.split_at_checked(len) else {
                let limit = to_u64(values.len());
                return Err(Fault::Limit { field: "the length of a tag", value: to_u64(len), limit });
            };
            rest = after;
            if tag == TAIL {
                self.tail(head, value)?;
                continue;
            }
            self.crc = crc32c(crc32c(self.crc, head), value);
            match tag {
                PAD => {}
                HEAD => {
                    let [features, sequence] = words(value)?;
                    if features != 0 {
                        return Err(Fault::Field { field: "the features of fast commits", value: features.into() });
                    }
                    if sequence != self.sequence {
                        return Err(Fault::Field { field: "a head's transaction", value: sequence.into() });
                    }
                }
                _ => self.open.push(change(tag, value)?),
            }
        }
        Ok(true)
    }

    fn tail(&mut self, head: &[u8], value: &[u8]) -> Result<(), Fault> {
        let [sequence, found] = words(value)?;
        let wanted = crc32c(crc32c(self.crc, head), &value[..4]);
        if sequence != self.sequence {
            return Err(Fault::Field { field: "a tail's transaction", value: sequence.into() });
        }
        if self.verify && found != wanted {
            return Err(Fault::Checksum { found, wanted });
        }
        self.crc = 0;
        self.commits = self.commits.saturating_add(1);
        self.changes.append(&mut self.open);
        Ok(())
    }
}

/// The first `N` words of a value.
fn words<const N: usize>(value: &[u8]) -> Result<[u32; N], Fault> {
    let needed = N.saturating_mul(4);
    if value.len() < needed {
        return Err(Fault::Truncated { len: value.len(), needed });
    }
    let mut out = [0; N];
    out.iter_mut().zip(le32s(value)).for_each(|(word, found)| *word = found);
    Ok(out)
}

fn change(tag: u16, value: &[u8]) -> Result<Change, Fault> {
    match tag {
        ADD_RANGE => {
            // The inode, then an entry as in a leaf of an extent tree.
            let [ino, _, _, _] = words(value)?;
            Ok(Change::AddRange { ino, extent: RawExtent::parse(&value[4..]) })
        }
        DEL_RANGE => {
            let [ino, first, len] = words(value)?;
            Ok(Change::DelRange { ino, first: first.into(), len: len.into() })
        }
        CREAT | LINK | UNLINK => {
            let [dir, ino] = words(value)?;
            let name = value[8..].to_vec();
            if name.is_empty() || name.len() > 255 {
                return Err(Fault::Limit { field: "the name's length", value: to_u64(name.len()), limit: 255 });
            }
            Ok(match tag {
                UNLINK => Change::Unlink { dir, ino, name },
                _ => Change::Link { dir, ino, name, create: tag == CREAT },
            })
        }
        INODE => {
            let [ino] = words(value)?;
            Ok(Change::Inode { ino, raw: value[4..].to_vec() })
        }
        _ => Err(Fault::Field { field: "a tag of a fast commit", value: tag.into() }),
    }
}
