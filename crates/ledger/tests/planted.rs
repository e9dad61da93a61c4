//! Causes of a wait planted one at a time: each dominates its own part, and the parts sum to the whole.

use postread_ledger::{Event, Kind, Left, Part, Pid, Trace, account};
use proptest::prelude::*;

/// Queues on CPU 0; worker 10 is bound to CPU 0, workers 20 and 21 are unbound; 30 is a program, 31 a completer.
struct Script {
    trace: Trace,
    function: u32,
    queue: u32,
}

const BOUND: Pid = 10;
const BOUND_2: Pid = 11;
const UNBOUND: Pid = 20;
const UNBOUND_2: Pid = 21;
const APP: Pid = 30;
const COMPLETER: Pid = 31;

impl Script {
    fn new() -> Script {
        let mut trace = Trace::default();
        let (function, queue) = (trace.name("verity_work"), trace.name("fsverity_read_queue"));
        for (pid, comm) in [
            (BOUND, "kworker/0:1H"),
            (BOUND_2, "kworker/0:2H"),
            (UNBOUND, "kworker/u4:0"),
            (UNBOUND_2, "kworker/u4:1"),
            (APP, "app"),
            (COMPLETER, "ksoftirqd/0"),
        ] {
            trace.comms.insert(pid, comm.into());
        }
        Script { trace, function, queue }
    }

    fn at(&mut self, time_ns: u64, cpu: u32, pid: Pid, kind: Kind) -> &mut Script {
        self.trace.events.push(Event { time_ns, cpu, pid, interrupt: false, kind });
        self
    }

    fn switch(&mut self, time: u64, cpu: u32, prev: Pid, left: Left, next: Pid) -> &mut Script {
        self.at(time, cpu, prev, Kind::Switch { prev, left, next })
    }

    fn queue(&mut self, time: u64, by: Pid, work: u64, bound: bool) -> &mut Script {
        let (function, queue) = (self.function, self.queue);
        self.at(time, 0, by, Kind::Queue { work, function, queue, cpu: bound.then_some(0) })
    }

    fn queue_and_activate(&mut self, time: u64, by: Pid, work: u64, bound: bool) -> &mut Script {
        self.queue(time, by, work, bound).at(time, 0, by, Kind::Activate { work })
    }

    fn wake(&mut self, time: u64, by: Pid, pid: Pid, cpu: u32) -> &mut Script {
        self.at(time, 0, by, Kind::Waking { pid, cpu }).at(time, 0, by, Kind::Wakeup { pid, cpu })
    }

    fn start(&mut self, time: u64, cpu: u32, worker: Pid, work: u64) -> &mut Script {
        let function = self.function;
        self.at(time, cpu, worker, Kind::Start { work, function })
    }

    fn end(&mut self, time: u64, cpu: u32, worker: Pid, work: u64) -> &mut Script {
        self.at(time, cpu, worker, Kind::End { work })
    }

    /// The wait of `work`: its parts, of which the sum is checked.
    fn wait(&self, work: u64) -> postread_ledger::ItemAccount {
        let ledger = account(&self.trace, |name| name == "verity_work");
        let item = *ledger.items.iter().find(|item| item.work == work).expect("accounted for");
        assert_eq!(item.wait.total_ns(), item.started_ns - item.queued_ns);
        let inside = item.inside.running_ns + item.inside.preempted_ns + item.inside.blocked_ns;
        assert_eq!(inside, item.ended_ns - item.started_ns);
        item
    }
}

fn dominated(script: &Script, work: u64, part: Part) {
    let item = script.wait(work);
    assert_eq!(item.wait.dominant(), Some(part), "{item:?}");
    assert!(item.wait.get(part) * 100 >= item.wait.total_ns() * 80, "{item:?}");
    assert_eq!(item.wait.get(Part::Unexplained), 0, "{item:?}");
}

#[test]
fn max_active_1_throttles() {
    let mut script = Script::new();
    script.switch(0, 0, 0, Left::Runnable, APP);
    script.queue_and_activate(100, APP, 1, true).wake(101, APP, BOUND, 0);
    // Queued at 102; activated only when the first one ends.
    script.queue(102, APP, 2, true);
    script.switch(110, 0, APP, Left::Runnable, BOUND).start(111, 0, BOUND, 1).end(1000, 0, BOUND, 1);
    script.at(1000, 0, BOUND, Kind::Activate { work: 2 }).start(1002, 0, BOUND, 2).end(1900, 0, BOUND, 2);
    dominated(&script, 2, Part::Throttled);
    assert_eq!(script.wait(2).wait.get(Part::Throttled), 898);
}

#[test]
fn an_item_behind_another_one_is_split_by_what_that_one_does() {
    for (state, part) in [
        (None, Part::BehindRunning),
        (Some(Left::Runnable), Part::BehindPreempted),
        (Some(Left::Sleeping), Part::BehindBlocked),
    ] {
        let mut script = Script::new();
        script.switch(0, 0, 0, Left::Runnable, APP);
        script.queue_and_activate(100, APP, 1, true).wake(101, APP, BOUND, 0);
        script.switch(110, 0, APP, Left::Runnable, BOUND).start(111, 0, BOUND, 1);
        script.queue_and_activate(120, BOUND, 2, true);
        if let Some(left) = state {
            script.switch(130, 0, BOUND, left, APP);
            if left == Left::Sleeping {
                script.wake(940, APP, BOUND, 0);
            }
            script.switch(950, 0, APP, Left::Runnable, BOUND);
        }
        script.end(1000, 0, BOUND, 1).start(1001, 0, BOUND, 2).end(1100, 0, BOUND, 2);
        dominated(&script, 2, part);
        // And the first one's own account shows what happened within it.
        let inside = script.wait(1).inside;
        match state {
            None => assert_eq!(inside.running_ns, 889),
            Some(Left::Sleeping) => assert_eq!(inside.blocked_ns, 810),
            Some(_) => assert_eq!(inside.preempted_ns, 820),
        }
    }
}

#[test]
fn a_worker_of_the_same_pool_that_runs_an_item_holds_a_bound_one_back_and_not_an_unbound_one() {
    for (bound, first, second) in [(true, BOUND, BOUND_2), (false, UNBOUND, UNBOUND_2)] {
        let mut script = Script::new();
        script.switch(0, 0, 0, Left::Runnable, APP).switch(1, 1, 0, Left::Runnable, first);
        script.start(2, 1, first, 9);
        script.queue_and_activate(100, APP, 1, bound);
        // Nobody wakes the second worker before 900.
        script.switch(110, 0, APP, Left::Sleeping, 0);
        script.at(900, 1, first, Kind::Waking { pid: second, cpu: 0 }).at(
            900,
            1,
            first,
            Kind::Wakeup { pid: second, cpu: 0 },
        );
        script.switch(905, 0, 0, Left::Runnable, second).start(906, 0, second, 1).end(950, 0, second, 1);
        script.end(960, 1, first, 9);
        dominated(&script, 1, Part::BehindRunning);
    }
}

#[test]
fn a_hog_keeps_the_worker_runnable() {
    for (hog, part) in [(APP, Part::BehindApp), (COMPLETER, Part::BehindCompleter), (BOUND_2, Part::BehindWorker)] {
        let mut script = Script::new();
        script.switch(0, 0, 0, Left::Runnable, hog);
        script.queue_and_activate(100, hog, 1, false).wake(101, hog, UNBOUND, 0);
        // The other CPU is idle all the time.
        script.switch(102, 1, APP, Left::Sleeping, 0);
        script.switch(1000, 0, hog, Left::Runnable, UNBOUND).start(1003, 0, UNBOUND, 1).end(1010, 0, UNBOUND, 1);
        dominated(&script, 1, part);
        assert_eq!(script.wait(1).idle_elsewhere_ns, 898);
    }
    let mut script = Script::new();
    script.switch(0, 0, 0, Left::Runnable, APP);
    script.queue_and_activate(100, APP, 1, true).wake(101, APP, BOUND, 0).at(102, 0, APP, Kind::InterruptBegin);
    script.at(990, 0, APP, Kind::InterruptEnd).switch(991, 0, APP, Left::Runnable, BOUND);
    script.start(992, 0, BOUND, 1).end(1000, 0, BOUND, 1);
    dominated(&script, 1, Part::BehindInterrupt);
}

#[test]
fn a_delayed_wake_is_the_wake_path() {
    // The request is at 101, the wake-up arrives at the other CPU at 800, which leaves idle until 900.
    let mut script = Script::new();
    script.switch(0, 0, 0, Left::Runnable, APP).switch(0, 1, APP, Left::Sleeping, 0);
    script.queue_and_activate(100, APP, 1, false).at(101, 0, APP, Kind::Waking { pid: UNBOUND, cpu: 1 });
    script.at(800, 1, 0, Kind::Wakeup { pid: UNBOUND, cpu: 1 }).switch(900, 1, 0, Left::Runnable, UNBOUND);
    script.start(903, 1, UNBOUND, 1).end(950, 1, UNBOUND, 1);
    dominated(&script, 1, Part::WakePath);
}

#[test]
fn a_wake_that_is_on_its_way_serves_later_items_too() {
    let mut script = Script::new();
    script.switch(0, 0, 0, Left::Runnable, APP);
    script.queue_and_activate(100, APP, 1, true).wake(101, APP, BOUND, 0);
    script.queue_and_activate(110, APP, 2, true).queue_and_activate(120, APP, 3, true);
    script.switch(1000, 0, APP, Left::Runnable, BOUND);
    for work in 1..=3 {
        script.start(1000 + work * 10, 0, BOUND, work).end(1009 + work * 10, 0, BOUND, work);
    }
    dominated(&script, 1, Part::BehindApp);
    for work in [2, 3] {
        dominated(&script, work, Part::WakeAbsorbed);
    }
    // One wake-up, three items: the scheduler counted 899, the items waited three times as long.
    let ledger = account(&script.trace, |_| true);
    assert_eq!(ledger.runnable_ns.workers, 899);
    assert_eq!(ledger.totals().wait_ns, 910 + 910 + 910);
    assert_eq!(ledger.totals().absorbed_runnable_ns, 890 + 880);
}

#[test]
fn a_worker_being_made_is_a_part_of_its_own() {
    let new = 22;
    let mut script = Script::new();
    script.trace.comms.insert(new, "kworker/u4:2".into());
    script.switch(0, 0, 0, Left::Runnable, APP).switch(1, 1, APP, Left::Sleeping, 0);
    script.queue_and_activate(100, APP, 1, false);
    script.switch(105, 0, APP, Left::Sleeping, 0);
    script.at(900, 1, 2, Kind::WakeupNew { pid: new, cpu: 1 }).switch(905, 1, 0, Left::Runnable, new);
    script.start(907, 1, new, 1).end(950, 1, new, 1);
    dominated(&script, 1, Part::WorkerMade);
}

#[test]
fn a_moved_worker_is_seen() {
    let mut script = Script::new();
    script.switch(0, 0, 0, Left::Runnable, APP).switch(1, 1, 0, Left::Runnable, COMPLETER);
    script.queue_and_activate(100, APP, 1, false).wake(101, APP, UNBOUND, 0);
    script.at(500, 1, COMPLETER, Kind::Migrate { pid: UNBOUND, to: 1 });
    script.switch(1000, 1, COMPLETER, Left::Sleeping, UNBOUND);
    script.start(1001, 1, UNBOUND, 1).end(1100, 1, UNBOUND, 1);
    let item = script.wait(1);
    assert!(item.migrated);
    assert_eq!((item.wait.get(Part::BehindApp), item.wait.get(Part::BehindCompleter)), (399, 500));
    assert_eq!((item.queued_on, item.started_on), (0, 1));
}

#[test]
fn a_wake_up_while_the_worker_still_leaves_its_cpu_counts_from_there() {
    let mut script = Script::new();
    script.switch(0, 0, 0, Left::Runnable, BOUND).start(1, 0, BOUND, 9).end(50, 0, BOUND, 9);
    // Requested at 100, the worker leaves the CPU at 110, asleep as far as the switch knows.
    script.at(100, 1, APP, Kind::Waking { pid: BOUND, cpu: 0 }).queue_and_activate(100, APP, 1, true);
    script.switch(110, 0, BOUND, Left::Sleeping, APP).switch(1000, 0, APP, Left::Runnable, BOUND);
    script.start(1001, 0, BOUND, 1).end(1010, 0, BOUND, 1);
    dominated(&script, 1, Part::BehindApp);
}

#[test]
fn the_reader_waits_for_the_worker_that_woke_it() {
    let mut script = Script::new();
    script
        .switch(0, 0, 0, Left::Runnable, BOUND)
        .queue_and_activate(10, BOUND, 1, true)
        .queue_and_activate(11, BOUND, 2, true);
    script.start(20, 0, BOUND, 1).wake(99, BOUND, APP, 0).end(100, 0, BOUND, 1);
    // The next item keeps the CPU.
    script.start(101, 0, BOUND, 2).end(900, 0, BOUND, 2).switch(905, 0, BOUND, Left::Sleeping, APP);
    let delivery = script.wait(1).delivery;
    assert_eq!((delivery.woken, delivery.wait_ns, delivery.behind_worker_ns), (1, 805, 805));
}

#[test]
fn what_lies_outside_of_the_trace_is_counted_and_in_no_sum() {
    let mut script = Script::new();
    // Started before, queued before, never started.
    script.end(10, 0, BOUND, 7).start(20, 0, BOUND, 8).end(30, 0, BOUND, 8).queue_and_activate(40, APP, 9, true);
    let ledger = account(&script.trace, |_| true);
    assert_eq!((ledger.items.len(), ledger.censored), (0, 2));
    assert_eq!(account(&Trace::default(), |_| true).totals().wait_ns, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// Whatever events there are, in whatever order: the parts of each item sum to its wait, and nothing panics.
    #[test]
    fn parts_sum_to_the_whole(steps in proptest::collection::vec((0u64..50, 0u32..3, 0u8..12, 0u32..8, 0u64..4), 0..200)) {
        let mut script = Script::new();
        let pids = [0, BOUND, BOUND_2, UNBOUND, UNBOUND_2, APP, COMPLETER, 99];
        let mut now = 0;
        for (gap, cpu, what, who, work) in steps {
            now += gap;
            let pid = pids[who as usize];
            let next = pids[(who as usize + work as usize) % pids.len()];
            let function = script.function;
            let queue = script.queue;
            let kind = match what {
                0 => Kind::Switch { prev: pid, left: Left::Runnable, next },
                1 => Kind::Switch { prev: pid, left: Left::Sleeping, next },
                2 => Kind::Waking { pid: next, cpu },
                3 => Kind::Wakeup { pid: next, cpu },
                4 => Kind::WakeupNew { pid: next, cpu },
                5 => Kind::Migrate { pid: next, to: cpu },
                6 => Kind::InterruptBegin,
                7 => Kind::InterruptEnd,
                8 => Kind::Queue { work, function, queue, cpu: (who % 2 == 0).then_some(cpu) },
                9 => Kind::Activate { work },
                10 => Kind::Start { work, function },
                _ => Kind::End { work },
            };
            script.at(now, cpu, pid, kind);
        }
        let ledger = account(&script.trace, |_| true);
        for item in &ledger.items {
            prop_assert_eq!(item.wait.total_ns(), item.started_ns - item.queued_ns);
            let inside = item.inside;
            prop_assert_eq!(inside.running_ns + inside.preempted_ns + inside.blocked_ns, item.ended_ns - item.started_ns);
        }
    }
}
