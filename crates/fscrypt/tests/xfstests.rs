//! Tests of the encrypt group of xfstests, as far as they need no kernel. Those that compare ciphertext (548 to 550, 582 to
//! 584, 592, 602, 739) are the kernel-made images of `tests/images`, read and encrypted by `tests/tests/fscrypt_images.rs`.

use std::collections::HashSet;

use postread_fscrypt::{Context, InodeFacts, Keyring, MasterKey, NameKey, NoKeyName, no_key_name};

const FACTS: InodeFacts = InodeFacts { ino: 12, fs_uuid: [7; 16], block_size: 4096 };

fn context(master: &MasterKey, contents: u8, names: u8, flags: u8) -> Context {
    Context::parse(&[&[2, contents, names, flags, 0, 0, 0, 0], master.identifier().as_bytes(), &[9; 16]].concat())
        .unwrap()
}

/// generic/435: 100,000 long names that differ only at their end have no-key names that differ. With the last two
/// blocks not swapped, or with only the first bytes of a name shown, they would not.
#[test]
fn generic_435_long_names_keep_apart_without_the_key() {
    let master = MasterKey::new(&[3; 64]).unwrap();
    for (contents, names) in [(1, 4), (5, 6), (9, 9), (1, 10)] {
        let key = NameKey::derive(&master, &context(&master, contents, names, 3), &FACTS).unwrap();
        let mut seen = HashSet::new();
        let head = "y".repeat(240);
        for i in 0..100_000 {
            let ciphertext = key.encrypt_name(format!("{head}{i:015}").as_bytes()).unwrap();
            let name = no_key_name(0, 0, &ciphertext);
            assert!(NoKeyName::parse(&name).unwrap().matches(&ciphertext));
            assert!(seen.insert(name), "modes {contents} and {names}: {i}");
        }
    }
}

/// generic/397, its half that reads: without the key there are as many entries, and no plain name among them.
#[test]
fn generic_397_names_of_every_length_come_back_and_never_show() {
    let master = MasterKey::new(&[5; 64]).unwrap();
    for flags in 0..4 {
        let key = NameKey::derive(&master, &context(&master, 1, 4, flags), &FACTS).unwrap();
        for length in 1..=255 {
            let plain = "n".repeat(length);
            let ciphertext = key.encrypt_name(plain.as_bytes()).unwrap();
            let padding = 4usize << flags;
            assert_eq!(ciphertext.len(), length.max(16).next_multiple_of(padding).min(255));
            assert_eq!(key.decrypt_name(&ciphertext).unwrap(), plain.as_bytes());
            let shown = no_key_name(1, 2, &ciphertext);
            assert!(shown.len() <= 252 && shown != plain);
        }
    }
}

/// google/fscryptctl issue 14: a v1 master key of zeros has equal halves, which Linux refuses at the first use.
#[test]
fn a_v1_key_of_zeros_is_refused_with_the_reason() {
    let mut keyring = Keyring::new();
    keyring.add_with_descriptor([1; 8], MasterKey::new(&[0; 64]).unwrap());
    let context = Context::parse(&[&[1, 1, 4, 0], &[1; 8][..], &[9; 16]].concat()).unwrap();
    let master = keyring.find(&context.policy).unwrap();
    let error = postread_fscrypt::ContentsKey::derive(master, &context, &FACTS).unwrap_err();
    assert!(error.to_string().contains("halves"), "{error}");
    // The names' key is half as long, and fine; a v2 policy derives unequal halves.
    NameKey::derive(master, &context, &FACTS).unwrap();
    let v2 = Context::parse(&[&[2, 1, 4, 0, 0, 0, 0, 0], master.identifier().as_bytes(), &[9; 16]].concat()).unwrap();
    postread_fscrypt::ContentsKey::derive(master, &v2, &FACTS).unwrap();
}

/// `IV_INO_LBLK_32` adds the index to a hash modulo 2^32: a file whose units cross the wrap decrypts unit by unit as in
/// one run. Indexes beyond 32 bits are refused.
#[test]
fn lblk_32_wraps_within_a_file() {
    let master = MasterKey::new(&[6; 64]).unwrap();
    let key = postread_fscrypt::ContentsKey::derive(&master, &context(&master, 1, 4, 0x13), &FACTS).unwrap();
    let units = 8;
    // Somewhere in 2^32 indexes the sum wraps; cover the border by starting at both ends and at the middle.
    for first in [0, u64::from(u32::MAX) - units + 1, 1 << 31] {
        let mut run = vec![0x5a; 4096 * units as usize];
        let mut single = run.clone();
        key.encrypt(&mut run, first).unwrap();
        for (i, unit) in single.chunks_mut(4096).enumerate() {
            key.encrypt(unit, first + i as u64).unwrap();
        }
        assert!(run == single);
    }
    assert!(key.decrypt(&mut [0; 8192], u64::from(u32::MAX)).is_err());
}
