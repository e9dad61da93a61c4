//! Keeps keys out of core dumps and away from other processes of the same user.

use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::raw::{heap, memory};

pub use crate::raw::heap::WipingAllocator;

/// Makes the process leave no core dump, and lets no other process of the same user attach to it or read its memory
/// (`PR_SET_DUMPABLE` 0). Its `/proc` files then belong to root. A program that handles keys calls it first.
pub fn set_not_dumpable() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(io::Error::from)
}

/// From now on memory is overwritten before it is freed, if [`WipingAllocator`] is the program's global allocator. For
/// programs that hand keys to libraries which do not wipe what they compute with them.
pub fn wipe_freed_memory() {
    heap::wipe_from_now_on();
}

/// Overwrites what earlier calls left on this thread's stack, below the caller's frame: call it after a computation on a
/// key has returned.
#[inline(never)]
pub fn wipe_stack() {
    // More than a computation on a key takes, less than the smallest stack of a thread.
    let mut room = [0u8; 512 << 10];
    std::hint::black_box(&mut room);
}

/// Leaves the pages that hold `region` out of core dumps (`MADV_DONTDUMP`), for a process that must stay dumpable.
/// Everything else in these pages is left out too.
pub fn dont_dump(region: &[u8]) -> io::Result<()> {
    memory::dont_dump(region, rustix::param::page_size())
}
