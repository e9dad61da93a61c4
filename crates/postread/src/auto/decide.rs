//! The decision: a pure function of measured figures.

/// The longest time that a completing thread runs steps in a row, in nanoseconds.
pub const INLINE_RUN_NS: u64 = 2_000_000;

/// Where the steps of a bio run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Way {
    /// On the completing thread.
    Inline,
    /// Queued to the completing CPU.
    Bound,
    /// Queued to any CPU.
    Unbound,
    /// On the thread of the reader that sleeps until the bio is ready.
    Reader,
}

impl Way {
    /// Every way.
    pub const ALL: [Way; 4] = [Way::Inline, Way::Bound, Way::Unbound, Way::Reader];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Inline => "inline",
            Way::Bound => "bound",
            Way::Unbound => "unbound",
            Way::Reader => "reader",
        }
    }
}

/// The situation when a bio is ready. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Situation {
    /// `s`: what the steps of this bio will take.
    pub steps_ns: u64,
    /// `b`: the work that already waits where the bio completed.
    pub backlog_ns: u64,
    /// The work that waits on the unbound queue, per worker that may run.
    pub unbound_backlog_ns: u64,
    /// `w`: handing an item to an idle worker.
    pub handoff_ns: u64,
    /// How long the completing thread has run steps in a row.
    pub inline_run_ns: u64,
    /// A worker is idle, none is already waking, and a CPU is free for it.
    pub idle_worker: bool,
    /// There are CPUs other than the completing one.
    pub other_cpus: bool,
    /// The bio's reader is a thread that sleeps until it is ready.
    pub reader_sleeps: bool,
    /// The completing thread is the reader, which will fetch the bio.
    pub reader_completes: bool,
}

/// The predicted cost of each way, from ready to done. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// On the completing thread.
    pub inline_ns: u64,
    /// Queued to the completing CPU.
    pub bound_ns: u64,
    /// Queued to any CPU.
    pub unbound_ns: u64,
    /// By the reader.
    pub reader_ns: u64,
}

impl Costs {
    /// The cost of one way.
    pub fn of(&self, way: Way) -> u64 {
        match way {
            Way::Inline => self.inline_ns,
            Way::Bound => self.bound_ns,
            Way::Unbound => self.unbound_ns,
            Way::Reader => self.reader_ns,
        }
    }
}

impl Situation {
    /// What each way would cost.
    pub fn costs(&self) -> Costs {
        let here = self.backlog_ns.saturating_add(self.steps_ns);
        let queued = if self.idle_worker { 0 } else { self.unbound_backlog_ns };
        Costs {
            inline_ns: here,
            bound_ns: here.saturating_add(self.handoff_ns),
            unbound_ns: self.steps_ns.saturating_add(self.handoff_ns).saturating_add(queued),
            // Every way includes the wake-up of a sleeping reader; a reader that is awake needs none.
            reader_ns: self.steps_ns.saturating_add(if self.reader_sleeps { self.handoff_ns } else { 0 }),
        }
    }

    /// Where the steps are to run.
    pub fn decide(&self) -> Way {
        let here = self.backlog_ns.saturating_add(self.steps_ns);
        let in_a_row = self.inline_run_ns.saturating_add(self.steps_ns);
        if here <= self.handoff_ns && in_a_row <= INLINE_RUN_NS {
            Way::Inline
        } else if self.reader_sleeps {
            Way::Reader
        } else if self.idle_worker {
            Way::Unbound
        } else if self.reader_completes {
            if self.other_cpus { Way::Unbound } else { Way::Inline }
        } else {
            // All workers are busy. After a burst from one CPU the others will be free sooner than that one.
            let costs = self.costs();
            if self.other_cpus && costs.unbound_ns < costs.bound_ns { Way::Unbound } else { Way::Bound }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_first_then_spread() {
        let s = Situation {
            steps_ns: 3_000,
            handoff_ns: 5_000,
            idle_worker: true,
            other_cpus: true,
            ..Situation::default()
        };
        assert_eq!(s.decide(), Way::Inline);
        // Break-even, and just beyond it.
        assert_eq!(Situation { backlog_ns: 2_000, ..s }.decide(), Way::Inline);
        assert_eq!(Situation { backlog_ns: 2_001, ..s }.decide(), Way::Unbound);
        assert_eq!(Situation { steps_ns: 70_000, idle_worker: false, ..s }.decide(), Way::Bound);
        assert_eq!(Situation { steps_ns: 70_000, reader_sleeps: true, ..s }.decide(), Way::Reader);
        // Two milliseconds in a row are enough, however cheap the next one is.
        assert_eq!(Situation { inline_run_ns: INLINE_RUN_NS - 2_999, ..s }.decide(), Way::Unbound);
        let own = Situation { steps_ns: 70_000, idle_worker: false, reader_completes: true, ..s };
        assert_eq!(own.decide(), Way::Unbound);
        assert_eq!(Situation { other_cpus: false, ..own }.decide(), Way::Inline);
    }

    /// Over every corner: inline is never chosen above break-even or beyond its time, a way that needs a reader never
    /// without one, and figures at the edge of their range overflow nothing.
    #[test]
    fn every_corner() {
        let times = [0, 1, 4_999, 5_000, 5_001, INLINE_RUN_NS, INLINE_RUN_NS + 1, u64::MAX];
        let mut seen = std::collections::HashSet::new();
        for steps_ns in times {
            for backlog_ns in times {
                for handoff_ns in times {
                    for inline_run_ns in times {
                        for bits in 0..16 {
                            let bit = |n: u32| bits >> n & 1 == 1;
                            let s = Situation {
                                steps_ns,
                                backlog_ns,
                                unbound_backlog_ns: backlog_ns,
                                handoff_ns,
                                inline_run_ns,
                                idle_worker: bit(0),
                                other_cpus: bit(1),
                                reader_sleeps: bit(2),
                                reader_completes: bit(3),
                            };
                            let (way, costs) = (s.decide(), s.costs());
                            seen.insert(way);
                            match way {
                                Way::Inline if s.reader_completes && !s.other_cpus => {}
                                Way::Inline => {
                                    assert!(costs.inline_ns <= handoff_ns, "{s:?}");
                                    assert!(inline_run_ns.saturating_add(steps_ns) <= INLINE_RUN_NS, "{s:?}");
                                }
                                Way::Reader => assert!(s.reader_sleeps, "{s:?}"),
                                Way::Unbound => assert!(s.idle_worker || s.other_cpus, "{s:?}"),
                                Way::Bound => assert!(!s.idle_worker && !s.reader_sleeps, "{s:?}"),
                            }
                        }
                    }
                }
            }
        }
        assert_eq!(seen.len(), 4);
    }
}
