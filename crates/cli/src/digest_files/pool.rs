//! The threads: one for each CPU, pinned. Each takes the next file, or helps with a large one. Where the system gives
//! fewer threads, those that there are do all of it, the calling one too.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use postread_sys::{CpuSet, affinity, quota};
use postread_verity::{Tree, TreeGeometry};

use super::large::LargeFile;
use super::{FileError, Job, TreeOut, digest_small, is_small, open_regular};
use crate::progress::Progress;

/// How many results may wait for an earlier one: bounds the memory.
const WINDOW: u64 = 1024;

/// A job, or an input that is none (a directory that cannot be read, say), to be reported in its turn.
pub(crate) type Input<T> = Result<Job<T>, (Job<T>, FileError)>;

struct State<'a, I, T, R> {
    inputs: I,
    exhausted: bool,
    taken: u64,
    told: u64,
    ready: BTreeMap<u64, (Job<T>, Result<Tree, FileError>)>,
    tell: R,
    large: Option<Arc<LargeFile<'a>>>,
}

struct Pool<'a, I, T, R> {
    state: Mutex<State<'a, I, T, R>>,
    /// A result was told, or a large file begun.
    moved: Condvar,
    tree_out: Option<&'a File>,
    progress: &'a Progress,
}

/// Digests all files that `inputs` names and tells each result, in the order of the inputs. `single` says that there is
/// just one small file, not worth a thread. The tree goes to `tree_out`: use it with one input only.
pub(crate) fn digest_all<T: Send>(
    inputs: impl Iterator<Item = Input<T>> + Send,
    single: bool,
    tree_out: Option<&File>,
    progress: &Progress,
    tell: impl FnMut(Job<T>, Result<Tree, FileError>) + Send,
) {
    let state = State { inputs, exhausted: false, taken: 0, told: 0, ready: BTreeMap::new(), tell, large: None };
    let pool = Pool { state: Mutex::new(state), moved: Condvar::new(), tree_out, progress };
    let cpus = if single { Vec::new() } else { cpus_to_use() };
    if cpus.len() < 2 {
        pool.work();
    } else {
        std::thread::scope(|scope| {
            let start = |cpu: u32| {
                let pool = &pool;
                std::thread::Builder::new().spawn_scoped(scope, move || {
                    let mut one = CpuSet::new();
                    one.insert(cpu);
                    // Where it is refused, the thread runs wherever the system puts it.
                    let _ = affinity::set_current(&one);
                    pool.work();
                })
            };
            if !cpus.iter().all(|&cpu| start(cpu).is_ok()) {
                pool.work();
            }
        });
    }
    progress.finish();
}

/// The CPUs of the affinity mask, no more of them than the CPU quota pays for.
fn cpus_to_use() -> Vec<u32> {
    let mut cpus: Vec<u32> = affinity::current().map(|set| set.iter().collect()).unwrap_or_default();
    if let Ok(Some(quota)) = quota::cpu_quota() {
        cpus.truncate((quota.ceil() as usize).max(1));
    }
    cpus
}

enum Next<'a, T> {
    Help(Arc<LargeFile<'a>>),
    File(u64, Job<T>),
    End,
}

impl<'a, I, T, R> Pool<'a, I, T, R>
where
    I: Iterator<Item = Input<T>>,
    R: FnMut(Job<T>, Result<Tree, FileError>),
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
                    self.tell(turn, job, result);
                }
            }
        }
    }

    fn next(&self) -> Next<'a, T> {
        let mut state = self.lock();
        loop {
            if let Some(large) = state.large.as_ref().filter(|large| large.has_work()) {
                return Next::Help(large.clone());
            }
            if state.exhausted {
                // Someone may be about to begin a large file.
                if state.taken == state.told + state.ready.len() as u64 || state.large.is_some() {
                    return Next::End;
                }
                state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if state.taken - state.told >= WINDOW {
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
                    Self::tell_in_turn(&mut state, turn, job, Err(error));
                }
                None => {
                    state.exhausted = true;
                    self.moved.notify_all();
                }
            }
        }
    }

    fn digest(&self, job: &Job<T>, buf: &mut Vec<u8>) -> Result<Tree, FileError> {
        let (file, metadata) = open_regular(&job.path)?;
        let out = match self.tree_out {
            None => TreeOut::None,
            Some(file) => TreeOut::File { file, geometry: TreeGeometry::new(&job.params, metadata.len())? },
        };
        if is_small(metadata.len()) {
            return digest_small(&file, &metadata, job.params, out, buf, self.progress);
        }
        let large = Arc::new(LargeFile::new(file, metadata, job.params, out, self.progress)?);
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

    fn tell(&self, turn: u64, job: Job<T>, result: Result<Tree, FileError>) {
        self.progress.file_done();
        let mut state = self.lock();
        Self::tell_in_turn(&mut state, turn, job, result);
        drop(state);
        self.moved.notify_all();
    }

    fn tell_in_turn(state: &mut State<'a, I, T, R>, turn: u64, job: Job<T>, result: Result<Tree, FileError>) {
        state.ready.insert(turn, (job, result));
        while let Some((job, result)) = state.ready.remove(&state.told) {
            state.told += 1;
            (state.tell)(job, result);
        }
    }
}
