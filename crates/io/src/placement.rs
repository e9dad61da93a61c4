//! On which CPU a bio is read, and so completes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::source::BioId;

/// Which group reads a bio, and so on which CPU it completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// The submitting CPU's: like a device with a queue a CPU.
    #[default]
    Submitter,
    /// Each in turn.
    RoundRobin,
    /// One CPU's: like a device with a single interrupt.
    Cpu(u32),
}

/// One group of several, for each bio anew.
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

    /// The index of a group, and an id that tells it.
    pub(crate) fn pick(&self, placement: Placement) -> (usize, BioId) {
        let groups = self.cpus.len();
        let at = match placement {
            Placement::RoundRobin => (self.turn.fetch_add(1, Ordering::Relaxed) % groups as u64) as usize,
            Placement::Submitter => self.on(crate::current_cpu()),
            Placement::Cpu(cpu) => self.on(cpu),
        };
        (at, BioId(self.next_id.fetch_add(1, Ordering::Relaxed) * groups as u64 + at as u64))
    }

    fn on(&self, cpu: u32) -> usize {
        self.cpus.iter().position(|&c| c == cpu).unwrap_or(cpu as usize % self.cpus.len())
    }

    /// The index of the group that has, or had, the bio.
    pub(crate) fn group_of(&self, id: BioId) -> usize {
        (id.0 % self.cpus.len() as u64) as usize
    }
}
