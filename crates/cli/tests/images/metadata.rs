//! Where the metadata is that wraps master keys: a link, another file system, a directory of systemd-homed.

use std::fs;
use std::path::Path;
use std::process::Command;

use sha2::{Digest, Sha512};

use crate::common::*;

fn passphrase_file(dir: &Path) {
    fs::write(dir.join("pass"), "correct horse\n").unwrap();
}

#[test]
fn the_fscrypt_directory_may_be_a_link() {
    let dir = tempfile::tempdir().unwrap();
    passphrase_file(dir.path());
    for target in ["real", "/real", "./nested/../real"] {
        let image = unpack(dir.path(), "fscrypt-tool");
        let link = format!("symlink .fscrypt {target}");
        let requests = ["mkdir nested", "ln .fscrypt real", "unlink .fscrypt", &link];
        let Some(()) = debugfs(dir.path(), &image, &requests) else { return };
        let cat = ["cat", &image, "/passphrase/secret", "--passphrase-file", "pass"];
        assert_eq!(expect(&postread(dir.path(), &cat), 0), "the secret of passphrase\n", "{target}");
    }
    // One that leads nowhere, or out of the image, is no metadata.
    for target in ["none", "/../../../../tmp", ".fscrypt"] {
        let image = unpack(dir.path(), "fscrypt-tool");
        let requests = ["unlink .fscrypt", &format!("symlink .fscrypt {target}")];
        let Some(()) = debugfs(dir.path(), &image, &requests) else { return };
        let cat = ["cat", &image, "/passphrase/secret", "--passphrase-file", "pass"];
        let output = postread(dir.path(), &cat);
        expect(&output, 3);
        assert!(!stderr(&output).contains("wrong passphrase"), "{target}: {}", stderr(&output));
    }
}

/// The image of a home whose protector is a login protector on the root file system, `root.img`.
#[test]
fn a_login_protector_comes_from_another_image_or_directory() {
    let dir = tempfile::tempdir().unwrap();
    passphrase_file(dir.path());
    fs::write(dir.path().join("wrong"), "incorrect\n").unwrap();
    let home = unpack(dir.path(), "fscrypt-tool");
    let listing = expect(&postread(dir.path(), &["ls", &home, "/.fscrypt/protectors"]), 0);
    let file_of = |name: &str| {
        let output = postread(dir.path(), &["cat", &home, &format!("/.fscrypt/protectors/{name}")]);
        expect(&output, 0);
        output.stdout
    };
    // Field 1, 18 bytes, is the descriptor; field 2 the source: 2 is a passphrase of its own, 1 the login passphrase.
    let (name, mut protector) =
        listing.lines().map(|name| (name, file_of(name))).find(|(_, bytes)| bytes[18..20] == [0x10, 2]).unwrap();
    protector[19] = 1;
    fs::write(dir.path().join("login"), protector).unwrap();
    fs::write(dir.path().join("link"), "UUID=5a5a5a5a-0000-4000-8000-000000000001\n").unwrap();
    fs::copy(dir.path().join(&home), dir.path().join("root.img")).unwrap();
    let protectors = "/.fscrypt/protectors";
    // Of the root file system, only the protector is of interest.
    let remove = format!("rm {protectors}/{name}");
    let write = format!("write login {protectors}/{name}");
    let requests = [&remove, &write, "unlink /.fscrypt/policies", "unlink passphrase"];
    let Some(()) = debugfs(dir.path(), "root.img", &requests) else { return };
    let Some(()) = debugfs(dir.path(), &home, &[&remove, &format!("write link {protectors}/{name}.link")]) else {
        return;
    };
    let copied = dir.path().join("mounted/.fscrypt/protectors");
    fs::create_dir_all(&copied).unwrap();
    fs::copy(dir.path().join("login"), copied.join(name)).unwrap();

    let cat = |rest: &[&str]| {
        postread(dir.path(), &[&["cat", &home, "/passphrase/secret", "--passphrase-file", "pass"], rest].concat())
    };
    let alone = cat(&[]);
    expect(&alone, 3);
    let message = stderr(&alone);
    assert!(message.contains(name) && message.contains("UUID=5a5a5a5a-0000-4000-8000-000000000001"), "{message}");
    assert!(message.contains("--fscrypt-metadata") && !message.contains("wrong passphrase"), "{message}");
    for from in ["root.img", "mounted", "mounted/.fscrypt"] {
        let output = cat(&["--fscrypt-metadata", from]);
        assert_eq!(expect(&output, 0), "the secret of passphrase\n", "{from}");
        let wrong = ["cat", &home, "/passphrase/secret", "--passphrase-file", "wrong", "--fscrypt-metadata", from];
        let output = postread(dir.path(), &wrong);
        expect(&output, 3);
        assert!(stderr(&output).contains(&format!("wrong passphrase for protector {name}")), "{}", stderr(&output));
    }
    // An image that has none of it does not help, and is no failure of its own.
    let other = unpack(dir.path(), "xts-pad16");
    expect(&cat(&["--fscrypt-metadata", &other]), 3);
    expect(&cat(&["--fscrypt-metadata", "nothing-there"]), 4);
    let text = expect(&postread(dir.path(), &["inspect", &home]), 0);
    assert!(text.contains(&format!("protector {name}: on another file system")), "{text}");
}

/// A directory as systemd-homed leaves it: a v1 policy that the kernel made, under the descriptor that systemd gives its
/// key, and key slots made with `openssl`.
pub(crate) fn homed_image(dir: &Path) -> Option<(String, [u8; 8])> {
    let openssl = postread_tests::require_tool("openssl")?;
    let tune2fs = postread_tests::require_tool("tune2fs")?;
    let image = unpack(dir, "v1-xts");
    let master = fs::read(key("key64.bin")).unwrap();
    // The descriptor does not go into any key. No checksums any more, as the inodes that name it change.
    postread_tests::run(Command::new(tune2fs).current_dir(dir).args(["-O", "^metadata_csum", &image]));
    let descriptor: [u8; 8] = Sha512::digest(Sha512::digest(&master))[..8].try_into().unwrap();
    let mut bytes = fs::read(dir.join(&image)).unwrap();
    let made_with = [0, 0, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33];
    let contexts: Vec<usize> = (0..bytes.len() - 8).filter(|&at| bytes[at..at + 8] == made_with).collect();
    assert!(contexts.len() > 3);
    for at in contexts {
        bytes[at..at + 8].copy_from_slice(&descriptor);
    }
    fs::write(dir.join(&image), bytes).unwrap();

    let openssl = |args: &[&str]| {
        let output = Command::new(&openssl).current_dir(dir).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let slot = |passphrase: &str, salt: &str| {
        let (pass, salt_hex) = (format!("pass:{passphrase}"), format!("hexsalt:{}", hex::encode(salt)));
        let kdf = ["kdf", "-keylen", "32", "-kdfopt", "digest:SHA512", "-kdfopt", "iter:65535", "-kdfopt"];
        let wrapping = openssl(&[&kdf[..], &[&pass, "-kdfopt", &salt_hex, "PBKDF2"]].concat()).replace(':', "");
        let iv = "0".repeat(32);
        let file = key("key64.bin");
        let encrypted = openssl(&["enc", "-aes-256-ctr", "-K", &wrapping, "-iv", &iv, "-in", &file, "-base64", "-A"]);
        fs::write(dir.join("salt"), salt).unwrap();
        format!("{}:{encrypted}", openssl(&["base64", "-A", "-in", "salt"]))
    };
    // The second slot is the one; the first is of another passphrase.
    fs::write(dir.join("slot0"), slot("recovery words", "0123456789abcdef0123456789abcdef")).unwrap();
    fs::write(dir.join("slot1"), slot("correct horse", "another salt of thirty-two bytes")).unwrap();
    let slots = ["ea_set -f slot0 /enc trusted.fscrypt_slot0", "ea_set -f slot1 /enc trusted.fscrypt_slot1"];
    debugfs(dir, &image, &slots)?;
    Some((image, descriptor))
}

#[test]
fn a_directory_of_systemd_homed_unlocks() {
    let dir = tempfile::tempdir().unwrap();
    passphrase_file(dir.path());
    fs::write(dir.path().join("wrong"), "incorrect\n").unwrap();
    let Some((image, descriptor)) = homed_image(dir.path()) else { return };
    expect(&postread(dir.path(), &["extract", "-q", &image, "/enc", "-C", "out", "--passphrase-file", "pass"]), 0);
    let of_key = format!("{}={}", hex::encode(descriptor), key("key64.bin"));
    expect(&postread(dir.path(), &["extract", "-q", &image, "/enc", "-C", "by-key", "--key", &of_key]), 0);
    let (by_slot, by_key) = (manifest(&dir.path().join("out")), manifest(&dir.path().join("by-key")));
    assert!(by_slot == by_key && by_slot == text_of("tree.manifest"), "{by_slot}");
    let wrong = postread(dir.path(), &["cat", &image, "/enc/f1", "--passphrase-file", "wrong"]);
    expect(&wrong, 3);
    assert!(stderr(&wrong).contains("systemd-homed"), "{}", stderr(&wrong));
    let text = expect(&postread(dir.path(), &["inspect", &image]), 0);
    assert!(text.contains("/enc") && text.contains("systemd-homed"), "{text}");
}
