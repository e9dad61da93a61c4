//! Dropped keys leave zeros: an allocator looks at every block of the heap that is given back.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use postread_blockcrypt::Platform;
use postread_blockcrypt::adiantum::{Adiantum, Stream};
use postread_blockcrypt::cbc::AesCbc;
use postread_blockcrypt::cts::AesCbcCts;
use postread_blockcrypt::essiv::AesCbcEssiv;
use postread_blockcrypt::hctr2::AesHctr2;
use postread_blockcrypt::sm4::{Sm4CbcCts, Sm4Xts};
#[cfg(feature = "historical")]
use postread_blockcrypt::speck::{SpeckCbcCts, SpeckXts};
use postread_blockcrypt::xts::AesXts;

/// While armed, counts the blocks that come back, and those of them that hold more than may remain.
struct Watcher;

static ARMED: AtomicBool = AtomicBool::new(false);
static SEEN: AtomicUsize = AtomicUsize::new(0);
static DIRTY: AtomicUsize = AtomicUsize::new(0);

/// Smaller blocks hold no secret.
const SMALLEST: usize = 16;
/// Bytes that need not be zero: the padding behind a schedule, which nobody writes.
const PADDING: usize = 24;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watcher {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises. Zeroed, so that what is not zero later was written.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if ARMED.load(Ordering::Relaxed) && layout.size() >= SMALLEST {
            // SAFETY: the block is still the caller's, and was zeroed when it was handed out.
            let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
            SEEN.fetch_add(1, Ordering::Relaxed);
            DIRTY.fetch_add(
                usize::from(bytes.iter().filter(|&&byte| byte != 0).count() > PADDING.min(bytes.len() / 2)),
                Ordering::Relaxed,
            );
        }
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watcher = Watcher;

/// Blocks seen and dirty ones while `drop` runs.
fn watch(drop: impl FnOnce()) -> (usize, usize) {
    SEEN.store(0, Ordering::Relaxed);
    DIRTY.store(0, Ordering::Relaxed);
    ARMED.store(true, Ordering::Relaxed);
    drop();
    ARMED.store(false, Ordering::Relaxed);
    (SEEN.load(Ordering::Relaxed), DIRTY.load(Ordering::Relaxed))
}

/// One test, so that no other thread frees memory meanwhile.
#[test]
fn dropped_keys_are_zero() {
    // The watcher sees what is left behind.
    let secret = vec![0xa5_u8; 1024];
    assert_eq!(watch(move || drop(secret)), (1, 1));

    let key: Vec<u8> = (1..=64).collect();
    for level in Platform::available() {
        let xts = AesXts::with_platform(&key, level).unwrap();
        assert_eq!(watch(move || drop(xts)), (2, 0), "XTS, {level}");
        let adiantum = Adiantum::with_platform(Stream::XChaCha12, &key[..32], level).unwrap();
        assert_eq!(watch(move || drop(adiantum)), (2, 0), "Adiantum, {level}");
        let sm4 =
            (Sm4Xts::with_platform(&key[..32], level).unwrap(), Sm4CbcCts::with_platform(&key[..16], level).unwrap());
        assert_eq!(watch(move || drop(sm4)), (3, 0), "SM4, {level}");
        #[cfg(feature = "historical")]
        {
            let speck =
                (SpeckXts::with_platform(&key, level).unwrap(), SpeckCbcCts::with_platform(&key[..32], level).unwrap());
            assert_eq!(watch(move || drop(speck)), (3, 0), "Speck, {level}");
        }
        for length in [16, 24, 32] {
            let key = &key[..length];
            let cbc = AesCbc::with_platform(key, level).unwrap();
            let clone = cbc.clone();
            assert_eq!(watch(move || drop((cbc, clone))), (2, 0), "CBC, {level}");
            let cts = AesCbcCts::with_platform(key, level).unwrap();
            assert_eq!(watch(move || drop(cts)), (1, 0), "CTS, {level}");
            let essiv = AesCbcEssiv::with_platform(key, level).unwrap();
            assert_eq!(watch(move || drop(essiv)), (2, 0), "ESSIV, {level}");
            let hctr2 = AesHctr2::with_platform(key, level).unwrap();
            assert_eq!(watch(move || drop(hctr2)), (3, 0), "HCTR2, {level}");
        }
    }
}
