//! The flush of a queue: it covers what was queued before, and ends.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::flush::FlushCounts;
use crate::model;

fn flush(counts: &FlushCounts) {
    let old = counts.turn();
    counts.wait_idle(&[old], |sleep| sleep());
}

#[test]
fn a_flush_returns_after_what_was_queued_before() {
    model(3, || {
        let counts = Arc::new(FlushCounts::new(2));
        let ran = Arc::new(AtomicUsize::new(0));
        // Queued on CPU 0; done on CPU 1 by another thread.
        let (color, _) = counts.count_queued(0);
        let worker = {
            let (counts, ran) = (Arc::clone(&counts), Arc::clone(&ran));
            thread::spawn(move || {
                ran.store(1, Relaxed);
                counts.count_done(1, color);
            })
        };
        flush(&counts);
        assert_eq!(ran.load(Relaxed), 1);
        worker.join().unwrap();
    });
}

#[test]
fn an_item_that_is_queued_while_the_colour_turns_is_not_missed() {
    model(3, || {
        let counts = Arc::new(FlushCounts::new(1));
        let ran = Arc::new(AtomicUsize::new(0));
        let queued = Arc::new(AtomicUsize::new(0));
        let other = {
            let (counts, ran, queued) = (Arc::clone(&counts), Arc::clone(&ran), Arc::clone(&queued));
            thread::spawn(move || {
                let (color, _) = counts.count_queued(0);
                queued.store(1, Release);
                ran.store(1, Relaxed);
                counts.count_done(0, color);
            })
        };
        // The first flush may come in the middle of the queueing; the second one is after it.
        flush(&counts);
        if queued.load(Acquire) == 1 {
            flush(&counts);
            assert_eq!(ran.load(Relaxed), 1);
        }
        other.join().unwrap();
        assert_eq!((counts.queued(), counts.done()), (1, 1));
    });
}

#[test]
fn a_drain_sees_the_item_or_the_item_sees_the_drain() {
    model(3, || {
        let counts = Arc::new(FlushCounts::new(1));
        let draining = Arc::new(AtomicUsize::new(0));
        let ran = Arc::new(AtomicUsize::new(0));
        let other = {
            let (counts, draining, ran) = (Arc::clone(&counts), Arc::clone(&draining), Arc::clone(&ran));
            thread::spawn(move || {
                let (color, _) = counts.count_queued(0);
                loom::sync::atomic::fence(Ordering::SeqCst);
                if draining.load(Ordering::SeqCst) != 0 {
                    counts.uncount(0, color);
                    return false;
                }
                ran.store(1, Relaxed);
                counts.count_done(0, color);
                true
            })
        };
        draining.fetch_add(1, Ordering::SeqCst);
        loom::sync::atomic::fence(Ordering::SeqCst);
        counts.wait_idle(&[0, 1], |sleep| sleep());
        let before = ran.load(Relaxed);
        let queued = other.join().unwrap();
        assert_eq!(before == 1, queued, "it ran after the drain, or was refused and ran");
    });
}

#[test]
fn who_comes_last_sees_that_a_closed_queue_is_over() {
    model(3, || {
        let counts = Arc::new(FlushCounts::new(2));
        let over = Arc::new(AtomicUsize::new(0));
        let (color, _) = counts.count_queued(0);
        let worker = {
            let (counts, over) = (Arc::clone(&counts), Arc::clone(&over));
            thread::spawn(move || {
                counts.count_done(1, color);
                over.fetch_add(usize::from(counts.is_over()), Relaxed);
            })
        };
        over.fetch_add(usize::from(counts.close()), Relaxed);
        worker.join().unwrap();
        assert!(over.load(Relaxed) >= 1, "neither sees that it is over");
    });
}
