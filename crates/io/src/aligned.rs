//! Page-aligned memory, zeroed when it is allocated: the only part of [`crate::Buf`] that needs `unsafe`.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The alignment of every buffer: enough for `O_DIRECT` on every device in use.
pub(crate) const ALIGN: usize = 4096;

/// Owned bytes aligned to [`ALIGN`].
pub(crate) struct AlignedBytes {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is owned by this value alone, like a `Box<[u8]>`.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access only reads, exclusive access goes through `&mut self`.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// Allocates `len` zero bytes, rounded up to [`ALIGN`] and at least that much.
    ///
    /// # Panics
    /// If that is more than half the address space, as `Vec` does.
    pub(crate) fn zeroed(len: usize) -> Self {
        let Some(len) = len.max(1).checked_next_multiple_of(ALIGN) else { Self::too_large(len) };
        let Some(layout) = Self::layout(len) else { Self::too_large(len) };
        // SAFETY: the layout's size is not zero: `len` is a multiple of `ALIGN` and at least one byte.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { start, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialised bytes that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// None where the size, rounded up to the alignment, exceeds `isize::MAX`.
    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len, ALIGN).ok()
    }

    #[cold]
    fn too_large(len: usize) -> ! {
        panic!("a buffer of {len} bytes does not fit into the address space");
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // `zeroed` made this very layout, so it can be made again.
        if let Some(layout) = Self::layout(self.len) {
            // SAFETY: allocated in `zeroed` with this very layout.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}
