//! The CPU on which a bio is read, and so completes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::source::BioId;

/// The CPU whose group of threads reads a bio, and on which it therefore completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompletionCpu {
    /// The submitting CPU: like a device with a queue per CPU.
    #[default]
    Submitter,
    /// Each in turn.
    RoundRobin,
    /// Always the same one: like a device with a single interrupt.
    Cpu(u32),
}

/// Chooses a group for each bio.
#[derive(Debug)]
pub(crate) struct Picker {
    /// The CPU of each group.
    cpus: Vec<u32>,
    turn: AtomicU64,
    next_id: AtomicU64,
}

impl Picker {
    /// For groups on these CPUs, at least one.
    pub(crate) fn new(cpus: Vec<u32>) -> Self {
        Self { cpus, turn: AtomicU64::new(0), next_id: AtomicU64::new(1) }
    }

    pub(crate) fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// The index of a group, and an id from which it can be found again.
    pub(crate) fn pick(&self, on: CompletionCpu) -> (usize, BioId) {
        let groups = self.cpus.len();
        let at = match on {
            CompletionCpu::RoundRobin => (self.turn.fetch_add(1, Ordering::Relaxed) % groups as u64) as usize,
            CompletionCpu::Submitter => self.group_on(crate::current_cpu()),
            CompletionCpu::Cpu(cpu) => self.group_on(cpu),
        };
        (at, BioId(self.next_id.fetch_add(1, Ordering::Relaxed) * groups as u64 + at as u64))
    }

    fn group_on(&self, cpu: u32) -> usize {
        self.cpus.iter().position(|&c| c == cpu).unwrap_or(cpu as usize % self.cpus.len())
    }

    /// The index of the group that has, or had, the bio.
    pub(crate) fn group_of(&self, id: BioId) -> usize {
        (id.0 % self.cpus.len() as u64) as usize
    }
}
