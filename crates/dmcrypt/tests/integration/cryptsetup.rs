//! Headers that `cryptsetup` writes. Where there is no device-mapper it still formats, and prints the volume key.

use std::fs;
use std::path::Path;
use std::process::Command;

use postread_dmcrypt::Mapping;
use postread_dmcrypt::luks::{Limits, Luks, UnlockError};
use postread_tests::{noise, require_tool, run};

use crate::decrypt;

/// Formats `image` with `cryptsetup luksFormat` and the passphrase of the file `pass`.
fn format(dir: &Path, options: &[&str]) -> Vec<u8> {
    let image = dir.join("image");
    let _ = fs::remove_file(&image);
    fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    fs::write(dir.join("pass"), "correct horse").unwrap();
    let mut command = Command::new("cryptsetup");
    command.args(["luksFormat", "-q", "--use-urandom"]).args(options).args([image.clone(), dir.join("pass")]);
    run(&mut command);
    fs::read(image).unwrap()
}

/// The volume key, from `cryptsetup luksDump`.
fn volume_key(dir: &Path) -> Vec<u8> {
    let mut command = Command::new("cryptsetup");
    command.args(["luksDump", "-q", "--dump-volume-key", "--key-file"]).args([dir.join("pass"), dir.join("image")]);
    let output = String::from_utf8(run(&mut command).stdout).unwrap();
    let (_, rest) = output.split_once("MK dump:").expect("a volume key");
    hex::decode(rest.split_whitespace().collect::<String>()).unwrap()
}

const SMALL: [&str; 4] = ["--luks2-metadata-size", "16k", "--luks2-keyslots-size", "512k"];

#[test]
fn each_kdf_hash_and_sector_size_opens() {
    if require_tool("cryptsetup").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pbkdf2 =
        |hash: &'static str| ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--hash", hash].to_vec();
    let argon2 = |kind: &'static str| {
        let costs = ["--pbkdf-force-iterations", "4", "--pbkdf-memory", "256", "--pbkdf-parallel", "2"];
        [&["--pbkdf", kind][..], &costs].concat()
    };
    let v1 =
        |hash: &'static str| [&["--type", "luks1"][..], &["--hash", hash, "--pbkdf-force-iterations", "1000"]].concat();
    let v2 = |more: &[&'static str]| [&["--type", "luks2"][..], &SMALL, more].concat();
    for (options, sector_size) in [
        (v1("sha1"), 512),
        (v1("sha256"), 512),
        (v1("ripemd160"), 512),
        ([v1("sha512"), vec!["-c", "aes-cbc-essiv:sha256", "-s", "256"]].concat(), 512),
        ([v1("whirlpool"), vec!["-c", "aes-cbc-plain", "-s", "128"]].concat(), 512),
        (v2(&[&pbkdf2("sha512")[..], &["--sector-size", "512"]].concat()), 512),
        (v2(&[&pbkdf2("sha1")[..], &["--sector-size", "1024"]].concat()), 1024),
        (v2(&[&argon2("argon2i")[..], &["--sector-size", "2048"]].concat()), 2048),
        (v2(&[&argon2("argon2id")[..], &["--sector-size", "4096"]].concat()), 4096),
    ] {
        let image = format(dir.path(), &options);
        let luks = Luks::read(&image[..]).unwrap();
        let unlocked = luks.unlock(&image[..], b"correct horse", &Limits::default()).unwrap();
        assert_eq!((unlocked.keyslot.as_str(), unlocked.mapping.sector_size()), ("0", sector_size), "{options:?}");
        let key = volume_key(dir.path());
        let theirs = Mapping::new(luks.cipher(), &key).unwrap().with_sector_size(sector_size).unwrap();
        let mut data = noise(8192, 3);
        theirs.encrypt(&mut data, 16).unwrap();
        unlocked.mapping.decrypt(&mut data, 16).unwrap();
        assert_eq!(data, noise(8192, 3), "{options:?}");

        let error = luks.unlock(&image[..], b"wrong", &Limits::default()).unwrap_err();
        assert_eq!(error.to_string(), "the passphrase opens none of 1 keyslots");
    }
}

/// The second header is used where the first is damaged, and the newer of two good ones.
#[test]
fn either_header_of_luks2_will_do() {
    if require_tool("cryptsetup").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pbkdf = ["--type", "luks2", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    let image = format(dir.path(), &[&pbkdf[..], &SMALL].concat());
    let offset = |image: &[u8]| match Luks::read(image).unwrap() {
        Luks::V2 { offset, .. } => offset,
        _ => panic!("not version 2"),
    };
    assert_eq!(offset(&image), 0);
    for damage in [0, 7, 9, 20, 449, 4096, 5000] {
        let mut image = image.clone();
        image[damage] ^= 0x40;
        assert_eq!(offset(&image), 16384, "byte {damage}");
        decrypt(&image, b"correct horse", 4096);
        image[16384 + 5000] ^= 1;
        assert!(Luks::read(&image[..]).is_err(), "both damaged, byte {damage}");
    }
    // The second one damaged.
    let mut bad = image.clone();
    bad[16384 + 100] ^= 1;
    assert_eq!(offset(&bad), 0);
    // An interrupted update: the first header is from before it.
    fs::write(dir.path().join("image"), &image).unwrap();
    run(Command::new("cryptsetup").args(["config", "--label", "newer"]).arg(dir.path().join("image")));
    let mut mixed = fs::read(dir.path().join("image")).unwrap();
    mixed[..16384].copy_from_slice(&image[..16384]);
    match Luks::read(&mixed[..]).unwrap() {
        Luks::V2 { offset, binary, .. } => assert_eq!((offset, binary.label.as_str()), (16384, "newer")),
        _ => panic!("not version 2"),
    }
}

/// Keyslots are tried by priority; those with priority 0 are not.
#[test]
fn keyslots_and_priorities() {
    if require_tool("cryptsetup").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pbkdf = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    format(dir.path(), &[&["--type", "luks2"], &pbkdf[..], &["--luks2-keyslots-size", "1m"]].concat());
    let image = dir.path().join("image");
    fs::write(dir.path().join("second"), "second").unwrap();
    let mut command = Command::new("cryptsetup");
    command.args(["luksAddKey", "-q", "--key-file"]).arg(dir.path().join("pass")).args(pbkdf);
    run(command.args([&image, &dir.path().join("second")]));
    let open = |passphrase: &[u8]| {
        let image = fs::read(&image).unwrap();
        let luks = Luks::read(&image[..]).unwrap();
        luks.unlock(&image[..], passphrase, &Limits::default()).map(|unlocked| unlocked.keyslot)
    };
    assert_eq!(open(b"correct horse").unwrap(), "0");
    assert_eq!(open(b"second").unwrap(), "1");
    run(Command::new("cryptsetup").args(["config", "--key-slot", "1", "--priority", "ignore"]).arg(&image));
    assert!(matches!(open(b"second"), Err(UnlockError::WrongPassphrase { tried: 1, .. })));
    run(Command::new("cryptsetup")
        .args(["luksKillSlot", "-q", "--key-file"])
        .args([&dir.path().join("second"), &image])
        .arg("0"));
    assert!(matches!(open(b"second"), Err(UnlockError::NoKeyslot { .. })));
}
