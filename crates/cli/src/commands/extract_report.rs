//! What `postread extract` reports while it runs, and in JSON.

use std::io::{self, BufWriter, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use postread::Progress as _;
use postread_extract::{Counts, Events, Failure as Failed, Note};
use postread_saved::SavedCounts;
use serde::Serialize;

use crate::exit::{Failure, Outcome};
use crate::progress::Progress;
use crate::report::{ListReport, Name};
use crate::text::{bytes_for_stderr, complain, output_failed, output_failed_after};

/// One entry of the report: what failed, and the summary at the end.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Entry {
    Error {
        #[serde(flatten)]
        name: Name,
        error: String,
        exit_status: u8,
    },
    /// Left out by design.
    LeftOut {
        #[serde(flatten)]
        name: Name,
        what: &'static str,
    },
    Summary(Summary),
}

/// What was done, as the report has it.
#[derive(Serialize)]
struct Summary {
    files: u64,
    bytes: u64,
    already_there: u64,
    directories: u64,
    others: u64,
    verified: u64,
    self_consistent: u64,
    copied: u64,
    replaced: u64,
    damaged: u64,
    failed: u64,
    left_out: LeftOut,
    exit_status: u8,
}

#[derive(Serialize)]
struct LeftOut {
    devices: u64,
    set_id: u64,
    xattrs: u64,
    flags: u64,
}

impl Summary {
    fn new(counts: &Counts, outcome: Outcome) -> Self {
        let Counts { files, bytes, already_there, directories, others, verified, self_consistent, .. } = *counts;
        let Counts { copied, replaced, damaged, failed, left_out, .. } = *counts;
        let left_out = LeftOut {
            devices: left_out.devices,
            set_id: left_out.set_id,
            xattrs: left_out.xattrs,
            flags: left_out.flags,
        };
        Self {
            files,
            bytes,
            already_there,
            directories,
            others,
            verified,
            self_consistent,
            copied,
            replaced,
            damaged,
            failed,
            left_out,
            exit_status: outcome.code(),
        }
    }
}

/// What `--ciphertext` saved, as the report has it.
#[derive(Serialize)]
pub(super) struct SavedSummary {
    files: u64,
    bytes: u64,
    directories: u64,
    links: u64,
    others: u64,
    already_there: u64,
    not_encrypted: u64,
    failed: u64,
    exit_status: u8,
}

impl SavedSummary {
    pub(super) fn new(saved: &SavedCounts, outcome: Outcome) -> Self {
        let SavedCounts { files, bytes, directories, links, others, already_there, not_encrypted, failed, .. } = *saved;
        let exit_status = outcome.code();
        Self { files, bytes, directories, links, others, already_there, not_encrypted, failed, exit_status }
    }
}

type Report = ListReport<Box<dyn Write + Send>>;

#[derive(Default)]
struct State {
    outcome: Outcome,
    report: Option<Report>,
    /// Why the report can't be written any more.
    broken: Option<io::Error>,
}

/// Prints events, and keeps the worst outcome.
pub(super) struct Reporter<'a> {
    progress: &'a Progress,
    state: Mutex<State>,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(progress: &'a Progress) -> Self {
        Self { progress, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a report in JSON, if one is wanted.
    pub(super) fn begin(&self, json: bool) -> Result<(), Failure> {
        if json {
            let out: Box<dyn Write + Send> = Box::new(BufWriter::new(io::stdout()));
            self.state().report = Some(ListReport::begin(out, "postread-extract-1").map_err(output_failed)?);
        }
        Ok(())
    }

    pub(super) fn outcome(&self) -> Outcome {
        self.state().outcome
    }

    /// Ends the report with the summary.
    pub(super) fn end(&self, counts: &Counts) -> Result<Outcome, Failure> {
        let State { outcome, report, broken } = std::mem::take(&mut *self.state());
        if let Some(error) = broken {
            return Err(output_failed_after(outcome, error));
        }
        if let Some(mut report) = report {
            let summary = Entry::Summary(Summary::new(counts, outcome));
            let ended = report.push(&summary).and_then(|()| report.end());
            ended.map_err(|error| output_failed_after(outcome, error))?;
        }
        Ok(outcome)
    }
}

impl State {
    fn push(&mut self, entry: &Entry) {
        if let Some(report) = &mut self.report
            && let Err(error) = report.push(entry)
        {
            self.broken = Some(error);
        }
    }
}

impl Events for Reporter<'_> {
    fn failed(&self, failed: &Failed<'_>) {
        let outcome = if failed.follows { Outcome::Good } else { failed.error.kind().into() };
        let mut state = self.state();
        state.outcome = state.outcome.worst(outcome);
        complain(format_args!("{}: {}", bytes_for_stderr(failed.path), failed.error));
        let name = Name::of_bytes(failed.path);
        state.push(&Entry::Error { name, error: failed.error.to_string(), exit_status: outcome.code() });
    }

    fn left_out(&self, path: &[u8], what: &'static str) {
        complain(format_args!("{}: {what}", bytes_for_stderr(path)));
        self.state().push(&Entry::LeftOut { name: Name::of_bytes(path), what });
    }

    fn note(&self, note: &Note<'_>) {
        if let Some(kind) = note.kind() {
            let mut state = self.state();
            state.outcome = state.outcome.worst(kind.into());
        }
        complain(note);
    }

    fn read(&self, bytes: u64) {
        self.progress.advance(bytes);
    }

    fn file_done(&self) {
        self.progress.file_done();
    }
}
