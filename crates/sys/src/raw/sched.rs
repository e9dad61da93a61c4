//! Affinity masks of any size, the current CPU, and scheduling attributes.
#![allow(unsafe_code)]

use std::io;

use crate::CpuSet;
use crate::cpuset::MAX_CPUS;

/// `sched_getaffinity` with a mask that grows until the kernel's fits: C's `cpu_set_t` ends at 1024 CPUs.
pub(crate) fn getaffinity(tid: i32) -> io::Result<CpuSet> {
    let mut words = vec![0u64; 16];
    loop {
        let bytes = words.len() * 8;
        // SAFETY: the kernel writes at most `bytes` bytes at the pointer, which is that long.
        let got = unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, bytes, words.as_mut_ptr()) };
        if let Ok(got) = usize::try_from(got) {
            words.truncate(got.div_ceil(8));
            return Ok(CpuSet::from_words(words));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) || words.len() >= MAX_CPUS as usize / 64 {
            return Err(error);
        }
        words = vec![0; words.len() * 2];
    }
}

pub(crate) fn setaffinity(tid: i32, cpus: &CpuSet) -> io::Result<()> {
    let words = cpus.words();
    // SAFETY: the kernel reads that many bytes at the pointer, which are the slice's.
    let rc = unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, size_of_val(words), words.as_ptr()) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[inline]
pub(crate) fn getcpu() -> u32 {
    // SAFETY: takes no pointer. (C's library reads it from the restartable-sequence area, about 1 ns.)
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).unwrap_or(0)
}

/// `struct sched_attr`, first version (48 bytes), of `sched_setattr(2)`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SchedAttr {
    pub(crate) size: u32,
    pub(crate) policy: u32,
    pub(crate) flags: u64,
    pub(crate) nice: i32,
    pub(crate) priority: u32,
    /// For the fair classes since Linux 6.12: the slice in nanoseconds.
    pub(crate) runtime: u64,
    pub(crate) deadline: u64,
    pub(crate) period: u64,
}

const SCHED_ATTR_SIZE: u32 = size_of::<SchedAttr>() as u32;

pub(crate) fn getattr(tid: i32) -> io::Result<SchedAttr> {
    let mut attr = SchedAttr::default();
    // SAFETY: the kernel writes at most SCHED_ATTR_SIZE bytes at the pointer, the structure's size.
    let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, SCHED_ATTR_SIZE, 0u32) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(attr) }
}

pub(crate) fn setattr(tid: i32, mut attr: SchedAttr) -> io::Result<()> {
    attr.size = SCHED_ATTR_SIZE;
    // SAFETY: the kernel reads `attr.size` bytes at the pointer, the structure's size.
    let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0u32) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
