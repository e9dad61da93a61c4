//! Waiting on a thread for a future.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Parked {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

thread_local! {
    static PARKED: (Arc<Parked>, Waker) = Parked::here();
}

impl Parked {
    fn here() -> (Arc<Self>, Waker) {
        let parked = Arc::new(Self { thread: std::thread::current(), woken: AtomicBool::new(false) });
        (parked.clone(), Waker::from(parked))
    }
}

/// Polls `future` on this thread and parks in between.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut wait = |(parked, waker): &(Arc<Parked>, Waker)| {
        let mut cx = Context::from_waker(waker);
        loop {
            parked.woken.store(false, Ordering::Relaxed);
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            while !parked.woken.load(Ordering::Acquire) {
                std::thread::park();
            }
        }
    };
    match PARKED.try_with(&mut wait) {
        Ok(output) => output,
        // Called from the destructor of another thread-local, when this one is already gone.
        Err(_) => wait(&Parked::here()),
    }
}
