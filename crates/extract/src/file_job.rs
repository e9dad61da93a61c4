//! One regular file: read through the engine, written without a name, and named when it is whole.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use postread::image::ImageError;
use postread::{Error, ErrorKind, Plan, ReadError};
use postread_fsimage::ext4::{ExtentKind, Inode};
use postread_io::BlockStatus;
use postread_verity::{FileDigest, NoTree, TreeBuilder};
use rustix::fs::{Mode, SeekFrom, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use crate::attributes::{Target, is_finished, open_for_reading};
use crate::directories::DirId;
use crate::events::Note;
use crate::extraction::Extraction;
use crate::place::{Place, identity, open_file, open_path};
use crate::tree_writer::{Meta, place_error};
use crate::unfinished::Unfinished;

/// Bytes hashed at once of a file that an earlier run extracted.
const HASH_STEP: usize = 1 << 20;
/// A file with more ranges than this does not wait for a thread.
const LARGE: usize = 4096;

/// A file that waits for a thread.
pub(crate) struct FileJob<'a> {
    pub(crate) dir: DirId,
    pub(crate) name: Box<[u8]>,
    pub(crate) place: Arc<Place>,
    pub(crate) meta: Meta,
    pub(crate) size: u64,
    pub(crate) contents: Contents,
    pub(crate) named: Named<'a>,
}

/// Reports the result of an inode's first name to the names that wait for it: failed, if dropped.
pub(crate) struct Named<'a> {
    extraction: &'a Extraction<'a>,
    ino: Option<u32>,
}

impl<'a> Named<'a> {
    pub(crate) fn new(extraction: &'a Extraction<'a>, meta: Meta) -> Self {
        Self { extraction, ino: (meta.links > 1).then_some(meta.ino) }
    }

    fn done(mut self, made: (u64, u64)) {
        if let Some(ino) = self.ino.take() {
            self.extraction.first_done(ino, Some(made));
        }
    }
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if let Some(ino) = self.ino {
            self.extraction.first_done(ino, None);
        }
    }
}

/// Where a file's bytes come from.
pub struct Contents(Kind);

enum Kind {
    /// An inode of the image, and the trusted digest of one of its names.
    Inode { inode: Box<Inode>, digest: Option<FileDigest> },
    /// Another plan.
    Plan { reading: Reading, check: Check },
}

type Check = Box<dyn FnOnce() -> postread::Result<()> + Send>;

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Contents")
    }
}

impl Contents {
    /// A file of the image.
    pub(crate) fn inode(inode: Inode, digest: Option<FileDigest>) -> Self {
        Self(Kind::Inode { inode: Box::new(inode), digest })
    }

    /// Contents read through `plan`, after `check` has passed. Only the ascending ranges `data`, and the ranges
    /// `broken`, which the plan can't read, are read and written; the rest is holes. The contents can't be verified.
    pub fn plan(
        plan: Plan,
        data: Vec<Range<u64>>,
        broken: Vec<Range<u64>>,
        block_size: u32,
        check: impl FnOnce() -> postread::Result<()> + Send + 'static,
    ) -> Self {
        let block_size = block_size.into();
        let mut data = [data, broken.clone()].concat();
        data.sort_by_key(|range| range.start);
        let reading = Reading { plan, data, broken, read_holes: false, block_size, trust: Trust::Copied };
        Self(Kind::Plan { reading, check: Box::new(check) })
    }

    /// Whether its description is so large that it must not wait in memory with others.
    pub(crate) fn is_large(&self) -> bool {
        matches!(&self.0, Kind::Plan { reading, .. } if reading.data.len() > LARGE)
    }
}

/// How a file is read.
struct Reading {
    plan: Plan,
    /// What is not a hole, in order.
    data: Vec<Range<u64>>,
    /// Ranges covered by a damaged map, in order: part of `data`, at an unknown place.
    broken: Vec<Range<u64>>,
    /// Whether holes are read too, because their zeros are verified.
    read_holes: bool,
    block_size: u64,
    trust: Trust,
}

/// What a file's contents were checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// A digest that the caller gave.
    Verified,
    /// Its own fs-verity metadata.
    SelfConsistent,
    /// Nothing.
    Copied,
}

/// The outcome for a file.
enum Written {
    /// It was created: which file it is, and whether it was verified against a given digest.
    Named { made: (u64, u64), verified: Option<bool> },
    /// The file of an earlier run is better.
    Kept { made: Option<(u64, u64)> },
}

impl Extraction<'_> {
    pub(crate) fn first_done(&self, ino: u32, made: Option<(u64, u64)>) {
        self.shared().first_done.insert(ino, made);
        self.first.notify_all();
    }

    /// Writes a file, and reports how that went.
    pub(crate) fn file(&self, job: FileJob<'_>) {
        let path = || self.path(job.dir, &job.name);
        match self.keep_finished(&job, &path) {
            Ok(Some(made)) => return job.named.done(made),
            Ok(None) => {}
            Err(error) => {
                self.shared().checked.insert(job.meta.ino, false);
                return self.failed(&path(), &error);
            }
        }
        let ino = job.meta.ino;
        let FileJob { dir, name, place, meta, size, contents, named } = job;
        let path = || self.path(dir, &name);
        let written = self.write_file(&place, &name, meta, size, contents, &path);
        match written {
            Ok(Written::Named { made, verified }) => {
                if let Some(verified) = verified {
                    self.shared().checked.insert(ino, verified);
                }
                named.done(made);
            }
            Ok(Written::Kept { made }) => {
                self.shared().checked.insert(ino, false);
                if let Some(made) = made {
                    named.done(made);
                }
            }
            Err(error) => {
                self.shared().checked.insert(ino, false);
                self.failed(&path(), &error);
            }
        }
        self.options.events.file_done();
    }

    /// Keeps the file of an earlier run if it is finished: it has the right size and time, and the digest, if the
    /// caller gave one. Missing attributes are set. Returns which file it is.
    fn keep_finished(&self, job: &FileJob<'_>, path: &dyn Fn() -> Vec<u8>) -> postread::Result<Option<(u64, u64)>> {
        // An obstacle is reported later, when the file gets its name.
        let Ok(Some(_)) = job.place.claim_for_file(&job.name) else { return Ok(None) };
        let Ok(old) = open_path(job.place.dir(), &job.name) else { return Ok(None) };
        let found = rustix::fs::fstat(&old).map_err(io::Error::from)?;
        let Some(mtime) = self.mtime(job) else { return Ok(None) };
        if !is_finished(&found, job.size, mtime) {
            return Ok(None);
        }
        let Some(verified) = self.is_still_good(job, &old)? else {
            self.note(&Note::Replaced { path: &path() });
            self.shared().counts.replaced += 1;
            return Ok(None);
        };
        let mut shared = self.shared();
        shared.counts.already_there += 1;
        shared.counts.verified += u64::from(verified);
        if verified {
            shared.checked.insert(job.meta.ino, true);
        }
        drop(shared);
        self.apply(path, job.meta.key, Target::Before(old.as_fd()));
        Ok(Some(identity(&found)))
    }

    fn mtime(&self, job: &FileJob<'_>) -> Option<postread_fsimage::ext4::Timestamp> {
        match &job.contents.0 {
            Kind::Inode { inode, .. } => Some(inode.mtime),
            // It is read again when attributes are set, and what is wrong with it is reported then.
            Kind::Plan { .. } => self.source?.attributes(job.meta.key, &mut |_| ()).map(|found| found.mtime),
        }
    }

    /// Whether the file of an earlier run is to be kept: if the caller gave a digest, the file is hashed; true if it
    /// matches, `None` if it does not.
    fn is_still_good(&self, job: &FileJob<'_>, old: &OwnedFd) -> postread::Result<Option<bool>> {
        let Kind::Inode { inode, digest } = &job.contents.0 else { return Ok(Some(false)) };
        let Some(wanted) = digest else {
            return match self.options.require_digests && inode.is_verity() {
                true => Err(ImageError::NotListed.into()),
                false => Ok(Some(false)),
            };
        };
        let image = self.image.expect("a file of an image comes with it");
        let verity = image.verity(inode)?.ok_or_else(|| ImageError::NoVerity { wanted: Box::new(*wanted) })?;
        let verity = verity.trust(wanted)?;
        let file = match open_for_reading(old.as_fd()) {
            Ok(file) => file,
            // Its mode denies access to its owner.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let hash = |error: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Malformed, format!("hashing the existing file: {error}"))
        };
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

    fn write_file(
        &self,
        place: &Arc<Place>,
        name: &[u8],
        meta: Meta,
        size: u64,
        contents: Contents,
        path: &dyn Fn() -> Vec<u8>,
    ) -> postread::Result<Written> {
        // Don't read the file if it can't get its name.
        place.claim_for_file(name).map_err(place_error)?;
        let reading = self.reading(contents)?;
        // Block numbers within a file have 32 bits.
        if size > reading.block_size << 32 {
            return Err(Error::new(ErrorKind::Malformed, format!("its size is {size} bytes")));
        }
        let unfinished = Unfinished::begin(place, Mode::RUSR | Mode::WUSR)?;
        let file = unfinished.file();
        file.set_len(size)?;
        // An unfinished file has a different time. It may have good parts that can't be read any more.
        let old = match self.options.keep_going {
            true => open_file(place.dir(), name).ok().flatten(),
            false => None,
        };
        let old = old.filter(|old| old.metadata().is_ok_and(|found| found.len() == size));
        let Bad { new, old: bad_old } = self.copy(path, &reading, size, file, old.as_ref())?;
        if let Some(bad_old) = bad_old.filter(|old| *old < new) {
            self.note(&Note::Kept { path: &path(), bad: new, bad_kept: bad_old });
            self.shared().counts.already_there += 1;
            let made = old.and_then(|old| rustix::fs::fstat(old).ok()).map(|found| identity(&found));
            return Ok(Written::Kept { made });
        }
        let damaged = new > 0;
        self.apply(path, meta.key, Target::New(file.as_fd()));
        if damaged {
            // It keeps the time at which it was written, so that a later run knows it is not whole and tries again.
            let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let times = Timestamps { last_access: omit, last_modification: now };
            rustix::fs::futimens(file, &times).map_err(io::Error::from)?;
        }
        let made = unfinished.finish(name).map_err(place_error)?;
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
        let verified = (reading.trust == Trust::Verified || damaged).then_some(!damaged);
        Ok(Written::Named { made, verified })
    }

    fn reading(&self, contents: Contents) -> postread::Result<Reading> {
        let (inode, trusted) = match contents.0 {
            Kind::Plan { reading, check } => {
                check()?;
                return Ok(reading);
            }
            Kind::Inode { inode, digest } => (inode, digest),
        };
        let image = self.image.expect("a file of an image comes with it");
        if trusted.is_none() && inode.is_verity() && self.options.require_digests {
            return Err(ImageError::NotListed.into());
        }
        let plan = image.read_plan(&inode, trusted.as_ref())?;
        let trust = match trusted {
            Some(_) => Trust::Verified,
            None if inode.is_verity() => Trust::SelfConsistent,
            None => Trust::Copied,
        };
        let (mut data, mut broken): (Vec<Range<u64>>, Vec<Range<u64>>) = (Vec::new(), Vec::new());
        if inode.has_inline_data() {
            data.push(0..inode.size);
        } else {
            let mut walk = image.fs().extents_from(&inode, 0);
            while let Some(extent) = walk.next() {
                let range = match extent {
                    Ok(extent) if extent.kind != ExtentKind::Written => continue,
                    Ok(extent) => extent.logical..extent.end(),
                    // The plan knows the reason: reads there fail with it.
                    Err(error) => walk.skip_broken().ok_or(ImageError::from(error)).inspect(|range| {
                        add_range(&mut broken, range.start..range.end.min(inode.size));
                    })?,
                };
                add_range(&mut data, range.start..range.end.min(inode.size));
            }
        }
        let block_size = image.fs().superblock().block_size.into();
        Ok(Reading { plan, data, broken, read_holes: inode.is_verity(), block_size, trust })
    }

    /// Copies everything but holes, and returns how much is missing.
    fn copy(
        &self,
        path: &dyn Fn() -> Vec<u8>,
        reading: &Reading,
        size: u64,
        out: &File,
        old: Option<&File>,
    ) -> postread::Result<Bad> {
        let mut missing = Bad { new: 0, old: old.map(|_| 0) };
        let mut bad = BadRange::default();
        let reader = self.options.engine.open(reading.plan.clone()).reader();
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
                            if let (Some(file), Some(bad)) = (old, &mut missing.old) {
                                *bad += differing(file, bytes, part.start, reading.block_size);
                            }
                        }
                        at += lent.len() as u64;
                        self.options.events.read(lent.len() as u64);
                    }
                    Err(error) if self.options.keep_going => {
                        // The good parts are kept, with a hole where this block was.
                        let block = (at - at % reading.block_size).saturating_add(reading.block_size);
                        // A range covered by a damaged map is one hole, however long.
                        let covering = reading.broken.get(reading.broken.partition_point(|range| range.end <= at));
                        let next = covering.filter(|range| range.start <= at).map_or(block, |range| range.end);
                        let len = next.min(size).saturating_sub(at).max(1);
                        missing.new += len;
                        if let (Some(file), Some(bad)) = (old, &mut missing.old) {
                            *bad += len * u64::from(!holds_any(file, at, len));
                        }
                        if let Some(ended) = bad.add(at..at + len, reading.block_size, error) {
                            self.damaged(&path(), &ended);
                        }
                        at = next;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        if let Some(last) = bad.take() {
            self.damaged(&path(), &last);
        }
        Ok(missing)
    }
}

/// Adds a range after the others, to the last one if it continues that.
fn add_range(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

/// Neighbouring blocks that can't be read for the same reason.
#[derive(Default)]
struct BadRange(Option<(Range<u64>, ReadError, u64)>);

impl BadRange {
    /// Adds blocks. Returns the previous range if this one does not continue it.
    fn add(&mut self, range: Range<u64>, block_size: u64, error: ReadError) -> Option<Error> {
        let added = (range.end - range.start).div_ceil(block_size.max(1));
        if let Some((last, first, blocks)) = &mut self.0
            && last.end == range.start
            && same_reason(&first.status, &error.status)
        {
            last.end = range.end;
            *blocks += added;
            return None;
        }
        let before = self.take();
        self.0 = Some((range, error, added));
        before
    }

    fn take(&mut self) -> Option<Error> {
        let (range, error, blocks) = self.0.take()?;
        if blocks == 1 {
            return Some(error.into());
        }
        let kind = Error::from(error.clone()).kind();
        let last = range.end - 1;
        Some(Error::new(kind, format!("at bytes {} to {last} ({blocks} blocks): {}", range.start, error.status)))
    }
}

/// Whether two blocks are bad for the same reason, ignoring the hashes of corrupt blocks.
fn same_reason(a: &BlockStatus, b: &BlockStatus) -> bool {
    match (a, b) {
        (BlockStatus::Corrupt(a), BlockStatus::Corrupt(b)) => a.kind == b.kind && a.level == b.level,
        (BlockStatus::Input { cause: a, .. }, BlockStatus::Input { cause: b, .. }) => same_reason(a, b),
        (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b) && a.failure() == b.failure(),
    }
}

/// The number of bad bytes in the data read, and, as far as is known, in the existing file of the same size.
struct Bad {
    new: u64,
    old: Option<u64>,
}

/// The total size of the blocks in which a file differs from what it should be.
fn differing(file: &File, wanted: &[u8], at: u64, block_size: u64) -> u64 {
    let mut found = vec![0; wanted.len()];
    if file.read_exact_at(&mut found, at).is_err() {
        return wanted.len() as u64;
    }
    let step = block_size.max(1) as usize;
    let blocks = wanted.chunks(step).zip(found.chunks(step));
    blocks.filter(|(wanted, found)| wanted != found).map(|(wanted, _)| wanted.len() as u64).sum()
}

/// Whether a file has anything but zeros in a range: an earlier run left a hole where data was bad.
fn holds_any(file: &File, at: u64, length: u64) -> bool {
    let (mut at, end) = (at, at.saturating_add(length));
    let mut found = vec![0; length.min(HASH_STEP as u64) as usize];
    // From data to data: a range that a damaged map covers may be as long as a file can be.
    while let Ok(data) = rustix::fs::seek(file, SeekFrom::Data(at)) {
        let Some(rest) = end.checked_sub(data).filter(|&rest| rest > 0) else { return false };
        let found = &mut found[..rest.min(HASH_STEP as u64) as usize];
        if file.read_exact_at(found, data).is_err() {
            return false;
        }
        if found.iter().any(|&byte| byte != 0) {
            return true;
        }
        at = data + found.len() as u64;
    }
    false
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
