//! One regular file: read through the engine, written under another name, and named when it is whole.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use postread::Plan;
use postread_fsimage::ext4::{ExtentKind, Inode};
use postread_io::BlockStatus;

use super::saved_file::{SavedError, SavedFile};
use super::{Attributes, Extraction, last_name};
use crate::commands::cat_image::{PlanError, plan_of};
use crate::exit::Outcome;
use crate::verity_target::outcome_of;

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
    /// An inode of the image, whose path in it may have a trusted digest.
    Inode { inode: Box<Inode>, path: Vec<u8> },
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
}

#[derive(Debug, thiserror::Error)]
enum JobError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("{0}")]
    Output(#[from] io::Error),
    #[error(transparent)]
    Saved(#[from] SavedError),
    /// No ext4 file is so long.
    #[error("its size is {0} bytes")]
    Size(u64),
    #[error("at byte {offset}: {status}")]
    Block { offset: u64, status: Box<BlockStatus> },
}

impl JobError {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Plan(error) => error.outcome(),
            Self::Output(_) => Outcome::Environment,
            Self::Saved(error) => error.outcome(),
            Self::Size(_) => Outcome::Usage,
            Self::Block { status, .. } => outcome_of(status),
        }
    }
}

impl From {
    fn read(self, extraction: &Extraction<'_>) -> Result<Reading, JobError> {
        let (inode, path) = match self {
            Self::Saved { saved, plan, data, block_size } => {
                saved.check()?;
                return Ok(Reading { plan, data, read_holes: false, block_size });
            }
            Self::Inode { inode, path } => (inode, path),
        };
        let image = extraction.image.expect("a file of an image comes with it");
        let plan = plan_of(image, &inode, extraction.settings.trusted.get(&path))?;
        let mut data = Vec::new();
        if inode.has_inline_data() {
            data.push(0..inode.size);
        } else {
            for extent in image.fs().extents_from(&inode, 0) {
                let extent = extent.map_err(|error| PlanError::Image(error.into()))?;
                let range = extent.logical..extent.end().min(inode.size);
                if extent.kind == ExtentKind::Written && !range.is_empty() {
                    data.push(range);
                }
            }
        }
        let block_size = image.fs().superblock().block_size.into();
        Ok(Reading { plan, data, read_holes: inode.is_verity(), block_size })
    }
}

impl Extraction<'_> {
    /// Writes a file, and tells how that went.
    pub(super) fn file(&self, job: FileJob) {
        let name = last_name(&job.path);
        if job.attributes.is_there(job.dir.as_fd(), name, job.size) {
            self.shared().counts.already_there += 1;
            return;
        }
        let tag = job.ino.to_string();
        let path = job.path.clone();
        if let Err(error) = self.write_file(job, &tag) {
            self.top.abandon(&tag);
            self.failed(&path, &error, error.outcome());
        }
        self.settings.progress.file_done();
    }

    fn write_file(&self, job: FileJob, tag: &str) -> Result<(), JobError> {
        let FileJob { path, dir, size, from, attributes, .. } = job;
        let reading = from.read(self)?;
        // Block numbers within a file have 32 bits.
        if size > reading.block_size << 32 {
            return Err(JobError::Size(size));
        }
        let file = self.top.begin(tag)?;
        file.set_len(size)?;
        self.copy(&path, &reading, size, &file)?;
        self.attributes_put(|| path.clone(), attributes.put(file.as_fd(), self.allowed));
        self.top.finish(tag, dir.as_fd(), last_name(&path))?;
        let mut shared = self.shared();
        shared.counts.files += 1;
        shared.counts.bytes += size;
        Ok(())
    }

    fn copy(&self, path: &[u8], reading: &Reading, size: u64, out: &File) -> Result<(), JobError> {
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
                            out.write_all_at(&lent[(part.start - at) as usize..(part.end - at) as usize], part.start)?;
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
                        at = (at - at % reading.block_size).saturating_add(reading.block_size);
                    }
                }
            }
        }
        Ok(())
    }
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
