//! `postread tune`: what each queue policy costs on a file here, and what `auto` settles on.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use postread::auto::AutoStats;
use postread::{Engine, EngineConfig, QueuePolicy, VerifiedFile};
use postread_verity::FileDigest;

use crate::exit::{CommandResult, Failure, Outcome};
use crate::read_options::AutoReport;
use crate::text::{name_for_stderr, output_failed};
use crate::verity_target::outcome_of;

/// The most that is read from front to back, in bytes.
const MOST: u64 = 1 << 30;
/// Small reads in a round.
const SMALL_READS: usize = 1000;
/// The size of a small read.
const SMALL: u64 = 4096;

#[derive(Args, Debug)]
pub(crate) struct TuneArgs {
    /// A file that `postread verify` can verify
    #[arg(value_name = "TARGET")]
    file: PathBuf,
    /// The fs-verity digest that the file must have, as `fsverity digest` prints it
    #[arg(long, value_name = "ALG:HEX")]
    digest: FileDigest,
    /// How often each policy reads the file; the policies take turns
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
}

/// One policy and what it took.
struct Arm {
    engine: Engine,
    file: VerifiedFile,
    mb_per_s: Vec<f64>,
    small_us: Vec<f64>,
}

pub(crate) fn run(args: &TuneArgs) -> CommandResult {
    let mut arms = Vec::new();
    for policy in [QueuePolicy::Inline, QueuePolicy::BOUND, QueuePolicy::UNBOUND, QueuePolicy::Auto] {
        let engine = Engine::new(EngineConfig::new().policy(policy)).map_err(Failure::environment)?;
        let file = VerifiedFile::options().digest(args.digest).engine(&engine).open(&args.file)?;
        arms.push(Arm { engine, file, mb_per_s: Vec::new(), small_us: Vec::new() });
    }
    // The first round warms the page cache and the hash blocks, and does not count.
    for round in 0..=args.rounds {
        for turn in 0..arms.len() {
            let at = (turn + round as usize) % arms.len();
            let arm = &mut arms[at];
            let name = || name_for_stderr(&args.file);
            let read = arm.round(round > 0, u64::from(round));
            read.map_err(|error| Failure::new(outcome_of(&error.status), format_args!("{}: {error}", name())))?;
        }
    }
    io::stdout().write_all(report(&arms).as_bytes()).map_err(output_failed)?;
    Ok(Outcome::Good)
}

impl Arm {
    /// Reads the file from front to back, then in small pieces here and there.
    fn round(&mut self, counts: bool, seed: u64) -> Result<(), postread::ReadError> {
        let reader = self.file.file().reader();
        let len = self.file.len().min(MOST);
        let begun = Instant::now();
        let mut at = 0;
        while at < len {
            let Some(chunk) = reader.lend(at, 256 << 10)? else { break };
            at += chunk.len() as u64;
        }
        let took = begun.elapsed();
        if counts && at > 0 {
            self.mb_per_s.push(at as f64 / 1e6 / took.as_secs_f64());
        }
        let blocks = len.div_ceil(SMALL).max(1);
        let mut buf = [0; SMALL as usize];
        let mut random = seed | 1;
        for _ in 0..SMALL_READS {
            // Knuth's 64-bit linear congruence.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let begun = Instant::now();
            reader.read_at(&mut buf, (random >> 33) % blocks * SMALL)?;
            if counts {
                self.small_us.push(begun.elapsed().as_nanos() as f64 / 1000.0);
            }
        }
        Ok(())
    }
}

fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (q * sorted.len() as f64) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

fn report(arms: &[Arm]) -> String {
    let mut text = String::from("policy     front to back    4 KiB here and there\n");
    for arm in arms {
        let _ = writeln!(
            text,
            "{:<8} {:>10.0} MB/s    p50 {:>7.1} us, p99 {:>7.1} us",
            arm.engine.policy().to_string(),
            quantile(&arm.mb_per_s, 0.5),
            quantile(&arm.small_us, 0.5),
            quantile(&arm.small_us, 0.99)
        );
    }
    let fixed = arms.iter().filter(|arm| arm.engine.policy() != QueuePolicy::Auto);
    let best = fixed.max_by(|a, b| quantile(&a.mb_per_s, 0.5).total_cmp(&quantile(&b.mb_per_s, 0.5)));
    let auto = arms.iter().find(|arm| arm.engine.policy() == QueuePolicy::Auto);
    if let (Some(best), Some(auto)) = (best, auto) {
        let ratio = quantile(&auto.mb_per_s, 0.5) / quantile(&best.mb_per_s, 0.5).max(f64::MIN_POSITIVE);
        let _ = writeln!(
            text,
            "auto reads at {ratio:.2} times the rate of the best fixed policy, {}",
            best.engine.policy()
        );
        if let Some(stats) = auto.engine.stats().auto {
            text.push_str(&AutoReport::from(&stats).to_text());
            text.push_str(&settled(&stats));
        }
    }
    text
}

/// What most bios did.
fn settled(stats: &AutoStats) -> String {
    let total: u64 = stats.ways.iter().map(|way| way.bios).sum::<u64>() + stats.taken_back;
    let most = stats.ways.iter().max_by_key(|way| way.bios);
    match most {
        Some(most) if most.bios >= stats.taken_back => {
            format!("it settles on {}: {} of {total} bios\n", most.way.name(), most.bios)
        }
        Some(_) => format!(
            "it settles on readers and workers side by side: {} of {total} bios were taken back\n",
            stats.taken_back
        ),
        None => String::new(),
    }
}
