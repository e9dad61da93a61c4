//! Keeps foreign code from unwinding into ours.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs foreign code (a closure, a waker, a source, a destructor) and keeps its panic from unwinding into the caller.
/// `None` if it panicked.
///
/// The destructor of a panic's payload is foreign code too, and is contained as well. The caller is responsible for any
/// state that it shares with `f`.
///
/// ```
/// use postread_sys::contain;
///
/// assert_eq!(contain(|| 42), Some(42));
/// assert_eq!(contain(|| -> u32 { std::panic::resume_unwind(Box::new("no")) }), None);
/// ```
pub fn contain<R>(f: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => Some(value),
        Err(payload) => {
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                // A third try would not help.
                std::mem::forget(again);
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct PanicsWhenDropped;

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("the payload"));
        }
    }

    #[test]
    fn panics_and_payloads_that_panic_stay_inside() {
        assert_eq!(contain(|| 1), Some(1));
        assert_eq!(contain(|| drop(PanicsWhenDropped)), None);
        assert_eq!(contain(|| -> u8 { std::panic::resume_unwind(Box::new(PanicsWhenDropped)) }), None);
    }
}
