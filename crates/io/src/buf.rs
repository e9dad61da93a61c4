//! Aligned buffers that return to a pool when they are dropped.
//!
//! One pool per process, split by CPU: taking and returning a buffer locks only the current CPU's list.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::aligned::{ALIGN, AlignedBytes};
use crate::budget::Permit;

/// The alignment of a buffer's first byte, in bytes.
pub const BUF_ALIGN: usize = ALIGN;

/// Buffers of 4 KiB, 8 KiB ... 4 MiB are pooled; larger ones go back to the allocator.
const CLASSES: usize = 11;
/// The most bytes that one CPU's list keeps in one class.
const KEEP_PER_CLASS: usize = 4 << 20;

struct Shard {
    free: Mutex<[Vec<AlignedBytes>; CLASSES]>,
}

static TAKEN: AtomicU64 = AtomicU64::new(0);

fn shards() -> &'static [Shard] {
    static SHARDS: OnceLock<Vec<Shard>> = OnceLock::new();
    SHARDS.get_or_init(|| {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from).max(1);
        (0..cpus).map(|_| Shard { free: Mutex::new(Default::default()) }).collect()
    })
}

fn shard() -> &'static Shard {
    let all = shards();
    &all[crate::current_cpu() as usize % all.len()]
}

fn class_of(len: usize) -> Option<usize> {
    let pages = len.div_ceil(ALIGN).max(1).next_power_of_two();
    let class = pages.trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

/// The state of the pool of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufPoolStats {
    /// Buffers that had to be allocated since the process began.
    pub allocated: u64,
    /// Bytes in the pool that are not in use.
    pub idle_bytes: u64,
}

/// The state of the process's pool of buffers.
pub fn buf_pool_stats() -> BufPoolStats {
    let idle = shards()
        .iter()
        .map(|s| {
            let free = s.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            free.iter().flatten().map(|b| b.len() as u64).sum::<u64>()
        })
        .sum();
    BufPoolStats { allocated: TAKEN.load(Ordering::Relaxed), idle_bytes: idle }
}

/// Gives the pool's idle memory back to the allocator.
pub fn trim_buf_pool() {
    for s in shards() {
        let old = std::mem::take(&mut *s.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        drop(old);
    }
}

/// A buffer: a window of aligned memory that has one owner and returns to the pool when that owner drops it.
///
/// A new buffer has the contents of its previous use (zeros in fresh memory): a source must fill each byte or fail it.
pub struct Buf {
    memory: Option<AlignedBytes>,
    start: usize,
    len: usize,
    permit: Option<Permit>,
}

impl Buf {
    /// A buffer of `len` bytes. Not counted in any budget; [`Buf::charge`] attaches a permit.
    ///
    /// # Panics
    /// If `len` is more than half the address space, as `Vec` does.
    pub fn new(len: usize) -> Self {
        let memory = match class_of(len) {
            Some(class) => {
                let pooled = shard().free.lock().unwrap_or_else(std::sync::PoisonError::into_inner)[class].pop();
                pooled.unwrap_or_else(|| {
                    TAKEN.fetch_add(1, Ordering::Relaxed);
                    AlignedBytes::zeroed(ALIGN << class)
                })
            }
            None => {
                TAKEN.fetch_add(1, Ordering::Relaxed);
                AlignedBytes::zeroed(len)
            }
        };
        Self { memory: Some(memory), start: 0, len, permit: None }
    }

    /// A buffer of `len` zero bytes.
    ///
    /// # Panics
    /// As [`Buf::new`].
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::new(len);
        buf.fill(0);
        buf
    }

    /// Attaches the permit of a budget: the bytes count as in flight until the buffer is dropped or [uncharged].
    ///
    /// [uncharged]: Buf::uncharge
    pub fn charge(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// Detaches the permit.
    pub fn uncharge(&mut self) -> Option<Permit> {
        self.permit.take()
    }

    /// Length of the window in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a window of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Narrows the window to `len` bytes from `start` (both relative to the present window), for a read that had to
    /// begin earlier or end later than requested. Panics if that is outside the window.
    pub fn narrow(&mut self, start: usize, len: usize) {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len), "the new window lies inside the old one");
        self.start += start;
        self.len = len;
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Some(memory) => &memory.as_slice()[self.start..self.start + self.len],
            None => &[],
        }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Some(memory) => &mut memory.as_mut_slice()[self.start..self.start + self.len],
            None => &mut [],
        }
    }
}

impl fmt::Debug for Buf {
    /// Never print the bytes: they may be plaintext.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let Some(class) = class_of(memory.len()) else { return };
        let mut free = shard().free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let list = &mut free[class];
        if (list.len() + 1) * memory.len() <= KEEP_PER_CLASS.max(memory.len()) {
            list.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_and_reused() {
        for len in [0, 1, 4095, 4096, 4097, 1 << 20, (4 << 20) + 1] {
            let buf = Buf::new(len);
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_ptr() as usize % BUF_ALIGN, 0);
        }
        // On one CPU, the next buffer of a class reuses the one dropped last. No other test uses this class.
        let cpu = crate::threads::allowed_cpus()[0];
        let (first, again, smaller) = std::thread::spawn(move || {
            postread_sys::affinity::set_current(&[cpu].into_iter().collect()).expect("pins");
            let mut first = Buf::new(2 << 20);
            first[4096] = 77;
            let address = first.as_ptr() as usize;
            drop(first);
            let again = Buf::new((2 << 20) - 5);
            (address, again.as_ptr() as usize, again[4096])
        })
        .join()
        .expect("no panic");
        assert_eq!((first, smaller), (again, 77));
    }

    /// A size that wraps around never reaches the allocator.
    #[test]
    fn sizes_beyond_the_address_space_panic() {
        let half = isize::MAX as usize;
        for len in [usize::MAX, usize::MAX - 4094, usize::MAX - 4095, half + 1, half, half - 4094] {
            let made = std::panic::catch_unwind(|| Buf::new(len).len());
            assert!(made.is_err(), "{len:#x}");
        }
    }

    #[test]
    fn narrow_moves_the_window() {
        let mut buf = Buf::zeroed(8192);
        buf[4100] = 7;
        buf.narrow(4096, 100);
        assert_eq!((buf.len(), buf[4]), (100, 7));
        buf.narrow(4, 1);
        assert_eq!(&*buf, &[7]);
    }

    #[test]
    #[should_panic(expected = "inside the old one")]
    fn narrow_refuses_to_widen() {
        Buf::new(10).narrow(5, 6);
    }
}
