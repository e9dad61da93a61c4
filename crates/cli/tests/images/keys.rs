//! Keys: which one is wanted, and where they come from.

use std::fs;

use crate::common::*;

#[test]
fn the_names_of_keys_are_those_that_the_kernel_gives() {
    let dir = tempfile::tempdir().unwrap();
    let names = expect(&postread(dir.path(), &["key", "id", &key("key64.bin")]), 0);
    let policy = text_of("xts-pad16.policy");
    let identifier = names.lines().next().unwrap().strip_prefix("identifier ").unwrap();
    assert!(policy.contains(identifier), "{policy}");
    let wrapped = expect(&postread(dir.path(), &["key", "id", "--hw-wrapped", &key("key32.bin")]), 0);
    assert!(wrapped.lines().count() == 4 && !wrapped.contains(identifier));
    fs::write(dir.path().join("short"), [1; 15]).unwrap();
    expect(&postread(dir.path(), &["key", "id", "short"]), 2);
    fs::write(dir.path().join("empty"), "").unwrap();
    for key in ["short", "empty"] {
        expect(&postread(dir.path(), &["key", "id", key]), 2);
        let image = unpack(dir.path(), "xts-pad16");
        expect(&postread(dir.path(), &["ls", &image, "--key", key]), 2);
    }
    expect(&postread(dir.path(), &["key", "id", "none"]), 4);
}

#[test]
fn a_missing_or_wrong_key_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "xts-pad16");
    let (right, wrong) = ("106febaab6f204fb554357b2adefc46b", "a53d6d5249ef8496c479b43a721b568c");
    let key32 = key("key32.bin");
    for command in [&["cat", &image, "/enc/f1"][..], &["extract", &image, "-C", "out"], &["verify", &image]] {
        let none = postread(dir.path(), command);
        expect(&none, 3);
        assert!(stderr(&none).contains(&format!("this needs key identifier {right}; you gave none")), "{none:?}");
        let other = postread(dir.path(), &[command, &["--key", &key32]].concat());
        expect(&other, 3);
        assert!(stderr(&other).contains(&format!("this needs key identifier {right}; you gave {wrong}")), "{other:?}");
    }
}

/// A master key of two equal halves makes equal XTS halves under v1's DIRECT_KEY-less derivation of one nonce in
/// ECB: Linux refuses the key at the first use, and so does this, with the reason.
#[test]
fn equal_halves_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "v1-xts");
    fs::write(dir.path().join("weak"), [7; 64]).unwrap();
    let output = postread(dir.path(), &["inspect", &image, "--key", "0000111122223333=weak"]);
    let text = expect(&output, 3);
    assert!(text.contains("halves"), "{text}");
}

/// What Debian's `fscrypt` tool locked is unlocked by the same passphrase, or the same raw key.
#[test]
fn the_fscrypt_tools_protectors_unlock() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "fscrypt-tool");
    fs::write(dir.path().join("pass"), "correct horse\n").unwrap();
    fs::write(dir.path().join("wrong"), "incorrect horse\n").unwrap();
    let cat = |path: &str, rest: &[&str]| postread(dir.path(), &[&["cat", &image, path], rest].concat());
    let passphrase = ["--passphrase-file", "pass"];
    assert_eq!(expect(&cat("/passphrase/secret", &passphrase), 0), "the secret of passphrase\n");
    expect(&cat("/raw/secret", &passphrase), 3);
    let raw = ["--key", &key("key32.bin")];
    assert_eq!(expect(&cat("/raw/secret", &raw), 0), "the secret of raw\n");
    expect(&cat("/passphrase/secret", &raw), 3);
    let wrong = cat("/passphrase/secret", &["--passphrase-file", "wrong"]);
    expect(&wrong, 3);
    assert!(stderr(&wrong).contains("wrong passphrase"));
    let both = postread(dir.path(), &["extract", &image, "-C", "out", passphrase[0], passphrase[1], raw[0], raw[1]]);
    expect(&both, 0);
    assert_eq!(fs::read(dir.path().join("out/raw/lnk")).unwrap(), b"the secret of raw\n");
    let text = expect(&postread(dir.path(), &["inspect", &image]), 0);
    assert!(text.contains("custom_passphrase") && text.contains("raw_key") && text.contains("\"words\""), "{text}");
}

/// A v1 policy's key can be given under any name: the names that it decrypts say whether it is the right one.
#[test]
fn a_wrong_v1_key_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    for (name, right) in [("v1-xts", "key64.bin"), ("v1-cbc", "key32.bin"), ("v1-adiantum", "key32.bin")] {
        let (image, right) = (unpack(dir.path(), name), format!("0000111122223333={}", key(right)));
        let text = expect(&postread(dir.path(), &["inspect", &image, "--key", &right]), 0);
        assert!(text.contains("given; looks right"), "{text}");
        for seed in 1..=4 {
            let bytes: Vec<u8> = (0..64u8).map(|i| i.wrapping_mul(37).wrapping_add(seed * 59)).collect();
            fs::write(dir.path().join("wrong"), bytes).unwrap();
            let wrong = ["--key", "0000111122223333=wrong"];
            let run = |command: &[&str]| postread(dir.path(), &[command, &wrong].concat());
            let text = expect(&run(&["inspect", &image]), 3);
            assert!(text.contains("does not fit (names decrypt to garbage)"), "{text}");
            let commands = [
                &["ls", "-R", &image, "/"][..],
                &["cat", &image, "/enc/f1"],
                &["extract", &image, "/enc", "-C", "out"],
            ];
            for command in commands {
                let output = run(command);
                expect(&output, 3);
                assert!(stderr(&output).contains("probably it is the wrong key"), "{name} {output:?}");
            }
            assert_eq!(fs::read_dir(dir.path().join("out")).unwrap().count(), 0);
        }
    }
}
