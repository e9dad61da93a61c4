//! Findings about files that are verified in parallel, reported in the order of the files.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::Finding;

/// How many files a thread may be ahead of the first unfinished one. Their findings wait in memory.
const AHEAD_MAX: usize = 256;
/// How many findings of one file may wait. At this number the file's thread waits for its turn.
const KEPT_MAX: usize = 1024;

/// The caller's function: see [`Verifier::run`](super::Verifier::run).
pub(super) type Report<'r> = dyn FnMut(&Path, Finding) -> ControlFlow<()> + Send + 'r;

struct State<'r> {
    report: &'r mut Report<'r>,
    /// The caller wants no more.
    stopped: bool,
    /// The file whose findings are reported as they come.
    turn: usize,
    /// Findings of files that finished before their turn.
    kept: BTreeMap<usize, Vec<(Arc<Path>, Finding)>>,
}

impl State<'_> {
    fn report(&mut self, path: &Path, finding: Finding) {
        self.stopped |= (self.report)(path, finding).is_break();
    }
}

/// What all threads report to.
pub(super) struct InOrder<'r> {
    state: Mutex<State<'r>>,
    /// Notified when another file has its turn.
    turned: Condvar,
}

impl<'r> InOrder<'r> {
    pub(super) fn new(report: &'r mut Report<'r>) -> Self {
        let state = State { report, stopped: false, turn: 0, kept: BTreeMap::new() };
        Self { state: Mutex::new(state), turned: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<'r>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while<'g>(
        &self,
        state: MutexGuard<'g, State<'r>>,
        condition: impl FnMut(&mut State<'r>) -> bool,
    ) -> MutexGuard<'g, State<'r>> {
        self.turned.wait_while(state, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports something that has no place in the order of the files.
    pub(super) fn report(&self, path: &Path, finding: Finding) {
        self.state().report(path, finding);
    }

    /// Starts the file number `index`; `None` if the caller wants no more. Files are started in order, each once.
    pub(super) fn start(&self, index: usize, path: Arc<Path>) -> Option<FileFindings<'_, 'r>> {
        let state = self.wait_while(self.state(), |state| index > state.turn + AHEAD_MAX);
        let stopped = state.stopped;
        drop(state);
        // Dropped at once if stopped: then the next file has its turn.
        let findings = FileFindings { all: self, index, path, kept: Vec::new() };
        (!stopped).then_some(findings)
    }
}

/// The findings of one file. Its drop ends the file's turn.
pub(super) struct FileFindings<'o, 'r> {
    all: &'o InOrder<'r>,
    index: usize,
    path: Arc<Path>,
    kept: Vec<(Arc<Path>, Finding)>,
}

impl FileFindings<'_, '_> {
    /// Reports a finding: now if it is the file's turn, else when that comes.
    pub(super) fn report(&mut self, finding: Finding) {
        self.kept.push((self.path.clone(), finding));
        let mut state = self.all.state();
        if self.kept.len() >= KEPT_MAX {
            state = self.all.wait_while(state, |state| state.turn < self.index);
        }
        if state.turn == self.index {
            self.kept.drain(..).for_each(|(path, finding)| state.report(&path, finding));
        }
    }
}

impl Drop for FileFindings<'_, '_> {
    fn drop(&mut self) {
        let mut state = self.all.state();
        state.kept.insert(self.index, std::mem::take(&mut self.kept));
        while let Some(findings) = {
            let turn = state.turn;
            state.kept.remove(&turn)
        } {
            findings.into_iter().for_each(|(path, finding)| state.report(&path, finding));
            state.turn += 1;
        }
        self.all.turned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};

    fn finding() -> Finding {
        Finding::Failed(Error::new(ErrorKind::Corrupt, "x"))
    }

    #[test]
    fn files_that_finish_early_wait_for_their_turn() {
        let mut seen = Vec::new();
        let mut report = |path: &Path, _| {
            seen.push(path.to_owned());
            ControlFlow::Continue(())
        };
        let all = InOrder::new(&mut report);
        let mut first = all.start(0, Path::new("a").into()).unwrap();
        let mut second = all.start(1, Path::new("b").into()).unwrap();
        second.report(finding());
        drop(second);
        first.report(finding());
        drop(first);
        drop(all);
        assert_eq!(seen, [Path::new("a"), Path::new("b")]);
    }

    #[test]
    fn nothing_starts_once_the_caller_wants_no_more() {
        let mut report = |_: &Path, _| ControlFlow::Break(());
        let all = InOrder::new(&mut report);
        all.start(0, Path::new("a").into()).unwrap().report(finding());
        assert!(all.start(1, Path::new("b").into()).is_none());
        assert!(all.start(2, Path::new("c").into()).is_none());
    }
}
