//! Sources that lie on the second read, fail, stall, complete out of order or on another CPU, or vanish.
//!
//! Each wraps bytes in memory. They are for tests of code that reads through sources.

mod deferred;
mod faulty;

pub use deferred::{Deferred, Order, Running};
pub use faulty::{Faulty, Flip};
