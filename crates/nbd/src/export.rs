//! What is served: a run of bytes of a source under a name.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use postread_io::Source;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// The most extents of one block status reply.
const EXTENTS_MAX: usize = 1024;

/// A run of bytes of a source, under a name.
#[derive(Clone)]
pub struct Export {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) source: Arc<dyn Source>,
    /// The first byte there.
    pub(crate) start: u64,
    pub(crate) len: u64,
    holes: Option<Arc<File>>,
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export").field("name", &self.name).field("len", &self.len).finish_non_exhaustive()
    }
}

impl Export {
    /// `len` bytes of `source` from byte `start` on. A client that names no export gets the first one of a server.
    pub fn new(name: impl Into<String>, source: Arc<dyn Source>, start: u64, len: u64) -> Self {
        Self { name: name.into(), description: String::new(), source, start, len, holes: None }
    }

    /// A description for people. Clients list it with the name.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = text.into();
        self
    }

    /// The file, if the source reads its bytes unchanged and at the same offsets: its holes are reported to clients.
    #[must_use]
    pub fn holes_of(mut self, file: File) -> Self {
        self.holes = Some(Arc::new(file));
        self
    }

    /// Lengths and whether they are holes, from `range.start` on and at least one; of `range`, which is not empty, as many
    /// as a reply holds.
    pub(crate) fn extents(&self, range: Range<u64>, one: bool) -> Vec<(u64, bool)> {
        let limit = if one { 1 } else { EXTENTS_MAX };
        let mut extents: Vec<(u64, bool)> = Vec::new();
        let mut at = range.start;
        while at < range.end && extents.len() < limit {
            let (end, hole) = self.extent(at);
            let end = end.clamp(at + 1, range.end);
            extents.push((end - at, hole));
            at = end;
        }
        extents
    }

    /// Where the extent at byte `at` ends, and whether it is a hole.
    fn extent(&self, at: u64) -> (u64, bool) {
        let all = (self.len, false);
        let Some(file) = &self.holes else { return all };
        let from = self.start.saturating_add(at);
        match rustix::fs::seek(file, SeekFrom::Data(from)) {
            Ok(data) if data > from => (data - self.start, true),
            Ok(_) => match rustix::fs::seek(file, SeekFrom::Hole(from)) {
                Ok(hole) => (hole.saturating_sub(self.start), false),
                Err(_) => all,
            },
            // No data up to the end.
            Err(Errno::NXIO) => (self.len, true),
            Err(_) => all,
        }
    }
}
