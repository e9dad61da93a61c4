//! Shared by the reading pools: a group of pinned threads for each CPU, and a choice of group for each bio.

use std::fmt;
use std::io;
use std::sync::Arc;

use postread_sys::contain;

use crate::completion_cpu::{CompletionCpu, Picker};
use crate::source::BioId;
use crate::threads::{Pinned, allowed_cpus, join_all, spawn_pinned};

/// The threads of one CPU, and what they read.
pub(crate) trait Group: Send + Sync + 'static {
    /// The loop of each thread, until it has to stop.
    fn run(&self);

    /// Makes its threads return once they have nothing left to do.
    fn stop(&self);
}

/// A group for each CPU. Dropping it stops the threads and waits for them.
pub(crate) struct Groups<G: Group> {
    groups: Vec<Arc<G>>,
    threads: Vec<Pinned>,
    picker: Picker,
}

impl<G: Group> Groups<G> {
    /// Makes a group with `make` on each of `cpus` (all that the process may use if empty) and starts
    /// `threads` threads in each, with names from `name(cpu, number)`.
    pub(crate) fn start(
        cpus: Vec<u32>,
        threads: usize,
        make: impl Fn(u32) -> io::Result<G>,
        name: impl Fn(u32, usize) -> String,
    ) -> io::Result<Self> {
        let cpus = if cpus.is_empty() { allowed_cpus() } else { cpus };
        let mut all = Self { groups: Vec::new(), threads: Vec::new(), picker: Picker::new(cpus.clone()) };
        for cpu in cpus {
            let group = Arc::new(make(cpu)?);
            all.groups.push(group.clone());
            for number in 0..threads {
                let group = group.clone();
                // If one bio panics, the others still need this thread.
                let run = move || while contain(|| group.run()).is_none() {};
                all.threads.push(spawn_pinned(name(cpu, number), cpu, run)?);
            }
        }
        Ok(all)
    }

    /// The kernel's ids of the threads.
    pub(crate) fn threads(&self) -> Vec<u32> {
        self.threads.iter().map(|t| t.tid).collect()
    }

    /// The group that a bio goes to, and the bio's id.
    pub(crate) fn pick(&self, on: CompletionCpu) -> (&G, BioId) {
        let (at, id) = self.picker.pick(on);
        (&self.groups[at], id)
    }

    /// The group that has, or had, a bio.
    pub(crate) fn group_of(&self, id: BioId) -> &G {
        &self.groups[self.picker.group_of(id)]
    }
}

impl<G: Group> fmt::Debug for Groups<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups")
            .field("cpus", &self.picker.cpus())
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

impl<G: Group> Drop for Groups<G> {
    fn drop(&mut self) {
        self.groups.iter().for_each(|group| group.stop());
        join_all(&mut self.threads);
    }
}
