//! This machine's own fscrypt, compared with postread's queues: the same tree in an encrypted directory of an ext4
//! image.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;

use crate::error::{LabError, Tried};
use crate::kernel::guest::OwnRun;
use crate::scratch::{Scratch, wait};
use crate::statistics::median;
use crate::workload::{self, App};

const TIMEOUT: Duration = Duration::from_secs(120);

/// What was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OwnFscrypt {
    /// Why it was not.
    pub not_measured: Option<String>,
    /// One entry for each number of jobs.
    pub groups: Vec<OwnGroup>,
}

/// A number of jobs.
#[derive(Clone, Debug, Serialize)]
pub struct OwnGroup {
    /// Jobs.
    pub jobs: usize,
    /// Throughput, the median over rounds.
    pub mb_per_s: f64,
    /// `run_delay` of all kernel workers of this machine during a round, in microseconds: the median.
    pub workers_latency_us: f64,
    /// Throughput of each round.
    pub rounds_mb_per_s: Vec<f64>,
}

/// Measures it, or reports why not: it needs root, a loop device, ext4 with encryption, `mkfs.ext4` and `xfs_io`.
pub(crate) fn run(dir: &Path, program: &Path, tree: &App, rounds: usize, jobs: usize) -> OwnFscrypt {
    if !rustix::process::geteuid().is_root() {
        return OwnFscrypt { not_measured: Some("it needs root".into()), ..OwnFscrypt::default() };
    }
    match measure(dir, program, tree, rounds, jobs) {
        Ok(runs) => OwnFscrypt { not_measured: None, groups: groups(&runs, tree.bytes()) },
        Err(error) => OwnFscrypt { not_measured: Some(error.to_string()), ..OwnFscrypt::default() },
    }
}

fn groups(runs: &[OwnRun], bytes: u64) -> Vec<OwnGroup> {
    let most = runs.iter().map(|run| run.jobs).max().unwrap_or(0);
    let group = |jobs: usize| {
        let of = || runs.iter().filter(move |run| run.jobs == jobs);
        let rounds: Vec<f64> = of().map(|run| bytes as f64 * 1e3 / run.wall_ns.max(1) as f64).collect();
        let latency: Vec<f64> = of().map(|run| run.workers.run_delay_ns as f64 / 1e3).collect();
        OwnGroup { jobs, mb_per_s: median(&rounds), workers_latency_us: median(&latency), rounds_mb_per_s: rounds }
    };
    (1..=most).map(group).collect()
}

fn measure(dir: &Path, program: &Path, tree: &App, rounds: usize, jobs: usize) -> Result<Vec<OwnRun>, LabError> {
    let scratch = Scratch::new(dir)?;
    fs::create_dir(scratch.path("out")).tried(|| "making a directory".into())?;
    fs::copy(program, scratch.path("out/postread")).tried(|| "copying this program".into())?;
    scratch.write("out/tree", workload::format(std::slice::from_ref(tree)).as_bytes())?;
    scratch.write("out/key", &[b'k'; 64])?;
    let image = File::create(scratch.path("image")).tried(|| "making an image".into())?;
    image.set_len(tree.bytes() * 3 / 2 + (128 << 20)).tried(|| "making an image".into())?;
    let errors = File::create(scratch.path("errors")).tried(|| "making a file".into())?;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", include_str!("kernel/scripts/own.sh"), "own.sh"]);
    command.arg(scratch.path("out")).arg(scratch.path("image")).args([rounds.to_string(), jobs.to_string()]);
    let child = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn();
    let mut child = child.tried(|| "running unshare".into())?;
    scratch.write("pid", child.id().to_string().as_bytes())?;
    let ended = wait(&mut child, TIMEOUT);
    let _ = fs::remove_file(scratch.path("pid"));
    let results = fs::read(scratch.path("out/results"));
    match (ended?, results) {
        (true, Ok(results)) => serde_json::from_slice(&results).map_err(|e| LabError::Kernel(e.to_string())),
        _ => {
            let text = fs::read_to_string(scratch.path("errors")).unwrap_or_default();
            let why = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it did not finish");
            Err(LabError::Kernel(why.to_owned()))
        }
    }
}
