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

/// An image of a v1 policy, with two encrypted files and a link in a directory that is not encrypted, where Linux
/// lets them be moved to, and with a right and a wrong key.
fn moved_out(dir: &std::path::Path, commands: &str) -> Option<(String, String, &'static str)> {
    let debugfs = postread_tests::require_tool("debugfs")?;
    let (image, right) = (unpack(dir, "v1-xts"), format!("0000111122223333={}", key("key64.bin")));
    let listing = expect(&postread(dir, &["ls", "-i", &image, "/enc", "--key", &right]), 0);
    let ino = |name: &str| {
        let mut lines = listing.lines().filter_map(|line| line.trim().split_once(' '));
        lines.find(|(_, other)| *other == name).unwrap().0.to_owned()
    };
    let (file, other, link) = (ino("f100"), ino("f4096"), ino("lnk"));
    let script =
        format!("mkdir moved\nln <{file}> moved/f\nln <{other}> moved/other\nln <{link}> moved/l\n{commands}\n");
    fs::write(dir.join("script"), script).unwrap();
    let mut debugfs = std::process::Command::new(debugfs);
    postread_tests::run(debugfs.current_dir(dir).args(["-w", "-f", "script", &image]));
    let bytes: Vec<u8> = (0..64u8).map(|i| i.wrapping_mul(37).wrapping_add(11)).collect();
    fs::write(dir.join("wrong"), bytes).unwrap();
    Some((image, right, "0000111122223333=wrong"))
}

/// A wrong v1 key is told before anything is decrypted with it, by names elsewhere in the image or by links alone.
#[test]
fn a_wrong_v1_key_is_told_where_no_name_lies_beside_the_file() {
    // The second time nothing of the encrypted directory is left: the link speaks.
    for commands in ["", "unlink enc"] {
        let dir = tempfile::tempdir().unwrap();
        let Some((image, right, wrong)) = moved_out(dir.path(), commands) else { return };
        let run = |command: &[&str], key: &str| postread(dir.path(), &[command, &["--key", key]].concat());
        let cat = run(&["cat", &image, "/moved/f"], &right);
        expect(&cat, 0);
        assert_eq!((cat.stdout.len(), stderr(&cat)), (100, String::new()));
        let commands = [
            &["cat", &image, "/moved/f"][..],
            &["ls", "-l", &image, "/moved"],
            &["ls", "-l", &image, "/moved/l"],
            &["extract", &image, "/moved", "-C", "out"],
        ];
        for command in commands {
            let output = run(command, wrong);
            assert!(!expect(&output, 3).contains("\u{fffd}"), "{output:?}");
            assert!(stderr(&output).contains("probably it is the wrong key"), "{output:?}");
        }
        assert_eq!(fs::read_dir(dir.path().join("out")).unwrap().count(), 0);
        assert!(run(&["cat", &image, "/moved/f"], wrong).stdout.is_empty());
        assert!(expect(&run(&["inspect", &image], wrong), 3).contains("does not fit (names decrypt to garbage)"));
        assert!(expect(&run(&["inspect", &image, "/moved/f"], wrong), 3).contains("does not fit"));
        assert!(expect(&run(&["inspect", &image], &right), 0).contains("given; looks right"));
        assert!(expect(&run(&["ls", "-l", &image, "/moved"], &right), 0).contains("l -> f4096\n"));
        // Of two keys under one descriptor the one that fits is taken, whichever comes first.
        for keys in [[wrong, &right], [&right, wrong]] {
            let cat = postread(dir.path(), &["cat", &image, "/moved/f", "--key", keys[0], "--key", keys[1]]);
            expect(&cat, 0);
            assert_eq!((cat.stdout.len(), stderr(&cat)), (100, String::new()));
        }
        let neither = postread(dir.path(), &["cat", &image, "/moved/f", "--key", wrong, "--key", wrong]);
        expect(&neither, 3);
        let said = stderr(&neither);
        assert!(said.contains("none of the 2 keys given for descriptor 0000111122223333 fits"), "{said}");
        assert_eq!(said.matches("0000111122223333").count(), 1, "{said}");
    }
}

/// If nothing distinguishes the right key from a wrong one, that is reported once, and the key is used as given.
#[test]
fn a_v1_key_that_nothing_speaks_for_or_against_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let Some((image, right, wrong)) = moved_out(dir.path(), "unlink enc\nunlink moved/l") else { return };
    for key in [&right, wrong] {
        let run = |command: &[&str]| postread(dir.path(), &[command, &["--key", key]].concat());
        let warned = "the key given for descriptor 0000111122223333 could not be judged: nothing in this image \
                      distinguishes the right key from a wrong one";
        let out = format!("out{}", key.len());
        for command in [&["cat", &image, "/moved/f"][..], &["extract", &image, "/moved", "-C", &out]] {
            let output = run(command);
            expect(&output, 0);
            assert_eq!(stderr(&output).matches(warned).count(), 1, "{output:?}");
        }
        assert_eq!(fs::read_dir(dir.path().join(out)).unwrap().count(), 2);
        let text = expect(&run(&["inspect", &image]), 0);
        assert!(text.contains("given; no name or link to judge it by"), "{text}");
    }
}
