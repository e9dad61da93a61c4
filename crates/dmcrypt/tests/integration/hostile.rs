//! Headers that nobody should write: errors, and no more memory or time than the limits allow.

use postread_dmcrypt::HashAlg;
use postread_dmcrypt::luks::luks1::{self, Luks1Error};
use postread_dmcrypt::luks::luks2::{Binary, Header, Luks2Error, Unsupported};
use postread_dmcrypt::luks::{Limits, Luks, LuksError, UnlockError};
use sha2::Digest as _;

/// A LUKS1 header with one keyslot.
fn v1() -> Vec<u8> {
    let mut bytes = vec![0; 1 << 16];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, b"LUKS\xba\xbe\0\x01");
    put(8, b"aes");
    put(40, b"xts-plain64");
    put(72, b"sha256");
    put(104, &128u32.to_be_bytes());
    put(108, &64u32.to_be_bytes());
    put(164, &1000u32.to_be_bytes());
    put(168, b"00000000-0000-0000-0000-000000000000");
    for slot in 0..8 {
        let state: u32 = if slot == 2 { 0x00ac_71f3 } else { 0xdead };
        put(208 + 48 * slot, &state.to_be_bytes());
        put(212 + 48 * slot, &1000u32.to_be_bytes());
        put(248 + 48 * slot, &8u32.to_be_bytes());
        put(252 + 48 * slot, &4u32.to_be_bytes());
    }
    bytes
}

#[test]
fn fields_of_luks1_are_checked() {
    let good = luks1::Header::parse(&v1()).unwrap();
    assert_eq!((good.keyslots.len(), good.keyslots[0].number, good.hash), (1, 2, HashAlg::Sha256));
    assert_eq!((good.payload_offset, good.keyslots[0].material_offset), (65536, 4096));
    let with = |at: usize, field: &[u8]| {
        let mut bytes = v1();
        bytes[at..at + field.len()].copy_from_slice(field);
        luks1::Header::parse(&bytes).unwrap_err()
    };
    assert!(matches!(with(0, b"X"), Luks1Error::NotLuks1));
    assert!(matches!(with(7, &[3]), Luks1Error::NotLuks1));
    assert!(matches!(with(8, b"rot13"), Luks1Error::Cipher(_)));
    assert!(matches!(with(8, b"\xff"), Luks1Error::Text { .. }));
    assert!(matches!(with(72, b"md5\0"), Luks1Error::Hash(_)));
    assert!(matches!(with(108, &[0; 4]), Luks1Error::Field { value: 0, .. }));
    assert!(matches!(with(108, &[0xff; 4]), Luks1Error::Field { .. }));
    assert!(matches!(with(164, &[0; 4]), Luks1Error::Field { .. }));
    assert!(matches!(with(208, &[0; 4]), Luks1Error::Field { value: 0, .. }));
    assert!(matches!(with(208 + 96 + 4, &[0; 4]), Luks1Error::Field { .. }));
    assert!(matches!(with(208 + 96 + 44, &[0; 4]), Luks1Error::Field { .. }));
}

#[test]
fn what_luks1_may_cost_is_limited() {
    let unlock = |at: usize, field: u32| {
        let mut bytes = v1();
        bytes[at..at + 4].copy_from_slice(&field.to_be_bytes());
        let luks = Luks::read(&bytes[..]).unwrap();
        luks.unlock(&bytes[..], b"x", &Limits::default()).unwrap_err().to_string()
    };
    assert_eq!(unlock(208 + 96 + 44, 4), "the passphrase opens none of 1 keyslots");
    assert_eq!(
        unlock(208 + 96 + 4, u32::MAX),
        "no keyslot can be tried; keyslot 2: PBKDF2 iterations of 4294967295: the limit is 100000000"
    );
    assert_eq!(
        unlock(208 + 96 + 44, u32::MAX),
        "no keyslot can be tried; keyslot 2: key material in bytes of 274877906880: the limit is 4194304"
    );
    assert!(unlock(208 + 96 + 40, u32::MAX).contains("reading 512 bytes of key material at byte 2199023255040"));
    assert!(unlock(164, u32::MAX).starts_with("the digest of the volume key: PBKDF2 iterations"));
}

/// A whole LUKS2 header with this JSON.
fn v2(json: &str) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 16];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, b"LUKS\xba\xbe\0\x02");
    put(8, &16384u64.to_be_bytes());
    put(16, &3u64.to_be_bytes());
    put(72, b"sha256");
    put(4096, json.as_bytes());
    let digest = sha2::Sha256::digest(&bytes[..16384]);
    bytes[448..480].copy_from_slice(&digest);
    bytes
}

const GOOD: &str = r#"{"keyslots":{"0":{"type":"luks2","key_size":64,
"kdf":{"type":"pbkdf2","hash":"sha256","iterations":1000,"salt":"AAAA"},
"af":{"type":"luks1","stripes":4,"hash":"sha256"},
"area":{"type":"raw","offset":"32768","size":"4096","encryption":"aes-xts-plain64","key_size":64}}},
"segments":{"0":{"type":"crypt","offset":"49152","size":"dynamic","iv_tweak":"0","encryption":"aes-xts-plain64","sector_size":512}},
"digests":{"0":{"type":"pbkdf2","keyslots":["0"],"segments":["0"],"salt":"AAAA","hash":"sha256","iterations":1000,
"digest":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}},
"tokens":{},"config":{"json_size":"12288","keyslots_size":"32768"}}"#;

fn parse(from: &str, to: &str) -> Result<Header, Luks2Error> {
    assert!(GOOD.contains(from), "{from}");
    Header::parse(GOOD.replacen(from, to, 1).as_bytes())
}

#[test]
fn states_that_cannot_be_read_are_named() {
    assert!(Header::parse(GOOD.as_bytes()).is_ok());
    let error = |from: &str, to: &str| match parse(from, to) {
        Err(Luks2Error::Unsupported(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let require = |what: &str| {
        let to = format!("\"keyslots_size\":\"32768\",\"requirements\":{{\"mandatory\":[\"{what}\"]}}");
        error("\"keyslots_size\":\"32768\"", &to)
    };
    assert_eq!(
        require("online-reencrypt-v2"),
        "this LUKS2 device requires \"online-reencrypt-v2\": it is being re-encrypted; finish or abort that first"
    );
    assert!(require("opal").contains("OPAL"));
    assert!(require("inline-hw-tags").contains("sectors' own metadata"));
    assert_eq!(require("tea"), "this LUKS2 device requires \"tea\", which is not supported");
    assert!(error("\"crypt\"", "\"hw-opal-crypt\"").contains("the drive itself encrypts"));
    assert!(error("\"crypt\"", "\"linear\"").contains("\"linear\""));
    let integrity = "\"sector_size\":512,\"integrity\":{\"type\":\"hmac(sha256)\"}";
    assert!(error("\"sector_size\":512", integrity).contains("hmac(sha256)"));
    let two =
        "\"segments\":{\"1\":{\"type\":\"linear\",\"offset\":\"0\",\"size\":\"512\",\"flags\":[\"in-reencryption\"]},";
    assert!(matches!(parse("\"segments\":{", two), Err(Luks2Error::Unsupported(Unsupported::Segments { count: 2 }))));
}

#[test]
fn metadata_that_cannot_be_is_refused() {
    let error = |from, to| parse(from, to).unwrap_err().to_string();
    assert!(Header::parse(b"").is_err());
    assert!(Header::parse(&b"[".repeat(4 << 20)).is_err());
    assert!(error("\"offset\":\"49152\"", "\"offset\":\"49153\"").contains("not whole sectors"));
    assert!(error("\"offset\":\"49152\"", "\"offset\":\"-1\"").contains("not a number"));
    assert!(error("\"size\":\"dynamic\"", "\"size\":\"18446744073709551104\"").contains("not whole sectors"));
    assert!(error("\"sector_size\":512", "\"sector_size\":65536").contains("512, 1024, 2048 or 4096"));
    assert!(error("plain64\",\"sector", "moon\",\"sector").contains("moon"));
    assert!(error("\"segments\":[\"0\"]", "\"segments\":[\"1\"]").contains("no digest"));
    assert!(error("\"digest\":\"AAAA", "\"digest\":\"!").contains("base64"));
    // A bad keyslot is no reason to refuse the others.
    for (from, to) in [
        ("\"stripes\":4", "\"stripes\":4000000000"),
        ("\"key_size\":64,", "\"key_size\":4000000000,"),
        ("\"offset\":\"32768\"", "\"offset\":\"18446744073709551615\""),
        ("\"type\":\"luks2\"", "\"type\":\"reencrypt\""),
        ("\"iterations\":1000,\"salt\":\"AAAA\"}", "\"iterations\":0,\"salt\":\"AAAA\"}"),
    ] {
        let header = parse(from, to).unwrap();
        assert_eq!((header.keyslots.len(), header.other_keyslots.len()), (0, 1), "{to}");
    }
}

#[test]
fn what_luks2_may_cost_is_limited() {
    let unlock = |kdf: &str, limits: &Limits| {
        let from = r#"{"type":"pbkdf2","hash":"sha256","iterations":1000,"salt":"AAAA"}"#;
        let bytes = v2(&GOOD.replacen(from, kdf, 1));
        let luks = Luks::read(&bytes[..]).unwrap();
        luks.unlock(&bytes[..], b"x", limits).unwrap_err()
    };
    let argon2 = |memory: u32, time: u32| {
        format!(r#"{{"type":"argon2id","time":{time},"memory":{memory},"cpus":1,"salt":"AAAAAAAAAAAAAAAA"}}"#)
    };
    let text = |memory, time| unlock(&argon2(memory, time), &Limits::default()).to_string();
    assert!(text(1 << 30, 4).contains("Argon2 memory in KiB of 1073741824: the limit is 1048576"));
    assert!(text(1 << 20, u32::MAX).contains("Argon2 passes times memory in KiB"));
    assert!(text(32, 0).contains("impossible parameters"));
    assert!(matches!(unlock(&argon2(32, 1), &Limits::default()), UnlockError::WrongPassphrase { tried: 1, .. }));
    let mut limits = Limits::default();
    limits.argon2_memory_kib = 31;
    assert!(unlock(&argon2(32, 1), &limits).to_string().contains("the limit is 31"));
}

#[test]
fn binary_headers_are_checked() {
    let good = v2(GOOD);
    assert!(Luks::read(&good[..]).is_ok());
    // One changed bit anywhere in the header, and there is no second one.
    // But for the rest of the checksum's field, after the 32 bytes of SHA-256.
    for at in (0..480).chain([4095, 4096, 9000, 16383]) {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert!(Luks::read(&bad[..]).is_err(), "byte {at}");
    }
    for size in [0u64, 4096, 16385, 8 << 20, u64::MAX] {
        let mut bad = good.clone();
        bad[8..16].copy_from_slice(&size.to_be_bytes());
        assert!(matches!(Binary::parse(&bad, 0), Err(Luks2Error::Size { .. })));
    }
    assert!(matches!(Luks::read(&good[..8192]), Err(LuksError::Luks2(Luks2Error::NotLuks2))));
    assert!(matches!(Luks::read(&[0u8; 512][..]), Err(LuksError::NotLuks)));
    assert!(matches!(Luks::read(&b"LUKS\xba\xbe\0\x03"[..]), Err(LuksError::Version { version: 3 })));
}
