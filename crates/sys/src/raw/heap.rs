//! An allocator that wipes freed memory.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

static WIPE: AtomicBool = AtomicBool::new(false);

/// The system's allocator. Once [switched on](crate::hardening::wipe_freed_memory) it overwrites memory with zeros
/// before giving it back, so that the copies which a library makes of a key do not outlive them.
#[derive(Clone, Copy, Debug, Default)]
pub struct WipingAllocator;

pub(crate) fn wipe_from_now_on() {
    WIPE.store(true, Ordering::Relaxed);
}

/// # Safety
/// `len` bytes at `at` belong to an allocation of the caller's.
unsafe fn wipe(at: *mut u8, len: usize) {
    for i in 0..len {
        // SAFETY: within the caller's allocation. Volatile, because a plain write before a free is a dead store.
        unsafe { at.add(i).write_volatile(0) };
    }
}

// SAFETY: all memory comes from and goes to `System`, with the layouts that the caller gives; `realloc` moves as the
// contract says: a new block, the smaller of both lengths copied, the old block freed.
unsafe impl GlobalAlloc for WipingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if WIPE.load(Ordering::Relaxed) {
            // SAFETY: the block has `layout.size()` bytes and is the caller's until it is freed below.
            unsafe { wipe(at, layout.size()) };
        }
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !WIPE.load(Ordering::Relaxed) {
            // SAFETY: the caller upholds the contract of `realloc`.
            return unsafe { System.realloc(at, layout, new_size) };
        }
        // SAFETY: the caller promises that `new_size`, rounded up to the alignment, is no more than `isize::MAX`.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: `new_size` is not zero, by the contract of `realloc`.
        let new = unsafe { System.alloc(new_layout) };
        if !new.is_null() {
            // SAFETY: two allocations apart, each with at least that many bytes; the old one is not used again.
            unsafe {
                std::ptr::copy_nonoverlapping(at, new, layout.size().min(new_size));
                self.dealloc(at, layout);
            }
        }
        new
    }
}
