//! A pool of threads that read with `pread`: a group per CPU, pinned, at normal priority.
//!
//! A file whose bytes are resident is read on the submitting thread (`preadv2` with `RWF_NOWAIT`), as the kernel's
//! buffered read does; only reads that have to wait for the device go to the pool.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use postread_sys::contain;
use rustix::io::ReadWriteFlags;

use crate::bio::Bio;
use crate::completion::Completion;
use crate::completion_cpu::CompletionCpu;
use crate::direct::DirectFile;
use crate::fill::{fill_from, short};
use crate::groups::{Group, Groups};
use crate::lanes::Lanes;
use crate::read_at::ReadAt;
use crate::source::{BioId, Source};
use crate::status::BlockStatus;

/// The settings of a pool.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PreadConfig {
    /// The CPUs to have a group on; empty means all that the process may use.
    pub cpus: Vec<u32>,
    /// Threads per group; 0 means 4.
    pub threads_per_cpu: usize,
}

impl PreadConfig {
    /// All CPUs that the process may use, four threads on each.
    pub fn new() -> Self {
        Self::default()
    }

    /// On these CPUs only.
    #[must_use]
    pub fn on_cpus(mut self, cpus: impl Into<Vec<u32>>) -> Self {
        self.cpus = cpus.into();
        self
    }

    /// With this many threads per CPU.
    #[must_use]
    pub fn threads(mut self, threads_per_cpu: usize) -> Self {
        self.threads_per_cpu = threads_per_cpu;
        self
    }
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PreadOptions {
    /// The CPU that reads a bio and completes it.
    pub completion_cpu: CompletionCpu,
    /// Read resident bytes on the submitting thread, if the file system supports that.
    pub inline_resident: bool,
    /// What offsets and lengths must be multiples of: 1, or the block size of a file opened with `O_DIRECT`.
    pub align: u32,
}

impl Default for PreadOptions {
    fn default() -> Self {
        Self { completion_cpu: CompletionCpu::Submitter, inline_resident: true, align: 1 }
    }
}

struct Job {
    file: Arc<dyn ReadAt>,
    bio: Bio,
    done: Completion,
}

#[derive(Default)]
struct Queue {
    waiting: Lanes<Job>,
    stop: bool,
}

struct CpuThreads {
    cpu: u32,
    queue: Mutex<Queue>,
    wake: Condvar,
}

impl CpuThreads {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group for CpuThreads {
    fn run(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(Job { file, mut bio, done }) = queue.waiting.pop() {
                drop(queue);
                fill_from(&mut bio, &file);
                done.complete(bio, self.cpu);
                // It may be the last handle of a foreign source.
                let _ = contain(|| drop(file));
                queue = self.lock();
            } else if queue.stop {
                return;
            } else {
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn stop(&self) {
        self.lock().stop = true;
        self.wake.notify_all();
    }
}

/// A pool of reading threads. Clones share it; it ends with the last source or handle.
#[derive(Clone)]
pub struct PreadPool(Arc<Groups<CpuThreads>>);

impl PreadPool {
    /// Starts the threads.
    ///
    /// # Errors
    /// If a thread can't be started, or can't be pinned to a requested CPU.
    pub fn new(config: PreadConfig) -> io::Result<Self> {
        let threads = if config.threads_per_cpu == 0 { 4 } else { config.threads_per_cpu };
        let make = |cpu| Ok(CpuThreads { cpu, queue: Mutex::default(), wake: Condvar::new() });
        let groups = Groups::start(config.cpus, threads, make, |cpu, n| format!("pr-io/{cpu}:{n}"))?;
        Ok(Self(Arc::new(groups)))
    }

    /// A source that reads `file` with this pool.
    pub fn file(&self, file: File, options: PreadOptions) -> PreadSource {
        let file = Arc::new(file);
        // Reads that bypass the page cache are never resident.
        let resident = (options.inline_resident && options.align <= 1).then(|| file.clone());
        let file: Arc<dyn ReadAt> = if options.align > 1 { Arc::new(DirectFile::new(file)) } else { file };
        PreadSource { pool: self.clone(), file, resident, options }
    }

    /// A source that reads anything with this pool. If it waits for bios of this same pool itself, it may wait forever
    /// once all threads of a CPU are inside it.
    pub fn read_at(&self, file: Arc<dyn ReadAt>, options: PreadOptions) -> PreadSource {
        PreadSource { pool: self.clone(), file, resident: None, options }
    }

    /// The kernel's ids of the threads.
    pub fn threads(&self) -> Vec<u32> {
        self.0.threads()
    }
}

impl fmt::Debug for PreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PreadPool").field(&self.0).finish()
    }
}

/// Something that a [`PreadPool`] reads.
#[derive(Clone)]
pub struct PreadSource {
    pool: PreadPool,
    file: Arc<dyn ReadAt>,
    /// The file again, if resident bytes are to be read inline.
    resident: Option<Arc<File>>,
    options: PreadOptions,
}

impl fmt::Debug for PreadSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreadSource").field("pool", &self.pool).field("options", &self.options).finish_non_exhaustive()
    }
}

/// Reads what is resident. True if the bio is complete, even with failures.
pub(crate) fn read_resident(file: &File, bio: &mut Bio) -> bool {
    let (offset, begun) = (bio.offset(), postread_sys::stamp_ns());
    let mut done = 0;
    while done < bio.len() {
        let at = offset.saturating_add(done as u64);
        let room = &mut bio.buf_mut()[done..];
        match rustix::io::preadv2(file, &mut [io::IoSliceMut::new(room)], at, ReadWriteFlags::NOWAIT) {
            Ok(0) => {
                short(bio, done);
                break;
            }
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            // Not resident, not supported, or an error: the pool finds out which.
            Err(_) => return false,
        }
    }
    bio.mark_begun_at(begun);
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
        let (group, id) = self.pool.0.pick(self.options.completion_cpu);
        group.lock().waiting.push(id.0, bio.priority(), Job { file: self.file.clone(), bio, done });
        group.wake.notify_one();
        id
    }

    fn cancel(&self, id: BioId) -> bool {
        let found = self.pool.0.group_of(id).lock().waiting.remove(id.0);
        let Some(Job { mut bio, done, .. }) = found else { return false };
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
mod tests {
    use super::*;
    use crate::bio::Priority;
    use crate::buf::Buf;
    use crate::threads::allowed_cpus;
    use std::io::Write;
    use std::sync::atomic::{AtomicU32, Ordering};
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
                let options = PreadOptions { completion_cpu: CompletionCpu::Cpu(cpu), inline_resident, align: 1 };
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

    /// Remembers the CPU that read it.
    struct ReadOn(AtomicU32);

    impl ReadAt for ReadOn {
        fn len(&self) -> io::Result<u64> {
            Ok(u64::MAX)
        }

        fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
            self.0.store(crate::current_cpu(), Ordering::SeqCst);
            buf.fill(0);
            Ok(buf.len())
        }
    }

    #[test]
    fn a_bio_is_read_on_the_cpu_that_it_completes_on() {
        let pool = PreadPool::new(PreadConfig::new().threads(2)).expect("pool");
        let file = Arc::new(ReadOn(AtomicU32::new(u32::MAX)));
        let on = |completion_cpu| {
            let options = PreadOptions { completion_cpu, ..PreadOptions::default() };
            let (_, told) = read(&pool.read_at(file.clone(), options), 0, 4096);
            assert_eq!(file.0.load(Ordering::SeqCst), told);
            told
        };
        for cpu in allowed_cpus() {
            assert_eq!(on(CompletionCpu::Cpu(cpu)), cpu);
        }
        let mut seen: Vec<u32> = allowed_cpus().iter().map(|_| on(CompletionCpu::RoundRobin)).collect();
        seen.sort_unstable();
        assert_eq!(seen, allowed_cpus(), "each in turn");
        on(CompletionCpu::Submitter);
    }

    /// Panics when it is read, and when it is dropped.
    struct Hostile;

    impl ReadAt for Hostile {
        fn len(&self) -> io::Result<u64> {
            Ok(1 << 20)
        }

        fn read_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<usize> {
            std::panic::resume_unwind(Box::new("on purpose"))
        }
    }

    impl Drop for Hostile {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("on purpose"))
        }
    }

    /// More panics than there are threads: in the source, in its destructor, in the completion.
    #[test]
    fn code_of_others_that_panics_ends_no_thread() {
        let cpu = allowed_cpus()[0];
        let pool = PreadPool::new(PreadConfig::new().on_cpus([cpu]).threads(2)).expect("pool");
        let good: Arc<dyn ReadAt> = Arc::new(vec![1u8; 8192]);
        for _ in 0..5 {
            let bad = pool.read_at(Arc::new(Hostile), PreadOptions::default());
            let (tell, told) = mpsc::channel();
            bad.submit(Bio::new(0, Buf::new(4096)), Completion::from_fn(move |bio, _| tell.send(bio).expect("waits")));
            // The thread that completes it drops the last handle.
            let _ = contain(|| drop(bad));
            let bio = told.recv().expect("completes").expect("not lost");
            assert_eq!(bio.statuses().at(0), &BlockStatus::Lost);
            let source = pool.read_at(good.clone(), PreadOptions::default());
            let done = Completion::from_fn(|_, _| std::panic::resume_unwind(Box::new("on purpose")));
            source.submit(Bio::new(0, Buf::new(4096)), done);
        }
        let (bio, _) = read(&pool.read_at(good, PreadOptions::default()), 0, 8192);
        assert!(bio.statuses().is_good() && bio.buf().iter().all(|&b| b == 1));
    }

    /// Blocks until it is released.
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
