//! Where a file's blocks are, with what is known of those that cannot be read.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use postread_io::{Bio, BioId, BlockStatus, Completion, Source};

use crate::plan::{ExtentMap, Mapping, Piece, PieceAt};

/// The extents of a file, with the parts that no extent covers because the map is damaged there, and the end of the
/// device, where an image was cut off.
pub(super) struct FileMap {
    pub(super) extents: ExtentMap,
    /// Bytes of the file that a damaged part of its map covers, in order, and why.
    pub(super) broken: Vec<(Range<u64>, Arc<dyn Source>)>,
    /// The byte at which the device ends before its file system does, and why.
    pub(super) truncated: Option<(u64, Arc<dyn Source>)>,
}

impl fmt::Debug for FileMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileMap").field("extents", &self.extents).finish_non_exhaustive()
    }
}

impl Mapping for FileMap {
    fn piece(&self, offset: u64, len: u64) -> Piece<'_> {
        let next = self.broken.partition_point(|(range, _)| range.end <= offset);
        let mut len = len;
        if let Some((range, source)) = self.broken.get(next) {
            if range.start <= offset {
                return Piece { len: len.min(range.end - offset), at: PieceAt::Source { source, offset } };
            }
            len = len.min(range.start - offset);
        }
        let piece = self.extents.piece(offset, len);
        let (PieceAt::Source { offset: physical, .. }, Some((end, source))) = (&piece.at, &self.truncated) else {
            return piece;
        };
        match end.checked_sub(*physical).filter(|&rest| rest > 0) {
            Some(rest) => Piece { len: piece.len.min(rest), ..piece },
            None => Piece { len: piece.len, at: PieceAt::Source { source, offset: *physical } },
        }
    }
}

/// A source without any bytes: every bio fails for the same reason.
#[derive(Debug)]
pub(super) struct Nowhere(pub(super) BlockStatus);

impl Source for Nowhere {
    fn len(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn align(&self) -> u32 {
        1
    }

    fn submit(&self, mut bio: Bio, done: Completion) -> BioId {
        bio.fail_all(&self.0);
        done.complete_here(bio);
        BioId(0)
    }

    fn cancel(&self, _id: BioId) -> bool {
        false
    }
}
