//! One regular file: read through the engine, written under another name, and named when it is whole.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use postread::Plan;
use postread::image::ImageError;
use postread_fsimage::ext4::{ExtentKind, Inode};
use postread_io::BlockStatus;
use postread_verity::{FileDigest, NoTree, TreeBuilder};
use rustix::fs::{Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use super::saved_file::{SavedError, SavedFile};
use super::{Attributes, Extraction, beneath, last_name};
use crate::exit::Outcome;
use crate::image::outcome_of as image_outcome;
use crate::text::{bytes_for_stderr, complain};
use crate::verity_target::outcome_of;
use postread::Progress as _;

/// Bytes hashed at once of what is there already.
const HASH_STEP: usize = 1 << 20;

/// A file that waits for a thread.
pub(super) struct FileJob {
    pub(super) path: Vec<u8>,
    pub(super) dir: Arc<OwnedFd>,
    pub(super) ino: u32,
    pub(super) size: u64,
    pub(super) from: From,
    pub(super) attributes: Attributes,
}

/// Where a file's bytes come from.
pub(crate) enum From {
    /// An inode of the image, and the trusted digest of one of its names.
    Inode { inode: Box<Inode>, digest: Option<FileDigest> },
    /// Saved ciphertext, and which ranges of the plaintext hold data.
    Saved { saved: SavedFile, plan: Plan, data: Vec<Range<u64>>, block_size: u64 },
}

/// How a file is read.
struct Reading {
    plan: Plan,
    /// What is not a hole, in order.
    data: Vec<Range<u64>>,
    /// Whether holes are read too, as their zeros are verified.
    read_holes: bool,
    block_size: u64,
    trust: Trust,
}

/// What a file's contents were held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// A digest that the caller gave.
    Verified,
    /// Its own fs-verity metadata.
    SelfConsistent,
    /// Nothing.
    Copied,
}

#[derive(Debug, thiserror::Error)]
enum JobError {
    #[error(transparent)]
    Plan(#[from] ImageError),
    #[error("{0}")]
    Output(#[from] io::Error),
    #[error(transparent)]
    Saved(#[from] SavedError),
    /// No ext4 file is so long.
    #[error("its size is {0} bytes")]
    Size(u64),
    #[error("at byte {offset}: {status}")]
    Block { offset: u64, status: Box<BlockStatus> },
    #[error("hashing what is there already: {0}")]
    Hash(String),
}

impl JobError {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Plan(error) => image_outcome(error),
            Self::Output(_) => Outcome::Environment,
            Self::Saved(error) => error.outcome(),
            Self::Size(_) | Self::Hash(_) => Outcome::Usage,
            Self::Block { status, .. } => outcome_of(status),
        }
    }
}

impl From {
    fn read(self, extraction: &Extraction<'_>) -> Result<Reading, JobError> {
        let (inode, trusted) = match self {
            Self::Saved { saved, plan, data, block_size } => {
                saved.check()?;
                return Ok(Reading { plan, data, read_holes: false, block_size, trust: Trust::Copied });
            }
            Self::Inode { inode, digest } => (inode, digest),
        };
        let image = extraction.image.expect("a file of an image comes with it");
        if trusted.is_none() && inode.is_verity() && extraction.settings.require_digests {
            return Err(ImageError::NotListed.into());
        }
        let plan = image.read_plan(&inode, trusted.as_ref())?;
        let trust = match trusted {
            Some(_) => Trust::Verified,
            None if inode.is_verity() => Trust::SelfConsistent,
            None => Trust::Copied,
        };
        let mut data = Vec::new();
        if inode.has_inline_data() {
            data.push(0..inode.size);
        } else {
            for extent in image.fs().extents_from(&inode, 0) {
                let extent = extent.map_err(ImageError::from)?;
                let range = extent.logical..extent.end().min(inode.size);
                if extent.kind == ExtentKind::Written && !range.is_empty() {
                    data.push(range);
                }
            }
        }
        let block_size = image.fs().superblock().block_size.into();
        Ok(Reading { plan, data, read_holes: inode.is_verity(), block_size, trust })
    }
}

impl Extraction<'_> {
    /// Writes a file, and tells how that went.
    pub(super) fn file(&self, job: FileJob) {
        let name = last_name(&job.path);
        if job.attributes.is_there(job.dir.as_fd(), name, job.size) {
            match self.is_still_good(&job, name) {
                Ok(Some(verified)) => {
                    let mut shared = self.shared();
                    shared.counts.already_there += 1;
                    shared.counts.verified += u64::from(verified);
                    if verified {
                        shared.held.insert(job.ino, true);
                    }
                    shared.counts.left_out += job.attributes.left_out(self.allowed);
                    return;
                }
                Ok(None) => {
                    let path = bytes_for_stderr(&job.path);
                    complain(format_args!("{path}: what was there has another digest: replaced"));
                    self.shared().counts.replaced += 1;
                }
                Err(error) => {
                    self.shared().held.insert(job.ino, false);
                    return self.failed(&job.path, &error, error.outcome());
                }
            }
        }
        let tag = job.ino.to_string();
        let (path, ino) = (job.path.clone(), job.ino);
        let written = self.write_file(job, &tag);
        if let Some(verified) = written.as_ref().map_or(Some(false), |held| *held) {
            self.shared().held.insert(ino, verified);
        }
        if let Err(error) = written {
            self.failed(&path, &error, error.outcome());
        }
        self.settings.progress.file_done();
    }

    /// Whether what is there already, of the right size and time, is to be left there. With a digest that the caller
    /// gave it is hashed; true where it has that digest.
    fn is_still_good(&self, job: &FileJob, name: &[u8]) -> Result<Option<bool>, JobError> {
        let From::Inode { inode, digest } = &job.from else { return Ok(Some(false)) };
        let Some(wanted) = digest else {
            return match self.settings.require_digests && inode.is_verity() {
                true => Err(ImageError::NotListed.into()),
                false => Ok(Some(false)),
            };
        };
        let image = self.image.expect("a file of an image comes with it");
        let verity = image.verity(inode)?.ok_or_else(|| ImageError::NoVerity { wanted: Box::new(*wanted) })?;
        let verity = verity.trust(wanted)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file: File = rustix::fs::openat(&job.dir, name, flags, Mode::empty()).map_err(io::Error::from)?.into();
        let hash = |error: &dyn std::fmt::Display| JobError::Hash(error.to_string());
        let mut builder = TreeBuilder::new(*verity.descriptor().params(), NoTree);
        let mut buf = vec![0; HASH_STEP.min(job.size as usize)];
        let mut at = 0;
        while at < job.size {
            let n = (job.size - at).min(HASH_STEP as u64) as usize;
            file.read_exact_at(&mut buf[..n], at)?;
            builder.push(&buf[..n]).map_err(|error| hash(&error))?;
            at += n as u64;
        }
        let (tree, _) = builder.finish().map_err(|error| hash(&error))?;
        Ok((tree.descriptor().file_digest() == *wanted).then_some(true))
    }

    /// Whether it was verified against a digest that the caller gave; none where there is none for it.
    fn write_file(&self, job: FileJob, tag: &str) -> Result<Option<bool>, JobError> {
        let FileJob { path, dir, size, from, attributes, .. } = job;
        let reading = from.read(self)?;
        // Block numbers within a file have 32 bits.
        if size > reading.block_size << 32 {
            return Err(JobError::Size(size));
        }
        let (file, unfinished) = self.top.begin(tag)?;
        file.set_len(size)?;
        // What is there is not whole as far as its time tells; parts of it may be good that no longer come out.
        let old = match self.settings.keep_going {
            true => beneath::open_file(dir.as_fd(), last_name(&path)).ok().flatten(),
            false => None,
        };
        let old = old.filter(|old| old.metadata().is_ok_and(|found| found.len() == size));
        let Bad { new, old } = self.copy(&path, &reading, size, &file, old.as_ref())?;
        if let Some(old) = old.filter(|old| *old < new) {
            let path = bytes_for_stderr(&path);
            complain(format_args!(
                "{path}: {new} bytes of it are bad, and of the file that is there {old}: that is kept"
            ));
            self.shared().counts.already_there += 1;
            return Ok(Some(false));
        }
        let damaged = new > 0;
        self.attributes_put(|| path.clone(), attributes.put(file.as_fd(), self.allowed));
        if damaged {
            // It keeps the time at which it was written: a later run does not take it for whole, and tries again.
            let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let times = Timestamps { last_access: omit, last_modification: now };
            rustix::fs::futimens(&file, &times).map_err(io::Error::from)?;
        }
        unfinished.finish(dir.as_fd(), last_name(&path))?;
        let mut shared = self.shared();
        shared.counts.files += 1;
        shared.counts.bytes += size;
        let count = match reading.trust {
            _ if damaged => &mut shared.counts.damaged,
            Trust::Verified => &mut shared.counts.verified,
            Trust::SelfConsistent => &mut shared.counts.self_consistent,
            Trust::Copied => &mut shared.counts.copied,
        };
        *count += 1;
        Ok((reading.trust == Trust::Verified || damaged).then_some(!damaged))
    }

    /// Copies what is not a hole, and tells what is missing.
    fn copy(&self, path: &[u8], reading: &Reading, size: u64, out: &File, old: Option<&File>) -> Result<Bad, JobError> {
        let mut bad_bytes = Bad { new: 0, old: old.map(|_| 0) };
        let reader = self.settings.engine.open(reading.plan.clone()).reader();
        let whole = std::iter::once(0..size).collect::<Vec<_>>();
        let ranges = if reading.read_holes { &whole } else { &reading.data };
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let want = usize::try_from(range.end - at).unwrap_or(usize::MAX);
                match reader.lend(at, want) {
                    Ok(None) => break,
                    Ok(Some(lent)) => {
                        for part in overlaps(&reading.data, at..at + lent.len() as u64) {
                            let bytes = &lent[(part.start - at) as usize..(part.end - at) as usize];
                            out.write_all_at(bytes, part.start)?;
                            if let (Some(file), Some(bad)) = (old, &mut bad_bytes.old) {
                                *bad += differing(file, bytes, part.start, reading.block_size);
                            }
                        }
                        at += lent.len() as u64;
                        self.settings.progress.advance(lent.len() as u64);
                    }
                    Err(error) => {
                        let bad = JobError::Block { offset: error.offset, status: Box::new(error.status) };
                        if !self.settings.keep_going {
                            return Err(bad);
                        }
                        // The good parts are kept, with a hole where this block was.
                        self.failed(path, &bad, bad.outcome());
                        let next = (at - at % reading.block_size).saturating_add(reading.block_size);
                        let missing = next.min(size).saturating_sub(at).max(1);
                        bad_bytes.new += missing;
                        if let (Some(file), Some(bad)) = (old, &mut bad_bytes.old) {
                            *bad += missing * u64::from(!holds_any(file, at, missing));
                        }
                        at = next;
                    }
                }
            }
        }
        Ok(bad_bytes)
    }
}

/// Bytes that are bad in what was read, and, as far as can be told, in the file of the same size that is there.
struct Bad {
    new: u64,
    old: Option<u64>,
}

/// The bytes of the blocks in which a file is not what it should be.
fn differing(file: &File, wanted: &[u8], at: u64, block_size: u64) -> u64 {
    let mut found = vec![0; wanted.len()];
    if file.read_exact_at(&mut found, at).is_err() {
        return wanted.len() as u64;
    }
    let step = block_size.max(1) as usize;
    let blocks = wanted.chunks(step).zip(found.chunks(step));
    blocks.filter(|(wanted, found)| wanted != found).map(|(wanted, _)| wanted.len() as u64).sum()
}

/// Whether a file has anything but zeros in a block: an earlier run left a hole where it was bad.
fn holds_any(file: &File, at: u64, length: u64) -> bool {
    let mut found = vec![0; length as usize];
    file.read_exact_at(&mut found, at).is_ok() && found.iter().any(|&byte| byte != 0)
}

/// The parts of a range that lie in one of the sorted ranges.
fn overlaps(sorted: &[Range<u64>], range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let from = sorted.partition_point(|data| data.end <= range.start);
    sorted[from..]
        .iter()
        .take_while(move |data| data.start < range.end)
        .map(move |data| data.start.max(range.start)..data.end.min(range.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_left_out() {
        let data = [0..10, 20..30, 40..50];
        let parts = |range| overlaps(&data, range).collect::<Vec<_>>();
        assert_eq!(parts(0..50), [0..10, 20..30, 40..50]);
        assert_eq!(parts(5..25), [5..10, 20..25]);
        assert!(parts(10..20).is_empty() && parts(50..60).is_empty());
        assert_eq!(parts(29..41), [29..30, 40..41]);
    }
}
