//! The rescuer: a thread made together with a `MEM_RECLAIM` queue, so that its items run even where no further
//! thread can be made. It runs items of its own queue only.

use std::sync::{Arc, Weak};
use std::{io, thread};

use postread_sys::{affinity, gettid, priority};

use crate::mayday::Mayday;
use crate::pool::{Pool, Shared, WorkerInfo};
use crate::queue::WqInner;
use crate::sync::lock;
use crate::worker;

pub(crate) struct Rescuer {
    queue: String,
    wq: Weak<WqInner>,
    mayday: Mayday<Arc<Pool>>,
}

/// After this many items the rescuer turns to the next pool that has called.
const TURN: usize = 16;

impl Rescuer {
    pub(crate) fn new(queue: &str, wq: Weak<WqInner>) -> Arc<Rescuer> {
        Arc::new(Rescuer { queue: queue.into(), wq, mayday: Mayday::new() })
    }

    /// Starts the thread.
    pub(crate) fn start(self: &Arc<Rescuer>, shared: &Arc<Shared>) -> io::Result<()> {
        let rescuer = Arc::clone(self);
        let slice = shared.slice;
        // The kernel's are named after their queue, too.
        let name: String = format!("pr/R-{}", self.queue).chars().take(15).collect();
        thread::Builder::new().name(name.clone()).spawn(move || {
            // Like the kernel's: nice -20, if permitted.
            let _ = priority::raise_current(slice);
            rescuer.run(&name);
        })?;
        lock(&shared.rescuers).push(Arc::downgrade(self));
        Ok(())
    }

    pub(crate) fn stop(&self) {
        self.mayday.stop();
    }

    /// By the manager, for a pool that gets no thread: the queue's name, if the pool has items of it.
    pub(crate) fn wanted_by(&self, pool: &Pool) -> Option<&str> {
        self.wq.upgrade().filter(|wq| pool.has_item_of(wq)).map(|_| self.queue.as_str())
    }

    pub(crate) fn call(&self, pool: &Arc<Pool>) {
        self.mayday.call(pool, Arc::ptr_eq);
    }

    fn run(&self, name: &str) {
        let info = WorkerInfo::new(name.into(), false);
        let _ = info.tid.set(gettid());
        while let Some(pool) = self.mayday.wait() {
            let Some(wq) = self.wq.upgrade() else { return };
            wq.count_mayday();
            // Runs elsewhere if that CPU is gone.
            let _ = affinity::set_current(&pool.allowed);
            let mut rescued = 0;
            worker::rescue(&pool, &info, || {
                if rescued == TURN && self.mayday.others_wait() {
                    return None;
                }
                let node = pool.take_of(&wq)?;
                rescued += 1;
                wq.count_rescued();
                Some(node)
            });
            if pool.has_item_of(&wq) {
                // After the pools that wait.
                self.call(&pool);
            }
        }
    }
}
