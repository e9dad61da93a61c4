//! Block layers and what is stacked of them: GPT, LUKS2, LVM2, ext4, fscrypt and fs-verity in one disk, dm-crypt,
//! dm-verity, Android's super partition. A kernel or the standard tools made each.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use sha2::{Digest, Sha256};

use postread_tests::{noise, require_tool, super_image, unpack_image};

use crate::common::*;

/// An image of `tests/images/stacked`, unpacked into `dir`.
fn stacked(dir: &Path, name: &str) {
    let image = unpack_image(&repository().join(format!("tests/images/stacked/{name}.img.zst")));
    fs::copy(image.path(), dir.join(name)).unwrap();
    fs::write(dir.join("pass"), "stacked\n").unwrap();
}

fn stacked_text(name: &str) -> String {
    fs::read_to_string(repository().join("tests/images/stacked").join(name)).unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// A file of each layer and the key of each, read by somebody without privileges: what the kernel wrote there.
#[test]
fn a_stack_of_six_layers_is_read_without_privileges() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    stacked(at, "disk");
    let key = key("key64.bin");
    fs::copy(&key, at.join("key")).unwrap();
    fs::set_permissions(at.join("disk"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(at, fs::Permissions::from_mode(0o755)).unwrap();
    let program = at.join("program");
    fs::copy(env!("CARGO_BIN_EXE_postread"), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let options = ["--part=1", "--passphrase-file=pass", "--volume=root", "--key=key"];
    let run = |args: &[&str]| -> Output {
        let mut command = match rustix::process::geteuid().is_root() {
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
                command
            }
            false => Command::new(&program),
        };
        command.current_dir(at).args(args).args(options).output().unwrap()
    };
    let listed = stacked_text("stacked.sha256");
    assert_eq!(listed.lines().count(), 14);
    for line in listed.lines() {
        let (digest, path) = line.split_once("  ").unwrap();
        let output = run(&["cat", "disk", &format!("/{path}")]);
        assert_eq!(output.status.code(), Some(0), "{path}: {}", stderr(&output));
        assert_eq!(sha256(&output.stdout), digest, "{path}");
    }
    fs::write(at.join("list"), stacked_text("stacked.digests")).unwrap();
    let text = expect(&run(&["verify", "disk", "--digests=list"]), 0);
    assert!(text.contains("2 of 2 files are good\n") && text.contains("/v/f65537: verified, "), "{text}");
    let text = expect(&run(&["inspect", "disk"]), 0);
    for part in ["partition table: gpt", "LUKS2: aes-xts-plain64", "keyslot 0", "volume group vg", "file system: ext4"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    fs::create_dir(at.join("out")).unwrap();
    fs::set_permissions(at.join("out"), fs::Permissions::from_mode(0o777)).unwrap();
    expect(&run(&["extract", "disk", "/enc", "-C", "out/tree"]), 0);
    if rustix::process::geteuid().is_root() {
        assert_eq!(fs::read_to_string(at.join("out/tree/sub/deep/leaf")).unwrap(), "leaf\n");
    }
}

/// Errors name what is missing, and the option that provides it.
#[test]
fn a_missing_choice_or_key_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    stacked(at, "disk");
    fs::write(at.join("wrong"), "wrong").unwrap();
    let fails = |status, args: &[&str], wanted: &str| {
        let output = postread(at, &[&["ls", "disk", "/"], args].concat());
        expect(&output, status);
        assert!(stderr(&output).contains(wanted), "{args:?}: {}", stderr(&output));
    };
    let (part, pass) = ("--part=1", "--passphrase-file=pass");
    fails(2, &[], "it holds partitions: 1 (luks, 12 MiB \"system\"); choose one with --part");
    fails(3, &[part], "it is a locked LUKS volume; give its passphrase with --passphrase-file");
    fails(3, &[part, "--passphrase-file=wrong"], "the passphrase opens none of 1 keyslots");
    let volumes = "swap (swap, 256 KiB), root (ext4, 8 MiB)";
    fails(2, &[part, pass], &format!("it holds logical volumes: {volumes}; choose one with --volume"));
    fails(2, &[part, pass, "--volume=no"], &format!("there is no logical volume \"no\": there are {volumes}"));
    fails(2, &[part, pass, "--volume=other/root"], "there is no logical volume \"other/root\"");
    fails(2, &[part, pass, "--volume=swap"], "it holds swap space, not ext4");
    expect(&postread(at, &["ls", "disk", "/v", part, pass, "--volume=vg/root"]), 0);
    // Each is listed as far as it goes.
    let text = expect(&postread(at, &["inspect", "disk", part]), 0);
    assert!(text.contains("LUKS2: aes-xts-plain64") && text.ends_with(", locked\n"), "{text}");
    let text = expect(&postread(at, &["inspect", "disk", part, pass]), 0);
    assert!(text.ends_with("  volume swap: 262144 bytes, swap\n  volume root: 8388608 bytes, ext4\n"), "{text}");
}

/// Damage and truncation of each layer: an error, or the copy that the format keeps.
#[test]
fn damaged_layers_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    stacked(at, "disk");
    let good = fs::read(at.join("disk")).unwrap();
    let options = ["--part=1", "--passphrase-file=pass", "--volume=root"];
    let cat = |bytes: &[u8]| {
        fs::write(at.join("changed"), bytes).unwrap();
        postread(at, &[&["cat", "changed", "/v/f4097"][..], &options].concat())
    };
    let wanted = cat(&good).stdout;
    assert_eq!(wanted.len(), 4097);
    const LUKS: usize = 1 << 20;
    // The first header, of which there is a second; both of them.
    let mut changed = good.clone();
    changed[LUKS + 4096..LUKS + 8192].fill(0);
    assert!(cat(&changed).stdout == wanted);
    changed[LUKS + 16384 + 4096..LUKS + 16384 + 8192].fill(0);
    expect(&cat(&changed), 2);
    // Key material.
    let mut changed = good.clone();
    changed[LUKS + 32768..LUKS + 65536].fill(0x55);
    expect(&cat(&changed), 3);
    // LVM's label and metadata, as noise under the cipher.
    let luks = fs::read_to_string(at.join("pass")).unwrap();
    assert_eq!(luks, "stacked\n");
    let dump = expect(&postread(at, &["luks", "dump", "disk"]), 2);
    assert_eq!(dump, "");
    for len in [LUKS, LUKS + 512, LUKS + 20_000, LUKS + 100_000, good.len() / 2] {
        let output = cat(&good[..len]);
        assert!(output.status.code().is_some_and(|code| (1..=4).contains(&code)), "{len}: {}", stderr(&output));
        assert!(output.stdout.is_empty() || wanted.starts_with(&output.stdout), "{len}");
    }
    for place in [40_000, 60_000, 300_000, 560_000, 600_000, 1_000_000, 3_000_000] {
        let mut changed = good.clone();
        changed[LUKS + place..LUKS + place + 512].iter_mut().for_each(|byte| *byte ^= 0x81);
        let output = cat(&changed);
        assert!(output.status.code().is_some_and(|code| code <= 4), "{place}: {}", stderr(&output));
    }
}

/// A LUKS header in a file of its own.
#[test]
fn a_luks_header_may_be_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    stacked(at, "disk");
    let mut disk = fs::read(at.join("disk")).unwrap();
    let header = disk[1 << 20..(1 << 20) + (1 << 20)].to_vec();
    fs::write(at.join("header"), &header).unwrap();
    disk[1 << 20..(1 << 20) + 32768].fill(0);
    fs::write(at.join("bare"), disk).unwrap();
    let options = ["--part=1", "--passphrase-file=pass", "--volume=root"];
    expect(&postread(at, &[&["ls", "bare", "/v"][..], &options].concat()), 2);
    let text = expect(&postread(at, &[&["ls", "bare", "/v", "--header=header"][..], &options].concat()), 0);
    assert!(text.contains("f65537"), "{text}");
    fs::write(at.join("header"), "none").unwrap();
    let output = postread(at, &[&["ls", "bare", "/v", "--header=header"][..], &options].concat());
    expect(&output, 2);
    assert!(stderr(&output).contains("not a LUKS device"), "{}", stderr(&output));
}

#[test]
fn a_plain_dm_crypt_mapping() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    stacked(at, "plain");
    let key = key("key64.bin");
    let cat = |spec: &str, keys: &[&str]| {
        let keys: Vec<String> = keys.iter().map(|key| format!("--key={key}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        postread(at, &[&["cat", "plain", "/file", "--dm-crypt", spec][..], &keys].concat())
    };
    let spec = "aes-xts-plain64,sector_size:4096";
    assert_eq!(expect(&cat(spec, &[&key]), 0), "under dm-crypt\n");
    // The first key that the cipher takes.
    fs::write(at.join("short"), noise(24, 1)).unwrap();
    assert_eq!(expect(&cat(spec, &["short", &key]), 0), "under dm-crypt\n");
    let fails = |status, spec: &str, keys: &[&str], wanted: &str| {
        let output = cat(spec, keys);
        expect(&output, status);
        assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
    };
    fails(3, spec, &[], "the dm-crypt mapping needs a raw key");
    fails(3, spec, &["short"], "24");
    fails(2, "aes-xts-plain64", &[&key], "not an ext4 file system");
    fails(2, "aes-xts-plain64,sector_size:4097", &[&key], "bad parameter \"sector_size:4097\"");
    fails(2, "rot13", &[&key], "rot13");
}

/// An image under dm-verity, made by `veritysetup`, with the tree in another file and after the data: every block is
/// checked, a bad block does not affect others, and none of its bytes is returned.
#[test]
fn every_block_is_checked_against_a_root_hash() {
    let (Some(mke2fs), Some(veritysetup)) = (require_tool("mke2fs"), require_tool("veritysetup")) else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::create_dir(at.join("tree")).unwrap();
    let contents = noise(1 << 20, 3);
    fs::write(at.join("tree/file"), &contents).unwrap();
    fs::write(at.join("tree/other"), noise(5000, 4)).unwrap();
    let mut command = Command::new(mke2fs);
    postread_tests::run(command.current_dir(at).args([
        "-q",
        "-F",
        "-b",
        "4096",
        "-O",
        "^has_journal",
        "-d",
        "tree",
        "image",
        "4M",
    ]));
    let format = |args: &[&str]| {
        let output = Command::new(&veritysetup).current_dir(at).arg("format").args(args).output().unwrap();
        let text = expect(&output, 0);
        let line = text.lines().find(|line| line.starts_with("Root hash:")).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    let root = format(&["image", "hash"]);
    let same = fs::read(at.join("image")).unwrap();
    fs::write(at.join("both"), &same).unwrap();
    let other = format(&[
        "--hash=sha512",
        "--hash-block-size=1024",
        "--hash-offset=4194304",
        "--data-blocks=1024",
        "both",
        "both",
    ]);
    let elsewhere = [format!("--root-hash={root}"), "--hash-device=hash".to_owned()];
    let elsewhere: Vec<&str> = elsewhere.iter().map(String::as_str).collect();
    let own = [format!("--root-hash={other}"), "--hash-offset=4M".to_owned(), "--data-blocks=1024".to_owned()];
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let cat = |image: &str, path: &str, options: &[&str]| postread(at, &[&["cat", image, path][..], options].concat());
    let output = cat("image", "/file", &elsewhere);
    assert!(output.status.success() && output.stdout == contents, "{}", stderr(&output));
    assert!(stderr(&output).contains("the size under dm-verity comes from the superblock"), "{}", stderr(&output));
    let output = cat("both", "/file", &own);
    assert!(output.status.success() && output.stdout == contents && output.stderr.is_empty(), "{}", stderr(&output));
    let text = expect(&postread(at, &[&["inspect", "both"][..], &own].concat()), 0);
    assert!(text.contains(&format!("dm-verity: sha512, 1024 blocks of 4096 bytes, root hash {other}")), "{text}");

    // A block of the file.
    let place = same.windows(4096).position(|block| block == &contents[40960..45056]).unwrap();
    for (image, options) in [("image", &elsewhere), ("both", &own)] {
        let good = fs::read(at.join(image)).unwrap();
        let mut changed = good.clone();
        changed[place + 77] ^= 4;
        fs::write(at.join(image), &changed).unwrap();
        let output = cat(image, "/file", options);
        expect(&Output { stdout: Vec::new(), ..output.clone() }, 1);
        assert!(output.stdout == contents[..40960], "{} bytes", output.stdout.len());
        let message = format!("data block at {place} is corrupt: expected ");
        assert!(stderr(&output).contains(&message), "{}", stderr(&output));
        let rest = cat(image, "/file", &[options, &["--range=45056.."][..]].concat());
        assert!(rest.status.success() && rest.stdout == contents[45056..], "{}", stderr(&rest));
        // Another file does not suffer; the superblock of the file system does.
        assert!(cat(image, "/other", options).status.success());
        let mut changed = good.clone();
        changed[1024] ^= 1;
        fs::write(at.join(image), &changed).unwrap();
        expect(&cat(image, "/other", options), 1);
        fs::write(at.join(image), &good).unwrap();
    }
    // The tree: its top is read first.
    let tree = fs::read(at.join("hash")).unwrap();
    for (byte, message) in
        [(4096, "tree block at 4096 (level 1) is corrupt"), (8192 + 5, "tree block at 8192 (level 0)")]
    {
        let mut changed = tree.clone();
        changed[byte] ^= 1;
        fs::write(at.join("hash"), changed).unwrap();
        let output = cat("image", "/file", &elsewhere);
        expect(&output, 1);
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    }
    // The superblock: fewer blocks than there are, more, none.
    let mut changed = tree.clone();
    changed[72..80].copy_from_slice(&1000u64.to_le_bytes());
    fs::write(at.join("hash"), &changed).unwrap();
    let output = cat("image", "/file", &elsewhere);
    assert!(output.status.success() && output.stdout == contents);
    assert!(
        stderr(&output).contains("only the first 1000 of its 1024 blocks are under dm-verity"),
        "{}",
        stderr(&output)
    );
    changed[72..80].copy_from_slice(&1025u64.to_le_bytes());
    fs::write(at.join("hash"), &changed).unwrap();
    let output = cat("image", "/file", &elsewhere);
    expect(&output, 2);
    assert!(
        stderr(&output).contains("dm-verity covers 1025 blocks of 4096 bytes, and the device has 1024"),
        "{output:?}"
    );
    fs::write(at.join("hash"), &tree[..300]).unwrap();
    expect(&cat("image", "/file", &elsewhere), 2);
    fs::write(at.join("hash"), &tree).unwrap();
    // Root hashes that cannot be.
    let hash = "--hash-device=hash";
    let zeros = format!("--root-hash={}", "0".repeat(64));
    expect(&cat("image", "/file", &[&zeros, hash]), 1);
    expect(&cat("image", "/file", &["--root-hash=00", hash]), 2);
    expect(&cat("image", "/file", &["--root-hash=xy", hash]), 2);
    expect(&cat("image", "/file", &[hash]), 2);
    expect(&cat("image", "/file", &[&zeros, "--hash-device=none"]), 4);
}

/// A file system in a logical partition of two pieces.
#[test]
fn a_partition_of_android_s_super_partition() {
    let Some(mke2fs) = require_tool("mke2fs") else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::create_dir(at.join("tree")).unwrap();
    let contents = noise(100_000, 5);
    fs::write(at.join("tree/file"), &contents).unwrap();
    let mut command = Command::new(mke2fs);
    postread_tests::run(command.current_dir(at).args(["-q", "-F", "-b", "1024", "-d", "tree", "fs", "512K"]));
    let sectors = super_image::DATA as u64 / 512;
    // 512 KiB in two pieces, the second one first.
    let extents = [(512, 0, sectors + 512, 0), (512, 0, sectors, 0), (8, 0, sectors + 1024, 0)];
    let mut image = super_image::image(&extents, &[("system_a", 0, 2), ("system_b", 0, 0), ("vendor_a", 2, 1)]);
    let fs_ = fs::read(at.join("fs")).unwrap();
    image[super_image::DATA + 262_144..][..262_144].copy_from_slice(&fs_[..262_144]);
    image[super_image::DATA..][..262_144].copy_from_slice(&fs_[262_144..]);
    fs::write(at.join("super"), &image).unwrap();
    let output = postread(at, &["cat", "super", "/file", "--volume=system_a"]);
    assert!(output.status.success() && output.stdout == contents, "{}", stderr(&output));
    let output = postread(at, &["ls", "super"]);
    expect(&output, 2);
    let list =
        "it holds logical volumes: system_a (ext4, 512 KiB), vendor_a (unknown, 4 KiB); choose one with --volume";
    assert!(stderr(&output).contains(list), "{}", stderr(&output));
    let text = expect(&postread(at, &["inspect", "super"]), 0);
    assert!(text.contains("Android super partition\n  volume system_a: 524288 bytes, ext4\n"), "{text}");
    image.truncate(super_image::DATA + 300_000);
    fs::write(at.join("super"), &image).unwrap();
    let output = postread(at, &["ls", "super", "/", "--volume=system_a"]);
    expect(&output, 2);
    assert!(stderr(&output).contains("an extent ends past"), "{}", stderr(&output));
}
