//! CPU affinity and topology, priorities, schedstat, cgroup quota, page residency, fs-verity ioctls and tracefs: small
//! safe wrappers.
//!
//! Functions that read `/sys`, `/proc` or a cgroup take the root of that tree as a parameter, so that recorded machines
//! can be tested: big and little cores, many caches, NUMA nodes, nested quotas. Where the kernel may silently do
//! something other than requested (an affinity mask, a slice, a counter that does not count), the wrapper checks what
//! took effect and reports it.
//!
//! The only unsafe code is in the private module `raw`, with one file per area: scheduling, memory, clocks, fs-verity.

pub mod affinity;
mod clock;
mod contain;
mod cpuset;
pub mod filesystem;
pub mod fsverity;
pub mod group;
pub mod hardening;
pub mod hist;
pub mod open_files;
pub mod priority;
pub mod procstat;
pub mod quota;
mod raw;
pub mod residency;
pub mod schedstat;
mod stamp;
pub mod termination;
mod thread;
pub mod topology;
pub mod tracefs;

pub use affinity::{current_cpu, online_cpus};
pub use clock::{monotonic_ns, thread_cpu_ns};
pub use contain::contain;
pub use cpuset::{CpuListError, CpuSet};
pub use stamp::stamp_ns;
pub use thread::{gettid, set_thread_name};
