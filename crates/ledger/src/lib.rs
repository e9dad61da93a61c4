//! Where the time of a work item goes: from queueing to start, within the item, and from its end until its reader runs.
//!
//! The input is a list of [`Event`]s: the kernel's scheduler and workqueue tracepoints ([`text::parse`] reads their text
//! form), or the same events from anywhere else. [`account`] assigns each nanosecond between the queueing of an item and
//! its start to the first state that fits:
//!
//! | | [`Part`] | the item waits |
//! |---|---|---|
//! | P0 | [`Throttled`](Part::Throttled) | on the inactive list: `max_active` holds it back |
//! | P1 | [`BehindRunning`](Part::BehindRunning) and so on | behind another item; split by what that item's worker does |
//! | P2 | [`WakeAbsorbed`](Part::WakeAbsorbed) | for a worker that was already waking up for an earlier item |
//! | P3 | [`WorkerMade`](Part::WorkerMade) | for a worker thread that is being created |
//! | P4 | [`WakePath`](Part::WakePath) | for its worker's wake-up: IPI, idle exit |
//! | P5 | [`BehindApp`](Part::BehindApp) and so on | for a CPU: its worker is runnable; split by who runs there instead |
//! | P6 | [`Dispatch`](Part::Dispatch) | for code of the queuer or the worker to run: dispatch and locks |
//!
//! The parts sum to the whole exactly; what no state explains is a part of its own, [`Part::Unexplained`].
//!
//! The kernel's scheduler latency (`run_delay`) of workers counts each *wake-up* once, however many items wait for it, and
//! does not count P0 and P1 at all. The two figures can therefore move in opposite directions.
//!
//! Without trace events [`stamps::account`] derives what it can from stamps of items and the workers' `schedstat`
//! counters, and names the parts that it cannot separate.
//!
//! This crate does no I/O.

mod account;
mod event;
mod items;
mod parts;
pub mod stamps;
pub mod text;
mod timeline;

pub use account::{Delivery, Inside, ItemAccount, Ledger, Totals, account};
pub use event::{Class, Event, Kind, Left, Pid, Trace};
pub use parts::{Part, Parts};
