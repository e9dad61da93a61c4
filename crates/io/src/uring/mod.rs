//! Reads through `io_uring`: one ring per CPU, its completions reaped by a thread pinned there, at normal priority.
//!
//! A ring takes a limited number of bios at once; the rest waits in a queue in front of it, where it can be cancelled
//! and where demand overtakes read-ahead.

mod ring;

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bio::Bio;
use crate::completion::Completion;
use crate::direct::DirectFile;
use crate::fill::{fill_from, isolate, short};
use crate::groups::{Group, Groups};
use crate::lanes::Lanes;
use crate::pread::{PreadOptions, read_resident};
use crate::read_at::ReadAt;
use crate::source::{BioId, Source};
use crate::status::BlockStatus;
use ring::{Op, Ring};

/// The settings of rings.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct UringConfig {
    /// The CPUs to have a ring on; empty means all that the process may use.
    pub cpus: Vec<u32>,
    /// Bios in flight on a ring at once; 0 means 64.
    pub depth: usize,
}

impl UringConfig {
    /// All CPUs that the process may use, 64 bios on each.
    pub fn new() -> Self {
        Self::default()
    }

    /// On these CPUs only.
    #[must_use]
    pub fn on_cpus(mut self, cpus: impl Into<Vec<u32>>) -> Self {
        self.cpus = cpus.into();
        self
    }

    /// With this many bios in flight on each.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }
}

#[derive(Default)]
struct Queue {
    waiting: Lanes<Op>,
    on_ring: usize,
}

struct CpuRing {
    cpu: u32,
    depth: usize,
    ring: Ring,
    queue: Mutex<Queue>,
    stop: AtomicBool,
}

impl CpuRing {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves waiting bios onto the ring as long as there is room.
    fn pump(&self) {
        loop {
            let op = {
                let mut queue = self.lock();
                if queue.on_ring >= self.depth {
                    return;
                }
                let Some(next) = queue.waiting.pop() else { return };
                queue.on_ring += 1;
                next
            };
            self.put_on_ring(op);
        }
    }

    fn put_on_ring(&self, mut op: Op) {
        op.bio.mark_begun();
        if let Err((op, _)) = self.ring.submit(op) {
            // The ring does not accept anything: fail the bio, so that it at least ends.
            self.ended(*op, -libc::EIO);
        }
    }

    fn ended(&self, mut op: Op, result: i32) {
        let len = op.bio.len();
        match usize::try_from(result) {
            Ok(0) => short(&mut op.bio, op.filled),
            Ok(n) => {
                op.filled = op.filled.saturating_add(n).min(len);
                if op.filled < len {
                    return self.put_on_ring(op);
                }
            }
            Err(_) if matches!(-result, libc::EAGAIN | libc::EINTR) => return self.put_on_ring(op),
            Err(_) => {
                let filled = op.filled;
                fill_rest(&mut op, filled);
            }
        }
        self.lock().on_ring -= 1;
        let Op { bio, done, .. } = op;
        done.complete(bio, self.cpu);
    }
}

impl Group for CpuRing {
    fn run(&self) {
        let mut ended = Vec::new();
        loop {
            if self.stop.load(Ordering::Acquire) && self.ring.in_flight() == 0 && self.lock().on_ring == 0 {
                return;
            }
            if self.ring.reap(&mut ended).is_err() {
                // The kernel is temporarily short of resources. Reads on the ring still end, and have to be waited for.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            for (op, result) in ended.drain(..) {
                self.ended(op, result);
            }
            self.pump();
        }
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.ring.wake();
    }
}

/// Reads the rest synchronously, unit by unit, so that only unreadable blocks fail.
fn fill_rest(op: &mut Op, filled: usize) {
    let file = op.file.clone();
    isolate(&mut op.bio, filled, &DirectFile::new(file));
}

/// Rings, one per CPU. Clones share them; they end with the last source or handle.
#[derive(Clone)]
pub struct UringPool(Arc<Groups<CpuRing>>);

impl UringPool {
    /// Makes the rings and starts their reapers.
    ///
    /// # Errors
    /// If the host refuses `io_uring` (old kernels, `io_uring_disabled`, containers' filters): use a
    /// [`PreadPool`](crate::PreadPool) there, or let [`FilePool`](crate::FilePool) choose.
    pub fn new(config: UringConfig) -> io::Result<Self> {
        let depth = if config.depth == 0 { 64 } else { config.depth.min(2048) };
        let make = |cpu| {
            let ring = Ring::new(depth.next_power_of_two() as u32)?;
            Ok(CpuRing { cpu, depth, ring, queue: Mutex::default(), stop: AtomicBool::new(false) })
        };
        let groups = Groups::start(config.cpus, 1, make, |cpu, _| format!("pr-ring/{cpu}"))?;
        Ok(Self(Arc::new(groups)))
    }

    /// A source that reads `file` through the rings. For a file opened with `O_DIRECT` set `options.align`.
    pub fn file(&self, file: File, options: PreadOptions) -> UringSource {
        UringSource { pool: self.clone(), file: Arc::new(file), options }
    }

    /// The kernel's ids of the reaping threads.
    pub fn threads(&self) -> Vec<u32> {
        self.0.threads()
    }
}

impl fmt::Debug for UringPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UringPool").field(&self.0).finish()
    }
}

/// A file that a [`UringPool`] reads.
#[derive(Clone)]
pub struct UringSource {
    pool: UringPool,
    file: Arc<File>,
    options: PreadOptions,
}

impl fmt::Debug for UringSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringSource").field("pool", &self.pool).field("options", &self.options).finish_non_exhaustive()
    }
}

impl Source for UringSource {
    fn len(&self) -> io::Result<u64> {
        ReadAt::len(&*self.file)
    }

    fn align(&self) -> u32 {
        self.options.align.max(1)
    }

    fn submit(&self, bio: Bio, done: Completion) -> BioId {
        let unit = bio.unit().max(self.align());
        let mut bio = bio.with_unit(unit);
        let seekable = i64::try_from(bio.offset()).is_ok_and(|at| at.checked_add_unsigned(bio.len() as u64).is_some());
        if bio.is_empty() || !seekable {
            fill_from(&mut bio, &*self.file);
            done.complete_here(bio);
            return BioId(0);
        }
        if self.options.inline_resident && self.align() == 1 && read_resident(&self.file, &mut bio) {
            done.complete_here(bio);
            return BioId(0);
        }
        let (ring, id) = self.pool.0.pick(self.options.completion_cpu);
        let priority = bio.priority();
        ring.lock().waiting.push(id.0, priority, Op { file: self.file.clone(), bio, done, filled: 0 });
        ring.pump();
        id
    }

    fn cancel(&self, id: BioId) -> bool {
        let found = self.pool.0.group_of(id).lock().waiting.remove(id.0);
        let Some(Op { mut bio, done, .. }) = found else { return false };
        bio.fail_all(&BlockStatus::Cancelled);
        done.complete_here(bio);
        true
    }

    fn raise(&self, id: BioId) -> bool {
        self.pool.0.group_of(id).lock().waiting.raise(id.0)
    }

    fn completing_threads(&self) -> Vec<u32> {
        self.pool.threads()
    }
}

#[cfg(test)]
mod tests;
