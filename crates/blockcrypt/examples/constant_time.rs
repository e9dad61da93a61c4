//! Shows, under valgrind, that no branch and no address in the portable ciphers depends on a key or on data.
//!
//! `constant_time ciphers` runs every portable cipher, encrypting and decrypting, with key and data marked undefined:
//! memcheck reports each branch and each look-up that depends on undefined bits. `constant_time branch` and
//! `constant_time look-up` are the controls: each does what no cipher may, and memcheck must report it. The script
//! `constant-time` beside the crate's manifest runs all three.
//!
//! What is not marked: lengths, indexes and IVs, which are public; and one bit in each half of a key, because a cipher
//! does branch, rightly, on whether the halves of an XTS key are equal, and those bits say that they are not.

#![allow(unsafe_code)]

use std::hint::black_box;
use std::process::ExitCode;

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

/// Requests to valgrind, from its `valgrind.h` and `memcheck.h`, whose licence is BSD's.
mod valgrind {
    const RUNNING_ON_VALGRIND: usize = 0x1001;
    const MEMCHECK: usize = (b'M' as usize) << 24 | (b'C' as usize) << 16;
    const MAKE_MEM_UNDEFINED: usize = MEMCHECK + 1;
    const MAKE_MEM_DEFINED: usize = MEMCHECK + 2;
    const GET_VBITS: usize = MEMCHECK + 8;

    /// Nothing outside valgrind, where it returns 0: the rotations add up to 128 bits.
    #[cfg(all(target_arch = "x86_64", not(postread_portable)))]
    fn request(request: [usize; 6]) -> usize {
        let mut result = 0;
        // SAFETY: outside valgrind the sequence changes the flags only; valgrind reads the six words and sets rdx.
        unsafe {
            std::arch::asm!(
                "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
                in("rax") request.as_ptr(), inout("rdx") result, options(nostack),
            );
        }
        result
    }

    #[cfg(not(all(target_arch = "x86_64", not(postread_portable))))]
    fn request(_: [usize; 6]) -> usize {
        0
    }

    pub(super) fn is_running() -> bool {
        request([RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0]) > 0
    }

    pub(super) fn make_undefined(bytes: &mut [u8]) {
        request([MAKE_MEM_UNDEFINED, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0]);
    }

    /// Whether every bit of the bytes is undefined.
    pub(super) fn are_undefined(bytes: &[u8]) -> bool {
        let mut bits = vec![0u8; bytes.len()];
        let got = request([GET_VBITS, bytes.as_ptr() as usize, bits.as_mut_ptr() as usize, bytes.len(), 0, 0]);
        got == 1 && bits.iter().all(|&byte| byte == 0xff)
    }

    pub(super) fn make_defined(bytes: &mut [u8]) {
        request([MAKE_MEM_DEFINED, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0]);
    }
}

/// A key of secret bytes but for one bit of each half.
fn secret_key(len: usize) -> Vec<u8> {
    let mut key: Vec<u8> = (0..len).map(|i| (7 * i + 1) as u8).collect();
    valgrind::make_undefined(&mut key);
    key[0] |= 1;
    key[len / 2] &= !1;
    key
}

/// Encrypts and decrypts secret data, which must come back.
fn round_trip(name: &str, len: usize, encrypt: impl FnOnce(&mut [u8]), decrypt: impl FnOnce(&mut [u8])) {
    let plain: Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
    let mut data = plain.clone();
    valgrind::make_undefined(&mut data);
    encrypt(&mut data);
    assert!(valgrind::are_undefined(&data), "{name}: {len} bytes: the marks were lost, nothing is shown");
    let mut sealed = data.clone();
    valgrind::make_defined(&mut sealed);
    assert!(sealed != plain, "{name}: not encrypted");
    decrypt(&mut data);
    valgrind::make_defined(&mut data);
    assert!(data == plain, "{name}: {len} bytes do not come back");
    println!("{name}: {len} bytes");
}

const LEVEL: Platform = Platform::Portable;

macro_rules! units {
    ($name:expr, $cipher:expr, $($unit:expr),+) => {{
        let cipher = $cipher.expect("a good key");
        $(round_trip(
            $name,
            3 * $unit,
            |data| cipher.encrypt_units(data, $unit, 5, 1).expect("whole units"),
            |data| cipher.decrypt_units(data, $unit, 5, 1).expect("whole units"),
        );)+
    }};
}

macro_rules! messages {
    ($name:expr, $cipher:expr, $tweak:expr) => {{
        let cipher = $cipher.expect("a good key");
        for len in [16, 17, 32, 255, 1000] {
            round_trip(
                $name,
                len,
                |data| cipher.encrypt($tweak, data).expect("long enough"),
                |data| cipher.decrypt($tweak, data).expect("long enough"),
            );
        }
    }};
}

fn ciphers() {
    for len in [32, 64] {
        units!("AES-XTS", AesXts::with_platform(&secret_key(len), LEVEL), 16, 512, 4096);
    }
    for len in [16, 32] {
        units!("AES-CBC", AesCbc::with_platform(&secret_key(len), LEVEL), 16, 512);
        messages!("AES-CBC-CTS", AesCbcCts::with_platform(&secret_key(len), LEVEL), &[3; 16]);
        messages!("AES-HCTR2", AesHctr2::with_platform(&secret_key(len), LEVEL), &[3; 32]);
    }
    units!("AES-CBC-ESSIV", AesCbcEssiv::with_platform(&secret_key(16), LEVEL), 16, 512);
    for stream in [Stream::XChaCha12, Stream::XChaCha20] {
        let key = secret_key(32);
        messages!("Adiantum", Adiantum::with_platform(stream, &key, LEVEL), &[3; 32]);
        units!("Adiantum", Adiantum::with_platform(stream, &key, LEVEL), 512, 4096);
    }
    units!("SM4-XTS", Sm4Xts::with_platform(&secret_key(32), LEVEL), 16, 512, 4096);
    messages!("SM4-CBC-CTS", Sm4CbcCts::with_platform(&secret_key(16), LEVEL), &[3; 16]);
    #[cfg(feature = "historical")]
    {
        units!("Speck128/256-XTS", SpeckXts::with_platform(&secret_key(64), LEVEL), 16, 512, 4096);
        messages!("Speck128/256-CBC-CTS", SpeckCbcCts::with_platform(&secret_key(32), LEVEL), &[3; 16]);
    }
}

/// A branch on a secret byte: memcheck must report it.
fn branch() {
    let key = secret_key(16);
    if black_box(key[1]) > 100 {
        println!("control: the secret byte is large");
    } else {
        println!("control: the secret byte is small");
    }
}

/// A look-up at a secret place: memcheck must report it.
fn look_up() {
    let key = secret_key(16);
    let table: Vec<u8> = (0..=255).collect();
    // SAFETY: a byte is an index of 256 entries; a checked look-up could be reported for its check alone.
    let mut entry = [unsafe { *black_box(&table).get_unchecked(usize::from(black_box(key[1]))) }];
    valgrind::make_defined(&mut entry);
    println!("control: entry {}", entry[0]);
}

fn main() -> ExitCode {
    if !valgrind::is_running() {
        eprintln!("this shows nothing outside valgrind on x86-64: run crates/blockcrypt/constant-time");
        return ExitCode::from(2);
    }
    match std::env::args().nth(1).as_deref() {
        Some("ciphers") => ciphers(),
        Some("branch") => branch(),
        Some("look-up") => look_up(),
        _ => {
            eprintln!("usage: constant_time ciphers|branch|look-up");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
