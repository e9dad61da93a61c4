//! The queue policy `auto`: local first, spread at break-even.
//!
//! When a bio is ready, three figures decide where its steps run: `s`, the time that they will take (bytes times the
//! measured nanoseconds per byte of this plan); `b`, the work that already waits where the bio completed; and `w`, the
//! measured cost of handing an item to an idle worker.
//!
//! 1. `b + s <= w`: on the completing thread. No other thread could begin sooner. At most 2 ms in a row, so that a
//!    completing thread always gets back to its completions.
//! 2. A thread sleeps until this bio is there: on that thread. It has to be woken in any case. (Not for futures, since
//!    it is unknown when they will be polled.)
//! 3. A worker is idle, and none is waking up: unbound.
//! 4. Otherwise all workers are busy: bound to the completing CPU, unless so much work waits there that the unbound
//!    queue is predicted to be faster. (If the reader itself completed the bio, and so will fetch it: left on the
//!    unbound queue for the reader or a worker, whichever is first; on a single CPU it runs at once.)
//!
//! A reader that needs a bio which no worker has begun takes it back and runs it, and while a worker runs the bio that
//! it waits for, it runs those that it will need next. Demand reads that are large for the machine are cut into bios of
//! 64 KiB or more, one for each CPU.
//!
//! There is no learning per item: [`decide`](Situation::decide) is a pure function of measured figures, which computes
//! the cost of every way. Two percent of the epochs run a fixed policy instead, as a control; each is compared with the
//! epoch after it by reader stall time per byte. If a sign test shows that `auto` loses, it is turned off in favour of
//! the winning policy, and [`AutoStats`] reports that.
//!
//! [`sim`] runs the same function on simulated machines. It is a model.

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
