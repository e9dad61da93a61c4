//! Adiantum of `postread-blockcrypt` beside the sum of its parts and the `adiantum` crate; SM4 and Speck at every CPU
//! level, beside OpenSSL's SM4 and RustCrypto's.
//!
//! One thread, data that fits into the second-level cache, in place, a tweak set for each unit in every contestant.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use adiantum::Cipher as TheirAdiantum;
use aes::Aes256;
use chacha20::{XChaCha12, XChaCha20};
use openssl::cipher::Cipher;
use openssl::cipher_ctx::CipherCtx;
use postread_benches::{Better, Contestant, Group, Report, Series};
use postread_blockcrypt::Platform;
use postread_blockcrypt::adiantum::{Adiantum, Stream, parts};
use postread_blockcrypt::sm4::{Sm4CbcCts, Sm4Xts};
use postread_blockcrypt::speck::SpeckXts;
use sm4::Sm4;
use sm4::cipher::KeyInit;

const LEN: usize = 256 << 10;
const ROUNDS: usize = 15;
const ROUND_TIME: Duration = Duration::from_millis(12);

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

fn contestant<'a>(name: impl Into<String>, mut run: impl FnMut(&mut [u8]) + 'a) -> Contestant<'a> {
    let mut data = bytes(LEN);
    Contestant::new(name, move || gigabytes(LEN, || run(black_box(&mut data))))
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

fn key<const N: usize>() -> [u8; N] {
    std::array::from_fn(|i| (7 * i + 1) as u8)
}

fn tweak(index: usize) -> [u8; 32] {
    let mut tweak = [0; 32];
    tweak[..8].copy_from_slice(&(index as u64).to_le_bytes());
    tweak
}

const OURS: &str = "postread";
const LIMIT: &str = "harmonic limit of its parts";
const CRATE: &str = "`adiantum` crate";

/// Adiantum-XChaCha12 at a level: the whole, its parts by themselves, the rival.
fn adiantum_at(report: &mut Report, level: Platform, unit: usize) {
    let ours = Adiantum::with_platform(Stream::XChaCha12, &key::<32>(), level).unwrap();
    let theirs = TheirAdiantum::<XChaCha12, Aes256>::new((&key::<32>()).into());
    let bulk = unit - 16;
    let nh = parts::Nh::new(&key(), level);
    // What NH makes of a unit: 32 bytes for each 1024.
    let hashes = vec![u128::MAX / 3; 2 * bulk.div_ceil(1024)];
    let (mut nh_sink, mut poly_sink) = (0u64, 0u128);
    let mut contestants = vec![
        contestant(OURS, |data| ours.decrypt_units(data, unit, 0, 1).unwrap()),
        contestant("encryption", |data| ours.encrypt_units(data, unit, 0, 1).unwrap()),
        contestant("its ChaCha12", |data| {
            for unit in data.chunks_exact_mut(unit) {
                parts::xor_stream(level, Stream::XChaCha12, &key(), &mut unit[..bulk]);
            }
        }),
        contestant("its NH, once", |data| {
            for unit in data.chunks_exact(unit) {
                nh.hashes(&unit[..bulk], |hash| nh_sink ^= hash[0] ^ hash[1] ^ hash[2] ^ hash[3]);
            }
        }),
        contestant("its Poly1305, once", |data| {
            for _ in data.chunks_exact(unit) {
                poly_sink ^= parts::poly1305(&key(), black_box(&hashes));
            }
        }),
    ];
    if level == Platform::detect() {
        contestants.push(contestant(CRATE, |data| {
            for (i, unit) in data.chunks_exact_mut(unit).enumerate() {
                theirs.decrypt(unit, &tweak(i));
            }
        }));
    }
    let title = format!("Adiantum-XChaCha12, {unit}-byte units, decryption, level {level}");
    let group = Group::measure(&title, "GB/s", Better::Higher, ROUNDS, contestants);
    black_box((nh_sink, poly_sink));
    let rounds = |name: &str| group.series(name).rounds.clone();
    let (chacha, hash, poly) = (rounds("its ChaCha12"), rounds("its NH, once"), rounds("its Poly1305, once"));
    // The stream is made once, the hash of the message twice.
    let limit = (0..ROUNDS).map(|i| 1.0 / (1.0 / chacha[i] + 2.0 / hash[i] + 2.0 / poly[i])).collect();
    report.group(&group);
    let of_limit = Group::from_series(
        &title,
        "GB/s",
        Better::Higher,
        vec![group.series(OURS).clone(), Series { name: LIMIT.into(), rounds: limit }],
    );
    if unit == 4096 {
        report.bar(&of_limit, OURS, LIMIT, 0.75);
        if level == Platform::detect() {
            report.bar(&group, OURS, CRATE, 2.0);
        }
    } else {
        report.note(&format!("{:.2}x the harmonic limit of its parts", of_limit.times_better(OURS, LIMIT)));
    }
}

fn xchacha20(report: &mut Report) {
    let ours = Adiantum::new(Stream::XChaCha20, &key::<32>()).unwrap();
    let theirs = TheirAdiantum::<XChaCha20, Aes256>::new((&key::<32>()).into());
    let group = Group::measure(
        "Adiantum-XChaCha20, 4096-byte units, decryption",
        "GB/s",
        Better::Higher,
        ROUNDS,
        vec![
            contestant(OURS, |data| ours.decrypt_units(data, 4096, 0, 1).unwrap()),
            contestant(CRATE, |data| {
                for (i, unit) in data.chunks_exact_mut(4096).enumerate() {
                    theirs.decrypt(unit, &tweak(i));
                }
            }),
        ],
    );
    report.group(&group);
    report.bar(&group, OURS, CRATE, 2.0);
}

/// OpenSSL 3.0 has no SM4-XTS (3.2 has); its CBC decryption is the same cipher with as much to do in parallel.
fn sm4_levels(report: &mut Report) {
    let xts: Vec<_> =
        Platform::available().map(|level| (level, Sm4Xts::with_platform(&key::<32>(), level).unwrap())).collect();
    let cts = Sm4CbcCts::new(&key::<16>()).unwrap();
    let halves = (Sm4::new((&key::<16>()).into()), Sm4::new((&[9; 16]).into()));
    let theirs = xts_mode::Xts128::new(halves.0, halves.1);
    let mut ctx = CipherCtx::new().unwrap();
    let sm4_cbc = Cipher::fetch(None, "SM4-CBC", None).unwrap();
    ctx.decrypt_init(Some(&sm4_cbc), Some(&key::<16>()), None).unwrap();
    ctx.set_padding(false);
    let mut out = vec![0; 4096 + 16];
    let mut contestants: Vec<_> = xts
        .iter()
        .map(|(level, xts)| {
            contestant(format!("postread XTS, {level}"), |data| xts.decrypt_units(data, 4096, 0, 1).unwrap())
        })
        .collect();
    contestants.push(contestant("postread CBC-CTS", |data| {
        for unit in data.chunks_exact_mut(4096) {
            cts.decrypt(&[0; 16], unit).unwrap();
        }
    }));
    contestants.push(contestant("`xts-mode` over `sm4` (table look-ups)", |data| {
        for (i, unit) in data.chunks_exact_mut(4096).enumerate() {
            theirs.decrypt_sector(unit, (i as u128).to_le_bytes().into());
        }
    }));
    contestants.push(contestant("OpenSSL 3.0, CBC (table look-ups)", |data| {
        for (i, unit) in data.chunks_exact_mut(4096).enumerate() {
            ctx.decrypt_init(None, None, Some(&(i as u128).to_le_bytes())).unwrap();
            let written = ctx.cipher_update(unit, Some(&mut out)).unwrap();
            assert_eq!(written, 4096);
        }
    }));
    let group = Group::measure("SM4, 4096-byte units, decryption", "GB/s", Better::Higher, ROUNDS, contestants);
    report.group(&group);
}

fn speck_levels(report: &mut Report) {
    let xts: Vec<_> =
        Platform::available().map(|level| (level, SpeckXts::with_platform(&key::<64>(), level).unwrap())).collect();
    let contestants = xts
        .iter()
        .map(|(level, xts)| {
            contestant(format!("postread, {level}"), |data| xts.decrypt_units(data, 4096, 0, 1).unwrap())
        })
        .collect();
    let title = "Speck128/256-XTS, 4096-byte units, decryption";
    report.group(&Group::measure(title, "GB/s", Better::Higher, ROUNDS, contestants));
}

fn main() -> ExitCode {
    let mut report = Report::new("blockcrypt_adiantum");
    report.note(&format!(
        "Adiantum, SM4 and Speck, one thread, 256 KiB in place, a tweak set for each unit in every contestant. The \
         limit is the time of ChaCha12 once and of NH and Poly1305 twice over the same bytes, each measured alone; the \
         nonce's own HChaCha block, AES and the tweak's hash are not in it. CPU level: {}.",
        Platform::detect()
    ));
    adiantum_at(&mut report, Platform::detect(), 4096);
    for level in Platform::available().rev().skip(1) {
        adiantum_at(&mut report, level, 4096);
    }
    adiantum_at(&mut report, Platform::detect(), 512);
    xchacha20(&mut report);
    sm4_levels(&mut report);
    speck_levels(&mut report);
    report.finish()
}
