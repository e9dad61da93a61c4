//! The ledger without trace events, from stamps of items and the workers' `schedstat` counters.

use serde::Serialize;

/// The stamps of one item, in nanoseconds of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// It was queued.
    pub queued_ns: u64,
    /// `max_active` no longer held it back.
    pub activated_ns: u64,
    /// It started.
    pub started_ns: u64,
    /// It ended.
    pub ended_ns: u64,
    /// Any number that names the thread that executed it.
    pub worker: u64,
}

/// What the workers' `schedstat` counted meanwhile, summed over workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Time runnable and not running.
    pub run_delay_ns: u64,
    /// Time running.
    pub run_time_ns: u64,
}

/// The account. Waits are sums over items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Coarse {
    /// Items.
    pub items: u64,
    /// From queueing to start: the three that follow.
    pub wait_ns: u64,
    /// P0: held back by `max_active`.
    pub throttled_ns: u64,
    /// P1: the item's worker was executing another item. Whether that worker ran, was preempted or slept is not known.
    pub behind_item_ns: u64,
    /// P2 to P6 together: absorbed wake, worker creation, wake path, run queue, dispatch. Stamps cannot separate them.
    pub wake_to_start_ns: u64,
    /// The most of `wake_to_start_ns` that can be P5 if each wake-up had one item waiting for it: what the workers waited
    /// for a CPU. Preemption within items is in it too.
    pub run_delay_ns: u64,
    /// From start to end.
    pub inside_ns: u64,
    /// Of that, the most that was spent running: the workers' time on a CPU.
    pub run_time_ns: u64,
}

/// The parts that this account cannot separate, for reports.
pub const INSEPARABLE: &str = "P2 to P6 (absorbed wakes, worker creation, wake path, run queue, dispatch) are one figure, \
                               and so are the three kinds of P1: separating them needs root and tracefs";

/// Accounts for items from their stamps, in any order.
pub fn account(stamps: &[Stamp], counted: Counted) -> Coarse {
    let mut coarse =
        Coarse { run_delay_ns: counted.run_delay_ns, run_time_ns: counted.run_time_ns, ..Coarse::default() };
    let mut sorted: Vec<&Stamp> = stamps.iter().collect();
    sorted.sort_unstable_by_key(|stamp| (stamp.worker, stamp.started_ns));
    for (at, stamp) in sorted.iter().enumerate() {
        coarse.items += 1;
        let activated = stamp.activated_ns.clamp(stamp.queued_ns, stamp.started_ns);
        coarse.wait_ns += stamp.started_ns - stamp.queued_ns;
        coarse.throttled_ns += activated - stamp.queued_ns;
        // The same worker's items before it, as far back as they still ran after this one was active.
        let before = sorted[..at].iter().rev();
        let behind: u64 = before
            .take_while(|other| other.worker == stamp.worker && other.ended_ns > activated)
            .map(|other| other.ended_ns.min(stamp.started_ns) - other.started_ns.max(activated).min(other.ended_ns))
            .sum();
        let left = stamp.started_ns - activated;
        coarse.behind_item_ns += behind.min(left);
        coarse.wake_to_start_ns += left - behind.min(left);
        coarse.inside_ns += stamp.ended_ns.saturating_sub(stamp.started_ns);
    }
    coarse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stamps_tell_sums_to_the_whole() {
        let stamp = |queued_ns, activated_ns, started_ns, ended_ns, worker| Stamp {
            queued_ns,
            activated_ns,
            started_ns,
            ended_ns,
            worker,
        };
        let stamps = [
            // A wake-up of 10, then two items behind the first one, of which the third is held back by 20.
            stamp(100, 100, 110, 150, 1),
            stamp(105, 105, 150, 160, 1),
            stamp(130, 150, 160, 170, 1),
            // Another worker's do not count.
            stamp(100, 100, 100, 1000, 2),
        ];
        let coarse = account(&stamps, Counted { run_delay_ns: 9, run_time_ns: 950 });
        assert_eq!((coarse.items, coarse.throttled_ns, coarse.behind_item_ns), (4, 20, 40 + 10));
        assert_eq!(coarse.wake_to_start_ns, 10 + 5);
        assert_eq!(coarse.wait_ns, coarse.throttled_ns + coarse.behind_item_ns + coarse.wake_to_start_ns);
        assert_eq!((coarse.inside_ns, coarse.run_delay_ns), (40 + 10 + 10 + 900, 9));
    }
}
