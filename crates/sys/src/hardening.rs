//! Keeps keys out of core dumps and away from other processes of the same user.

use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::raw::memory;

/// Makes the process leave no core dump, and lets no other process of the same user attach to it or read its memory
/// (`PR_SET_DUMPABLE` 0). Its `/proc` files then belong to root. A program that handles keys calls it first.
pub fn set_not_dumpable() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(io::Error::from)
}

/// Leaves the pages that hold `region` out of core dumps (`MADV_DONTDUMP`), for a process that must stay dumpable. What
/// else lies in these pages is left out too.
pub fn dont_dump(region: &[u8]) -> io::Result<()> {
    memory::dont_dump(region, rustix::param::page_size())
}
