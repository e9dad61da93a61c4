//! A pool of threads that read with `pread`: a group a CPU, pinned, at normal priority.
//!
//! A file whose bytes are resident is read on the submitting thread (`preadv2` with `RWF_NOWAIT`), as the kernel's
//! buffered read does; only what has to wait for the device goes to the pool.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::ReadWriteFlags;

use crate::bio::{Bio, Priority};
use crate::completion::Completion;
use crate::direct::DirectFile;
use crate::fill::{fill_from, short};
use crate::read_at::ReadAt;
use crate::source::{BioId, Source};
use crate::status::BlockStatus;
use crate::threads::{Pinned, allowed_cpus, spawn_pinned};

/// How a pool is made.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PreadConfig {
    /// The CPUs to have a group on; empty means all that the process may use.
    pub cpus: Vec<u32>,
    /// Threads a group; 0 means 4.
    pub threads_per_cpu: usize,
}

impl PreadConfig {
    /// All CPUs that the process may use, four threads each.
    pub fn new() -> Self {
        Self::default()
    }

    /// On these CPUs only.
    #[must_use]
    pub fn on_cpus(mut self, cpus: impl Into<Vec<u32>>) -> Self {
        self.cpus = cpus.into();
        self
    }

    /// With this many threads a CPU.
    #[must_use]
    pub fn threads(mut self, threads_per_cpu: usize) -> Self {
        self.threads_per_cpu = threads_per_cpu;
        self
    }
}

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

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PreadOptions {
    /// Which group reads.
    pub placement: Placement,
    /// Resident bytes are read on the submitting thread, where the file system can tell.
    pub inline_resident: bool,
    /// What offsets and lengths must be multiples of: 1, or the block size of a file opened with `O_DIRECT`.
    pub align: u32,
}

impl Default for PreadOptions {
    fn default() -> Self {
        Self { placement: Placement::Submitter, inline_resident: true, align: 1 }
    }
}

struct Job {
    id: u64,
    file: Arc<dyn ReadAt>,
    bio: Bio,
    done: Completion,
}

#[derive(Default)]
struct Queue {
    demand: VecDeque<Job>,
    ahead: VecDeque<Job>,
    stop: bool,
}

struct Group {
    cpu: u32,
    queue: Mutex<Queue>,
    wake: Condvar,
    next_id: AtomicU64,
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(mut job) = queue.demand.pop_front().or_else(|| queue.ahead.pop_front()) {
                drop(queue);
                fill_from(&mut job.bio, &job.file);
                job.done.complete(job.bio, self.cpu);
                drop(job.file);
                queue = self.lock();
            } else if queue.stop {
                return;
            } else {
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

struct Inner {
    groups: Vec<Arc<Group>>,
    threads: Vec<Pinned>,
    turn: AtomicU64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for group in &self.groups {
            group.lock().stop = true;
            group.wake.notify_all();
        }
        let me = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // The last handle may be dropped by a completion that runs on one of these threads.
            if thread.handle.thread().id() != me {
                let _ = thread.handle.join();
            }
        }
    }
}

/// A pool of reading threads. Clones share it; it ends with the last source or handle.
#[derive(Clone)]
pub struct PreadPool(Arc<Inner>);

impl PreadPool {
    /// Starts the threads.
    ///
    /// # Errors
    /// Where a thread can't be started, or not be pinned to a CPU that was asked for.
    pub fn new(config: PreadConfig) -> io::Result<Self> {
        let cpus = if config.cpus.is_empty() { allowed_cpus() } else { config.cpus };
        let per_cpu = if config.threads_per_cpu == 0 { 4 } else { config.threads_per_cpu };
        let mut inner = Inner { groups: Vec::new(), threads: Vec::new(), turn: AtomicU64::new(0) };
        for cpu in cpus {
            let queue = Mutex::new(Queue::default());
            let group = Arc::new(Group { cpu, queue, wake: Condvar::new(), next_id: AtomicU64::new(1) });
            inner.groups.push(group.clone());
            for n in 0..per_cpu {
                let group = group.clone();
                inner.threads.push(spawn_pinned(format!("pr-io/{cpu}:{n}"), cpu, move || group.run())?);
            }
        }
        Ok(Self(Arc::new(inner)))
    }

    /// A source that reads `file` with this pool.
    pub fn file(&self, file: File, options: PreadOptions) -> PreadSource {
        let file = Arc::new(file);
        // What bypasses the page cache is never resident.
        let resident = (options.inline_resident && options.align <= 1).then(|| file.clone());
        let file: Arc<dyn ReadAt> = if options.align > 1 { Arc::new(DirectFile::new(file)) } else { file };
        PreadSource { pool: self.clone(), file, resident, options }
    }

    /// A source that reads anything with this pool.
    pub fn read_at(&self, file: Arc<dyn ReadAt>, options: PreadOptions) -> PreadSource {
        PreadSource { pool: self.clone(), file, resident: None, options }
    }

    /// The kernel's ids of the threads.
    pub fn threads(&self) -> Vec<u32> {
        self.0.threads.iter().map(|t| t.tid).collect()
    }

    fn pick(&self, placement: Placement) -> usize {
        let groups = &self.0.groups;
        let cpu = match placement {
            Placement::RoundRobin => {
                return (self.0.turn.fetch_add(1, Ordering::Relaxed) % groups.len() as u64) as usize;
            }
            Placement::Submitter => crate::current_cpu(),
            Placement::Cpu(cpu) => cpu,
        };
        groups.iter().position(|g| g.cpu == cpu).unwrap_or(cpu as usize % groups.len())
    }

    fn enqueue(&self, placement: Placement, file: Arc<dyn ReadAt>, bio: Bio, done: Completion) -> BioId {
        let at = self.pick(placement);
        let group = &self.0.groups[at];
        let id = group.next_id.fetch_add(1, Ordering::Relaxed) * self.0.groups.len() as u64 + at as u64;
        let ahead = bio.priority() == Priority::ReadAhead;
        let mut queue = group.lock();
        if ahead { &mut queue.ahead } else { &mut queue.demand }.push_back(Job { id, file, bio, done });
        drop(queue);
        group.wake.notify_one();
        BioId(id)
    }

    fn group_of(&self, id: BioId) -> &Group {
        &self.0.groups[(id.0 % self.0.groups.len() as u64) as usize]
    }
}

impl fmt::Debug for PreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus: Vec<u32> = self.0.groups.iter().map(|g| g.cpu).collect();
        f.debug_struct("PreadPool").field("cpus", &cpus).field("threads", &self.0.threads.len()).finish()
    }
}

/// Something that a [`PreadPool`] reads.
#[derive(Clone)]
pub struct PreadSource {
    pool: PreadPool,
    file: Arc<dyn ReadAt>,
    /// The file again, where resident bytes are to be read inline.
    resident: Option<Arc<File>>,
    options: PreadOptions,
}

impl fmt::Debug for PreadSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreadSource").field("pool", &self.pool).field("options", &self.options).finish_non_exhaustive()
    }
}

/// Reads what is resident. True where the bio is complete, failures included.
pub(crate) fn read_resident(file: &File, bio: &mut Bio) -> bool {
    let offset = bio.offset();
    let mut done = 0;
    while done < bio.len() {
        let at = offset.saturating_add(done as u64);
        let room = &mut bio.buf_mut()[done..];
        match rustix::io::preadv2(file, &mut [io::IoSliceMut::new(room)], at, ReadWriteFlags::NOWAIT) {
            Ok(0) => {
                short(bio, done);
                return true;
            }
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            // Not resident, not supported, or an error: the pool finds out which.
            Err(_) => return false,
        }
    }
    true
}

impl Source for PreadSource {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn align(&self) -> u32 {
        self.options.align.max(1)
    }

    fn submit(&self, bio: Bio, done: Completion) -> BioId {
        let unit = bio.unit().max(self.align());
        let mut bio = bio.with_unit(unit);
        if let Some(file) = &self.resident
            && read_resident(file, &mut bio)
        {
            done.complete_here(bio);
            return BioId(0);
        }
        self.pool.enqueue(self.options.placement, self.file.clone(), bio, done)
    }

    fn cancel(&self, id: BioId) -> bool {
        let mut queue = self.pool.group_of(id).lock();
        let Queue { demand, ahead, .. } = &mut *queue;
        let found =
            [demand, ahead].into_iter().find_map(|q| q.iter().position(|j| j.id == id.0).map(|at| q.remove(at)));
        drop(queue);
        let Some(Some(mut job)) = found else { return false };
        job.bio.fail_all(&BlockStatus::Cancelled);
        job.done.complete_here(job.bio);
        true
    }

    fn raise(&self, id: BioId) -> bool {
        let mut queue = self.pool.group_of(id).lock();
        let Some(at) = queue.ahead.iter().position(|j| j.id == id.0) else { return false };
        let Some(job) = queue.ahead.remove(at) else { return false };
        queue.demand.push_back(job);
        true
    }

    fn completing_threads(&self) -> Vec<u32> {
        self.pool.threads()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::Buf;
    use std::io::Write;
    use std::sync::mpsc;

    fn read(source: &impl Source, offset: u64, len: usize) -> (Bio, u32) {
        let (tell, told) = mpsc::channel();
        let done = Completion::from_fn(move |bio, cpu| tell.send((bio.expect("not lost"), cpu)).expect("waits"));
        source.submit(Bio::new(offset, Buf::new(len)), done);
        told.recv().expect("completes")
    }

    #[test]
    fn reads_on_the_named_cpu_and_inline() {
        let mut file = tempfile::tempfile().expect("temporary file");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        file.write_all(&bytes).expect("written");
        let pool = PreadPool::new(PreadConfig::new().threads(2)).expect("pool");
        for cpu in allowed_cpus() {
            for inline_resident in [false, true] {
                let options = PreadOptions { placement: Placement::Cpu(cpu), inline_resident, align: 1 };
                let source = pool.file(file.try_clone().expect("clone"), options);
                let (bio, on) = read(&source, 5000, 70_000);
                assert!(inline_resident || on == cpu);
                assert_eq!(&bio.buf()[..], &bytes[5000..75_000]);
                assert!(bio.statuses().is_good());
                let (bio, _) = read(&source, 90_000, 20_000);
                assert_eq!(bio.statuses().bad()[0].range, 10_000..20_000);
            }
        }
    }

    /// Blocks until it is told to go on.
    struct Gate(Mutex<mpsc::Receiver<()>>);

    impl ReadAt for Gate {
        fn len(&self) -> io::Result<u64> {
            Ok(u64::MAX)
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            if offset == 0 {
                let _ = self.0.lock().expect("not poisoned").recv();
            }
            buf.fill(offset as u8);
            Ok(buf.len())
        }
    }

    #[test]
    fn cancels_what_is_queued_and_raises_read_ahead() {
        let cpu = allowed_cpus()[0];
        let pool = PreadPool::new(PreadConfig::new().on_cpus([cpu]).threads(1)).expect("pool");
        let (go, gate) = mpsc::channel();
        let source = pool.read_at(Arc::new(Gate(Mutex::new(gate))), PreadOptions::default());
        let (tell, told) = mpsc::channel();
        let submit = |offset, priority| {
            let tell = tell.clone();
            let done = Completion::from_fn(move |bio, _| tell.send(bio.expect("not lost")).expect("waits"));
            source.submit(Bio::new(offset, Buf::new(1)).with_priority(priority), done)
        };
        submit(0, Priority::Demand);
        let ahead = submit(1, Priority::ReadAhead);
        let raised = submit(2, Priority::ReadAhead);
        let victim = submit(3, Priority::Demand);
        assert!(source.cancel(victim));
        assert!(!source.cancel(victim));
        let bio = told.recv().expect("cancelled");
        assert_eq!((bio.offset(), bio.statuses().at(0)), (3, &BlockStatus::Cancelled));
        assert!(source.raise(raised));
        assert!(!source.raise(raised));
        go.send(()).expect("the thread waits");
        let order: Vec<u64> = (0..3).map(|_| told.recv().expect("completes").offset()).collect();
        assert_eq!(order, [0, 2, 1]);
        assert!(!source.cancel(ahead));
    }
}
