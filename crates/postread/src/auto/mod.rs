//! The queue policy `auto`: local first, spread at break-even.
//!
//! When a bio is ready, three figures decide where its steps run: `s`, what they will take (bytes times the measured
//! nanoseconds per byte of this very plan); `b`, the work that already waits where the bio completed; and `w`, the
//! measured cost of handing an item to an idle worker.
//!
//! 1. `b + s <= w`: on the completing thread. Nobody else could have begun sooner. At most 2 ms in a row, so that a
//!    completing thread always gets back to its completions.
//! 2. A thread sleeps until this bio is there: on that thread. It has to be woken in any case. (Futures are not asked:
//!    nobody knows when they will be polled.)
//! 3. A worker is idle, and none is on its way: unbound.
//! 4. Otherwise everybody is busy: bound to the completing CPU, unless so much waits there already that the unbound queue
//!    is predicted to come to it sooner. (Where the reader itself completed the bio, and so will come for it: left on the
//!    unbound queue for whoever is first, reader or worker; on a single CPU it runs at once.)
//!
//! A reader that comes to a bio which no worker has begun takes it back and runs it, and while a worker runs the bio that
//! it waits for, it runs those that it will want next. Demand reads that are large for the machine are cut into bios of
//! 64 KiB or more, one for each CPU.
//!
//! Choices are not learnt item by item: [`decide`](Situation::decide) is a pure function of figures that are measured, and
//! it computes what the other ways would cost. Two percent of the epochs run a fixed policy instead, as a control; each
//! is compared with the epoch after it by how long readers stood still per byte. Where a sign test says that `auto` loses,
//! it is turned off in favour of the policy that won, and [`AutoStats`] says so.
//!
//! [`sim`] runs the same function on machines that are not there. It is a model.

mod control;
mod cost;
mod decide;
mod engine;
pub mod sim;

pub use control::{AutoOff, ControlStats};
pub use decide::{Costs, INLINE_RUN_NS, Situation, Way};
pub use engine::{AutoStats, WayStats};

pub(crate) use cost::StepCost;
pub(crate) use engine::{Auto, Decided, Ready, Submitting};
