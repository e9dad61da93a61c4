//! The threads: one for each CPU, pinned. Each takes the next file, or helps with a large one. If the system refuses
//! threads, the others do all the work, including the calling thread.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use postread_sys::{CpuSet, affinity, quota};
use postread_verity::{Tree, TreeGeometry};

use super::large::LargeFile;
use super::{DigestInput, DigestJob, FileError, LARGE, Progress, TreeOut, open_regular, small};

/// How many results may wait for an earlier one: bounds the memory.
const WINDOW: u64 = 1024;

/// Digests files in parallel and reports each result in the order of the inputs.
///
/// ```
/// use std::ops::ControlFlow;
/// use postread::{DigestJob, Digester};
/// use postread_verity::{HashAlg, MerkleTreeParams};
///
/// # let dir = tempfile::tempdir()?;
/// # let paths = ["a", "b"].map(|name| dir.path().join(name));
/// # for path in &paths { std::fs::write(path, "x")?; }
/// let params = MerkleTreeParams::new(HashAlg::Sha512, 4096, b"salt")?;
/// let jobs = paths.iter().map(|path| Ok(DigestJob { path: path.clone(), params, tag: () }));
/// Digester::new().run(jobs, |job, tree| match tree {
///     Ok(tree) => {
///         println!("{} {}", tree.descriptor().file_digest(), job.path.display());
///         ControlFlow::Continue(())
///     }
///     Err(_) => ControlFlow::Break(()),
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Digester<'a> {
    progress: &'a dyn Progress,
    tree_out: Option<&'a File>,
    single_thread: bool,
}

impl Default for Digester<'_> {
    fn default() -> Self {
        Self { progress: &(), tree_out: None, single_thread: false }
    }
}

impl fmt::Debug for Digester<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Digester").field("single_thread", &self.single_thread).finish_non_exhaustive()
    }
}

impl<'a> Digester<'a> {
    /// On all CPUs that the affinity mask and the CPU quota allow.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reports progress to `progress`.
    #[must_use]
    pub fn progress(mut self, progress: &'a dyn Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Writes the Merkle tree to `file`. For one input only.
    #[must_use]
    pub fn tree_out(mut self, file: Option<&'a File>) -> Self {
        self.tree_out = file;
        self
    }

    /// Uses the calling thread alone if `single`: a single small file is not worth a thread.
    #[must_use]
    pub fn single_thread(mut self, single: bool) -> Self {
        self.single_thread = single;
        self
    }

    /// Digests the files of `inputs` and hands each result to `each`, in the order of the inputs. Ends early when `each`
    /// breaks: files that are being hashed are abandoned.
    pub fn run<T: Send>(
        self,
        inputs: impl Iterator<Item = DigestInput<T>> + Send,
        each: impl FnMut(DigestJob<T>, Result<Tree, FileError>) -> ControlFlow<()> + Send,
    ) {
        let stopped = AtomicBool::new(false);
        let state =
            State { inputs, exhausted: false, taken: 0, delivered: 0, ready: BTreeMap::new(), each, large: None };
        let pool = Pool { state: Mutex::new(state), moved: Condvar::new(), stopped: &stopped, options: self };
        let cpus = if self.single_thread { Vec::new() } else { cpus_to_use() };
        if cpus.len() < 2 {
            pool.work();
            return;
        }
        std::thread::scope(|scope| {
            let start = |cpu: u32| {
                let pool = &pool;
                std::thread::Builder::new().spawn_scoped(scope, move || {
                    let mut one = CpuSet::new();
                    one.insert(cpu);
                    // If that is refused, the thread runs unpinned.
                    let _ = affinity::set_current(&one);
                    pool.work();
                })
            };
            if !cpus.iter().all(|&cpu| start(cpu).is_ok()) {
                pool.work();
            }
        });
    }
}

/// The CPUs of the affinity mask, at most as many as the CPU quota allows.
fn cpus_to_use() -> Vec<u32> {
    let mut cpus: Vec<u32> = affinity::current().map(|set| set.iter().collect()).unwrap_or_default();
    if let Ok(Some(quota)) = quota::cpu_quota() {
        cpus.truncate((quota.ceil() as usize).max(1));
    }
    cpus
}

struct State<'a, I, T, R> {
    inputs: I,
    exhausted: bool,
    taken: u64,
    delivered: u64,
    ready: BTreeMap<u64, (DigestJob<T>, Result<Tree, FileError>)>,
    each: R,
    large: Option<Arc<LargeFile<'a>>>,
}

struct Pool<'a, I, T, R> {
    state: Mutex<State<'a, I, T, R>>,
    /// A result was delivered, a large file begun, or the caller wants no more.
    moved: Condvar,
    stopped: &'a AtomicBool,
    options: Digester<'a>,
}

enum Next<'a, T> {
    Help(Arc<LargeFile<'a>>),
    File(u64, DigestJob<T>),
    End,
}

impl<'a, I, T, R> Pool<'a, I, T, R>
where
    I: Iterator<Item = DigestInput<T>>,
    R: FnMut(DigestJob<T>, Result<Tree, FileError>) -> ControlFlow<()>,
{
    fn lock(&self) -> MutexGuard<'_, State<'a, I, T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut buf = Vec::new();
        loop {
            match self.next() {
                Next::End => return,
                Next::Help(large) => large.help(&mut buf),
                Next::File(turn, job) => {
                    let result = self.digest(&job, &mut buf);
                    self.options.progress.file_done();
                    self.deliver(&mut self.lock(), turn, job, result);
                }
            }
        }
    }

    fn next(&self) -> Next<'a, T> {
        let mut state = self.lock();
        loop {
            if self.stopped.load(Ordering::Relaxed) {
                return Next::End;
            }
            if let Some(large) = state.large.as_ref().filter(|large| large.has_work()) {
                return Next::Help(large.clone());
            }
            if state.exhausted {
                // Someone may be about to begin a large file.
                if state.taken == state.delivered + state.ready.len() as u64 || state.large.is_some() {
                    return Next::End;
                }
                state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if state.taken - state.delivered >= WINDOW {
                state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            match state.inputs.next() {
                Some(Ok(job)) => {
                    let turn = state.taken;
                    state.taken += 1;
                    return Next::File(turn, job);
                }
                Some(Err((job, error))) => {
                    let turn = state.taken;
                    state.taken += 1;
                    self.deliver(&mut state, turn, job, Err(error));
                }
                None => {
                    state.exhausted = true;
                    self.moved.notify_all();
                }
            }
        }
    }

    fn digest(&self, job: &DigestJob<T>, buf: &mut Vec<u8>) -> Result<Tree, FileError> {
        let (file, metadata) = open_regular(&job.path)?;
        let out = match self.options.tree_out {
            None => TreeOut::None,
            Some(file) => TreeOut::File { file, geometry: TreeGeometry::new(&job.params, metadata.len())? },
        };
        let progress = self.options.progress;
        if metadata.len() < LARGE {
            return small::digest(&file, &metadata, job.params, out, buf, progress);
        }
        let large = Arc::new(LargeFile::new(file, metadata, job.params, out, progress, self.stopped)?);
        {
            // One at a time is offered to the others: a thread that begins a second one works on it alone until then.
            let mut state = self.lock();
            if state.large.as_ref().is_none_or(|other| !other.has_work()) {
                state.large = Some(large.clone());
                self.moved.notify_all();
            }
        }
        large.help(buf);
        let result = large.finish();
        let mut state = self.lock();
        if state.large.as_ref().is_some_and(|other| Arc::ptr_eq(other, &large)) {
            state.large = None;
        }
        result
    }

    /// Keeps a result until its turn, and hands on those whose turn it is.
    fn deliver(&self, state: &mut State<'a, I, T, R>, turn: u64, job: DigestJob<T>, result: Result<Tree, FileError>) {
        state.ready.insert(turn, (job, result));
        while let Some((job, result)) = state.ready.remove(&state.delivered) {
            state.delivered += 1;
            if !self.stopped.load(Ordering::Relaxed) && (state.each)(job, result).is_break() {
                self.stopped.store(true, Ordering::Relaxed);
            }
        }
        self.moved.notify_all();
    }
}
