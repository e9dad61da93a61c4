//! `postread luks`, on what `cryptsetup` makes.

use std::fs;

use crate::common::{expect, have_tool, postread, run, stderr, stdout};
use crate::schemas::{have_validator, valid};

#[test]
fn dump_and_test() {
    if !have_tool("cryptsetup", "--version", "dump_and_test") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("pass"), "correct horse").unwrap();
    fs::write(at.join("line"), "correct horse\n").unwrap();
    fs::write(at.join("wrong"), "wrong").unwrap();
    fs::File::create(at.join("image")).unwrap().set_len(4 << 20).unwrap();
    let format = "luksFormat -q --type luks2 --pbkdf argon2id --pbkdf-memory 256 --pbkdf-force-iterations 4 \
                  --pbkdf-parallel 1 --luks2-keyslots-size 512k --sector-size 4096 --label disk image pass";
    let output = run(at, "cryptsetup", &format.split_whitespace().collect::<Vec<_>>());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = expect(&postread(at, &["luks", "dump", "image"]), 0);
    for wanted in [
        "LUKS version 2\n",
        "label:       disk\n",
        "cipher:      aes-xts-plain64, sectors of 4096 bytes\n",
        "keyslot 0:   argon2id, 4 passes over 256 KiB, 1 lanes; aes-xts-plain64; a key of 512 bits\n",
    ] {
        assert!(text.contains(wanted), "{text}");
    }
    let test = |more: &[&str]| postread(at, &[&["luks", "test", "image"], more].concat());
    assert_eq!(expect(&test(&["--passphrase-file=line"]), 0), "image: the passphrase opens keyslot 0\n");
    expect(&test(&["--key-file=pass"]), 0);
    // Of a key file every byte counts.
    let output = test(&["--key-file=line"]);
    assert_eq!(output.status.code(), Some(3));
    let output = test(&["--passphrase-file=wrong"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(3), ""));
    assert!(stderr(&output).contains("the passphrase opens none of 1 keyslots"));
    let output = test(&["--passphrase-file=pass", "--argon2-memory-limit=255"]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(
        text.contains("Argon2 memory in KiB of 256: the limit is 255; raise it with --argon2-memory-limit"),
        "{text}"
    );
    // The first header damaged.
    let mut image = fs::read(at.join("image")).unwrap();
    image[100] ^= 1;
    fs::write(at.join("image"), &image).unwrap();
    let text = expect(&postread(at, &["luks", "dump", "image"]), 0);
    assert!(text.contains("the second one, at byte 16384"), "{text}");
    expect(&test(&["--passphrase-file=pass"]), 0);
    if have_validator("dump_and_test") {
        valid(&postread(at, &["luks", "dump", "image", "--json"]).stdout);
    }
    fs::write(at.join("image"), [0; 8192]).unwrap();
    assert_eq!(postread(at, &["luks", "dump", "image"]).status.code(), Some(2));
}
