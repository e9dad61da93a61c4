//! Where a file's blocks are on a device that may be cut off.

use std::fmt;
use std::sync::Arc;

use postread_io::Source;

use crate::plan::{ExtentMap, Mapping, Piece, PieceAt};

/// The extents of a file, and the end of the device, where an image was cut off.
pub(super) struct FileMap {
    pub(super) extents: ExtentMap,
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
        let piece = self.extents.piece(offset, len);
        let (PieceAt::Source { source: of, offset: physical }, Some((end, source))) = (&piece.at, &self.truncated)
        else {
            return piece;
        };
        // Not on the device at all.
        if !Arc::ptr_eq(of, self.extents.source()) {
            return piece;
        }
        match end.checked_sub(*physical).filter(|&rest| rest > 0) {
            Some(rest) => Piece { len: piece.len.min(rest), ..piece },
            None => Piece { len: piece.len, at: PieceAt::Source { source, offset: *physical } },
        }
    }
}
