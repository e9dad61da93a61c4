//! The files that bad blocks of a device belong to.

use std::collections::HashSet;
use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::path::Path;

use postread::Target;
use postread::block_verity::{Area, BadRun};
use postread::image::FileHit;
use serde::Serialize;

use crate::report::Name;

/// The most files that are named.
const FILES_MAX: usize = 10_000;

/// Files with bad blocks.
#[derive(Serialize)]
pub(super) struct Files {
    files: Vec<File>,
    /// How many more there are than are named.
    more: u64,
    /// Bad bytes that belong to no file: metadata of the file system, or free space.
    other_bytes: u64,
}

/// A file with bad blocks.
#[derive(Serialize)]
struct File {
    #[serde(flatten)]
    name: Name,
    /// The bad bytes of the file, start and length.
    bytes: Vec<(u64, u64)>,
    /// Whether all of them can be repaired, if parity was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    repairable: Option<bool>,
}

/// The data blocks of runs, as byte ranges.
fn ranges(runs: &[BadRun], block_size: usize) -> Vec<Range<u64>> {
    let size = block_size as u64;
    let data = runs.iter().filter(|run| run.area == Area::Data);
    let mut ranges: Vec<_> = data.map(|run| run.first * size..(run.first + run.count) * size).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges
}

impl Files {
    /// Finds them in the file system on a device. `left` is what of `bad` cannot be repaired.
    pub(super) fn find(
        device: &Path,
        block_size: usize,
        bad: &[BadRun],
        left: Option<&[BadRun]>,
    ) -> postread::Result<Self> {
        // Its own blocks are damaged: what its checksums find wrong is read all the same.
        let target = Target::builder().ignore_checksums(true).open(device)?;
        let mut lost = HashSet::new();
        if let Some(left) = left {
            target.image().files_in(&ranges(left, block_size), &mut |hit| {
                lost.insert(hit.ino);
            });
        }
        let (mut files, mut more) = (Vec::new(), 0);
        let other_bytes = target.image().files_in(&ranges(bad, block_size), &mut |hit: FileHit| {
            if files.len() == FILES_MAX {
                more += 1;
                return;
            }
            let bytes = hit.bytes.iter().map(|range| (range.start, range.end - range.start)).collect();
            let repairable = left.map(|_| !lost.contains(&hit.ino));
            files.push(File { name: Name::of_bytes(&[b"/", &hit.path[..]].concat()), bytes, repairable });
        });
        Ok(Self { files, more, other_bytes })
    }

    pub(super) fn write(&self, out: &mut (impl Write + IsTerminal)) -> io::Result<()> {
        for file in &self.files {
            let range = |&(start, len): &(u64, u64)| format!("{start} to {}", start + len - 1);
            let bytes = file.bytes.iter().map(range).collect::<Vec<_>>().join(", ");
            let state = match file.repairable {
                None => "",
                Some(true) => "; can be repaired",
                Some(false) => "; cannot be repaired",
            };
            writeln!(out, "file {}: bytes {bytes}{state}", file.name.shown(out.is_terminal()))?;
        }
        if self.more > 0 {
            writeln!(out, "{} more files", self.more)?;
        }
        if self.other_bytes > 0 {
            writeln!(out, "{} bytes belong to no file: metadata of the file system, or free space", self.other_bytes)?;
        }
        Ok(())
    }
}
