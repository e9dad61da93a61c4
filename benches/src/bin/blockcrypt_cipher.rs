//! AES-XTS, CBC and HCTR2 of `postread-blockcrypt` beside AWS-LC, OpenSSL, `xts-mode` and a plain batch over `aes`.
//!
//! One thread, data that fits into the second-level cache, in place, an IV set for each unit in every contestant.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use openssl::cipher::{Cipher, CipherRef};
use openssl::cipher_ctx::CipherCtx;
use postread_benches::{Better, Contestant, Group, Report};
use postread_blockcrypt::Platform;
use postread_blockcrypt::cbc::AesCbc;
use postread_blockcrypt::cts::AesCbcCts;
use postread_blockcrypt::hctr2::AesHctr2;
use postread_blockcrypt::xts::AesXts;

const LEN: usize = 128 << 10;
// Rounds shorter than a time slice, and many: on a shared machine most of them run undisturbed.
const ROUNDS: usize = 151;
const ROUND_TIME: Duration = Duration::from_micros(500);

/// Gigabytes a second of `run`, which processes `bytes` each time.
fn gigabytes(bytes: usize, mut run: impl FnMut()) -> f64 {
    let (start, mut runs) = (Instant::now(), 0usize);
    loop {
        run();
        runs += 1;
        let elapsed = start.elapsed();
        if elapsed >= ROUND_TIME {
            return (runs * bytes) as f64 / elapsed.as_nanos() as f64;
        }
    }
}

/// Buffers are aligned to pages, as those of a reader are; what is not aligned to a cache line is slower for everyone.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

fn contestant<'a>(name: &str, data: Vec<u8>, mut run: impl FnMut(&mut [u8]) + 'a) -> Contestant<'a> {
    let mut pages: Vec<Page> = data.as_chunks::<4096>().0.iter().map(|&page| Page(page)).collect();
    Contestant::new(name, move || {
        // SAFETY: a page is its bytes and nothing else, so that a run of pages is a run of bytes.
        let data = unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast::<u8>(), pages.len() * 4096) };
        gigabytes(data.len(), || run(black_box(&mut *data)))
    })
}

fn bytes(len: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

fn iv(index: usize) -> [u8; 16] {
    (index as u128).to_le_bytes()
}

/// OpenSSL through the `openssl` crate: the key set once, the IV for each unit.
fn openssl_units(cipher: &CipherRef, key: &[u8], encrypt: bool, unit_size: usize) -> impl FnMut(&mut [u8]) + use<> {
    let mut ctx = CipherCtx::new().unwrap();
    if encrypt {
        ctx.encrypt_init(Some(cipher), Some(key), None)
    } else {
        ctx.decrypt_init(Some(cipher), Some(key), None)
    }
    .unwrap();
    ctx.set_padding(false);
    move |data| {
        for (i, unit) in data.chunks_mut(unit_size).enumerate() {
            let iv = iv(i);
            if encrypt { ctx.encrypt_init(None, None, Some(&iv)) } else { ctx.decrypt_init(None, None, Some(&iv)) }
                .unwrap();
            // SAFETY: OpenSSL writes as many bytes as it reads: whole blocks without padding, in place. (The safe call
            // wants room for a block more.)
            let written = unsafe {
                let len = unit.len();
                let view = std::slice::from_raw_parts(unit.as_ptr(), len);
                ctx.cipher_update_unchecked(view, Some(unit)).unwrap()
            };
            assert_eq!(written, unit_size);
        }
    }
}

/// AWS-LC's own interface, which is OpenSSL's.
fn aws_lc_units(key: &[u8], encrypt: bool, unit_size: usize) -> impl FnMut(&mut [u8]) + use<> {
    use aws_lc_sys::{EVP_CIPHER_CTX_new, EVP_CipherInit_ex, EVP_CipherUpdate, EVP_aes_256_xts};
    use std::ptr::{null, null_mut};
    let enc = i32::from(encrypt);
    // SAFETY: plain calls of the C interface; the key has the 64 bytes of the cipher. The context is never freed.
    let ctx = unsafe {
        let ctx = EVP_CIPHER_CTX_new();
        assert_eq!(EVP_CipherInit_ex(ctx, EVP_aes_256_xts(), null_mut(), key.as_ptr(), null(), enc), 1);
        ctx
    };
    move |data| {
        for (i, unit) in data.chunks_mut(unit_size).enumerate() {
            let (iv, mut len) = (iv(i), 0);
            // SAFETY: the output is the input, of the length given; the IV has 16 bytes.
            unsafe {
                EVP_CipherInit_ex(ctx, null(), null_mut(), null(), iv.as_ptr(), enc);
                EVP_CipherUpdate(ctx, unit.as_mut_ptr(), &mut len, unit.as_ptr(), unit.len() as i32);
            }
            assert_eq!(len as usize, unit.len());
        }
    }
}

/// What one writes first: 64 tweaks, XOR, the blocks of `aes`, XOR.
fn naive_units(key: &[u8], encrypt: bool, unit_size: usize) -> impl FnMut(&mut [u8]) + use<> {
    let [data_key, tweak_key] = [0, 32].map(|at| aes::Aes256::new_from_slice(&key[at..at + 32]).unwrap());
    let xor = |blocks: &mut [[u8; 16]], tweaks: &[[u8; 16]]| {
        for (block, tweak) in blocks.iter_mut().zip(tweaks) {
            *block = (u128::from_ne_bytes(*block) ^ u128::from_ne_bytes(*tweak)).to_ne_bytes();
        }
    };
    move |data| {
        for (i, unit) in data.chunks_mut(unit_size).enumerate() {
            let mut first = aes::Block::from(iv(i));
            tweak_key.encrypt_block(&mut first);
            let mut tweak = u128::from_le_bytes(first.into());
            for blocks in unit.as_chunks_mut::<16>().0.chunks_mut(64) {
                let mut tweaks = [[0; 16]; 64];
                for slot in &mut tweaks {
                    *slot = tweak.to_le_bytes();
                    tweak = (tweak << 1) ^ ((tweak >> 127) * 0x87);
                }
                xor(blocks, &tweaks);
                let cast = aes::cipher::Array::cast_slice_from_core_mut(blocks);
                if encrypt {
                    data_key.encrypt_blocks(cast)
                } else {
                    data_key.decrypt_blocks(cast)
                }
                xor(blocks, &tweaks);
            }
        }
    }
}

fn xts_mode_units(key: &[u8], encrypt: bool, unit_size: usize) -> impl FnMut(&mut [u8]) + use<> {
    let [a, b] = [0, 32].map(|at| aes::Aes256::new_from_slice(&key[at..at + 32]).unwrap());
    let xts = xts_mode::Xts128::new(a, b);
    move |data| {
        if encrypt {
            xts.encrypt_area(data, unit_size, 0, xts_mode::get_tweak_default);
        } else {
            xts.decrypt_area(data, unit_size, 0, xts_mode::get_tweak_default);
        }
    }
}

fn our_xts(key: &[u8], platform: Platform, encrypt: bool, unit_size: usize) -> impl FnMut(&mut [u8]) + use<> {
    let xts = AesXts::with_platform(key, platform).unwrap();
    move |data| {
        if encrypt { xts.encrypt_units(data, unit_size, 0, 1) } else { xts.decrypt_units(data, unit_size, 0, 1) }
            .unwrap()
    }
}

fn our_cbc(key: &[u8], platform: Platform, encrypt: bool, unit_size: usize) -> impl FnMut(&mut [u8]) + use<> {
    let cbc = AesCbc::with_platform(key, platform).unwrap();
    move |data| {
        if encrypt { cbc.encrypt_units(data, unit_size, 0, 1) } else { cbc.decrypt_units(data, unit_size, 0, 1) }
            .unwrap()
    }
}

/// The key of a contestant must do what its rivals do: every one decrypts what ours encrypts.
fn check(name: &str, mut theirs: impl FnMut(&mut [u8]), mut ours: impl FnMut(&mut [u8])) {
    let (mut a, mut b) = (bytes(LEN), bytes(LEN));
    theirs(&mut a);
    ours(&mut b);
    assert!(a == b, "{name} computes something else");
}

fn xts_256(report: &mut Report, key: &[u8]) {
    let best = Platform::default();
    let direction = |encrypt: bool| if encrypt { "encrypt" } else { "decrypt" };
    for unit_size in [4096, 512, 64 << 10, 32] {
        for encrypt in [false, true] {
            let ours = |platform| our_xts(key, platform, encrypt, unit_size);
            let openssl = || openssl_units(Cipher::aes_256_xts(), key, encrypt, unit_size);
            check("aws-lc", aws_lc_units(key, encrypt, unit_size), ours(best));
            check("openssl", openssl(), ours(best));
            check("xts-mode", xts_mode_units(key, encrypt, unit_size), ours(best));
            check("naive", naive_units(key, encrypt, unit_size), ours(best));
            let data = bytes(LEN);
            let group = Group::measure(
                format!("AES-256-XTS {} of {unit_size}-byte units", direction(encrypt)),
                "GB/s",
                Better::Higher,
                ROUNDS,
                vec![
                    contestant("postread", data.clone(), ours(best)),
                    contestant("postread, avx2", data.clone(), ours(Platform::Avx2)),
                    contestant("postread, aesni", data.clone(), ours(Platform::AesNi)),
                    contestant("postread, portable", data.clone(), ours(Platform::Portable)),
                    contestant("aws-lc", data.clone(), aws_lc_units(key, encrypt, unit_size)),
                    contestant("openssl", data.clone(), openssl()),
                    contestant("xts-mode", data.clone(), xts_mode_units(key, encrypt, unit_size)),
                    contestant("aes, in batches", data, naive_units(key, encrypt, unit_size)),
                ],
            );
            report.group(&group);
            match unit_size {
                4096 => {
                    report.bar(&group, "postread", "aws-lc", 0.95);
                    report.bar(&group, "postread", "openssl", 2.2);
                    report.bar(&group, "postread, aesni", "openssl", 0.95);
                }
                512 => report.bar(&group, "postread", "aws-lc", 1.5),
                _ => {}
            }
        }
    }
}

fn xts_128(report: &mut Report, key: &[u8]) {
    for encrypt in [false, true] {
        let ours = |platform| our_xts(key, platform, encrypt, 4096);
        let openssl = || openssl_units(Cipher::aes_128_xts(), key, encrypt, 4096);
        check("openssl", openssl(), ours(Platform::default()));
        let data = bytes(LEN);
        let group = Group::measure(
            format!("AES-128-XTS {} of 4096-byte units", if encrypt { "encrypt" } else { "decrypt" }),
            "GB/s",
            Better::Higher,
            ROUNDS,
            vec![
                contestant("postread", data.clone(), ours(Platform::default())),
                contestant("postread, aesni", data.clone(), ours(Platform::AesNi)),
                contestant("openssl", data, openssl()),
            ],
        );
        report.group(&group);
        report.bar(&group, "postread", "openssl", 2.2);
    }
}

fn cbc(report: &mut Report, key: &[u8]) {
    for (key, cipher, name) in
        [(&key[..16], Cipher::aes_128_cbc(), "AES-128"), (&key[..32], Cipher::aes_256_cbc(), "AES-256")]
    {
        for encrypt in [false, true] {
            let ours = |platform| our_cbc(key, platform, encrypt, 4096);
            let openssl = || openssl_units(cipher, key, encrypt, 4096);
            check("openssl", openssl(), ours(Platform::default()));
            let data = bytes(LEN);
            let group = Group::measure(
                format!("{name}-CBC {} of 4096-byte units", if encrypt { "encrypt" } else { "decrypt" }),
                "GB/s",
                Better::Higher,
                ROUNDS,
                vec![
                    contestant("postread", data.clone(), ours(Platform::default())),
                    contestant("postread, aesni", data.clone(), ours(Platform::AesNi)),
                    contestant("openssl", data, openssl()),
                ],
            );
            report.group(&group);
            if !encrypt {
                report.bar(&group, "postread", "openssl", 2.0);
            }
        }
    }
}

const NAMES: usize = 256;

/// Names: nanoseconds each, a tweak of 32 bytes; CBC-CTS beside it, which is what HCTR2 replaces.
fn names(report: &mut Report, key: &[u8]) {
    let hctr2 = AesHctr2::new(&key[..32]).unwrap();
    let cts = AesCbcCts::new(&key[..32]).unwrap();
    // The clock is read once for many names.
    fn nanoseconds(mut name: Vec<u8>, mut run: impl FnMut(&mut [u8])) -> f64 {
        1.0 / gigabytes(NAMES, || (0..NAMES).for_each(|_| run(black_box(&mut name))))
    }
    for len in [16, 32, 64, 128, 255] {
        let group = Group::measure(
            format!("Decrypting names of {len} bytes"),
            "ns",
            Better::Lower,
            ROUNDS,
            vec![
                Contestant::new("AES-256-HCTR2", || {
                    nanoseconds(bytes(len), |name| hctr2.decrypt(&[0; 32], name).unwrap())
                }),
                Contestant::new("AES-256-CBC-CTS", || {
                    nanoseconds(bytes(len), |name| cts.decrypt(&[0; 16], name).unwrap())
                }),
            ],
        );
        report.group(&group);
    }
}

fn main() -> ExitCode {
    let mut report = Report::new("blockcrypt_cipher");
    report.note(&format!(
        "AES modes, one thread, {} KiB in place, an IV set for each unit in every contestant; OpenSSL is {}. CPU level: {}.",
        LEN >> 10,
        openssl::version::version(),
        Platform::default(),
    ));
    let key = bytes(64);
    xts_256(&mut report, &key);
    xts_128(&mut report, &key[..32]);
    cbc(&mut report, &key);
    names(&mut report, &key);
    report.finish()
}
