//! Bytes that do not exist.

use std::io;

use postread_io::{Bio, BioId, BlockStatus, Completion, Source};

/// A source without any bytes: every bio fails for the same reason.
#[derive(Debug)]
pub(crate) struct Nowhere(pub(crate) BlockStatus);

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
