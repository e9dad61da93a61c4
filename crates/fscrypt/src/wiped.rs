//! Computations on secrets, whose traces on the stack are overwritten.
//!
//! Values that hold keys wipe themselves when dropped. A move leaves a copy where the value was, and hash functions and
//! ciphers keep parts of a key in temporaries and spilled registers, which are not wiped.

use std::hint::black_box;

/// More than any computation here takes, far less than the smallest stack of a thread.
const DEPTH: usize = 32 << 10;

/// Runs a computation, then overwrites the part of the stack that it used. The result should hold secrets only behind a
/// pointer, because the caller's frames are not overwritten.
pub(crate) fn wiping<T>(computation: impl FnOnce() -> T) -> T {
    let result = call(computation);
    overwrite();
    result
}

/// A separate frame, below the caller's.
#[inline(never)]
fn call<T>(computation: impl FnOnce() -> T) -> T {
    computation()
}

/// The same place on the stack, overwritten.
#[inline(never)]
fn overwrite() {
    let mut frame = [0u8; DEPTH];
    black_box(&mut frame);
}
