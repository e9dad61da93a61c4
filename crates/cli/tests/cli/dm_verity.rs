//! `postread dm-verity`, against `veritysetup`.

use std::fs;
use std::path::Path;

use crate::common::{expect, have_tool, noise, postread, run, stderr, stdout};
use crate::schemas::{have_validator, valid};

const UUID: &str = "--uuid=00112233-4455-6677-8899-aabbccddeeff";

fn root_of(output: &std::process::Output) -> String {
    let text = stdout(output);
    text.lines().find_map(|line| line.strip_prefix("Root hash:")).expect("a root hash").trim().to_owned()
}

/// Formats `data` into `hash` and `fec`; the root hash.
fn format(at: &Path, data: &[u8]) -> String {
    fs::write(at.join("data"), data).unwrap();
    let output =
        postread(at, &["dm-verity", "format", "data", "hash", "--fec-device=fec", "--fec-roots=4", "--salt=0a"]);
    assert!(output.status.success(), "{}", stderr(&output));
    root_of(&output)
}

#[test]
fn format_and_dump_are_veritysetup_s() {
    if !have_tool("veritysetup", "--version", "format_and_dump_are_veritysetup_s") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let cases: [&[&str]; 6] = [
        &["--salt=-"],
        &["--salt=aabb", "--hash=sha512", "--fec-device=FEC", "--fec-roots=7"],
        &["--salt=aabb", "--format=0", "--hash=sha1", "--data-block-size=512"],
        &["--salt=-", "--no-superblock", "--hash-block-size=1024"],
        &["--salt=aabb", "--data-blocks=100", "--hash-offset=8192"],
        &["--salt=aabb", "--data-blocks=1"],
    ];
    for options in cases {
        fs::write(at.join("data"), noise(300 * 4096, 1)).unwrap();
        let with = |hash: &str, fec: &str| -> Vec<String> {
            let own = ["format", "data", hash, UUID].map(str::to_owned);
            own.into_iter().chain(options.iter().map(|o| o.replace("FEC", fec))).collect()
        };
        let theirs = with("hash1", "fec1");
        let theirs = run(at, "veritysetup", &theirs.iter().map(String::as_str).collect::<Vec<_>>());
        let ours = with("hash2", "fec2");
        let ours: Vec<&str> = ["dm-verity"].into_iter().chain(ours.iter().map(String::as_str)).collect();
        let ours = postread(at, &ours);
        let text = expect(&ours, 0).replace("hash2", "hash1");
        assert_eq!(text, stdout(&theirs), "{options:?}");
        for (a, b) in [("hash1", "hash2"), ("fec1", "fec2")] {
            let read = |name: &str| fs::read(at.join(name)).unwrap_or_default();
            assert!(read(a) == read(b), "{options:?}: {a}");
        }
        if !options.contains(&"--no-superblock") {
            let offset = options.iter().find(|o| o.starts_with("--hash-offset")).unwrap_or(&"--hash-offset=0");
            let dump = expect(&postread(at, &["dm-verity", "dump", "hash1", offset]), 0);
            assert_eq!(dump, stdout(&run(at, "veritysetup", &["dump", "hash1", offset])), "{options:?}");
        }
        for name in ["hash1", "hash2", "fec1", "fec2"] {
            let _ = fs::remove_file(at.join(name));
        }
    }
}

#[test]
fn verify_lists_all_bad_ranges_and_repair_mends_them() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let good = noise(600 * 4096, 1);
    let root = format(at, &good);
    let verify = |more: &[&str]| {
        let all = [&["dm-verity", "verify", "data", "hash", &root, "--data-blocks=600"], more].concat();
        postread(at, &all)
    };
    assert_eq!(expect(&verify(&[]), 0), "600 data blocks: verified against the root hash given\n");
    let mut bad = good.clone();
    for at in [0, 10 * 4096, 11 * 4096 + 9, 599 * 4096 + 4095] {
        bad[at] ^= 1;
    }
    fs::write(at.join("data"), &bad).unwrap();
    let text = expect(&verify(&[]), 1);
    let lines: Vec<&str> = text.lines().map(|line| line.split(", expected").next().unwrap()).collect();
    assert_eq!(lines, ["data block 0: CORRUPT", "data blocks 10 to 11: CORRUPT", "data block 599: CORRUPT"]);
    let output = verify(&["--fec-device=fec", "--fec-roots=4"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("all 4 bad blocks can be repaired from parity"), "{}", stderr(&output));
    let repair = |more: &[&str]| {
        let all = [&["dm-verity", "repair", "data", "hash", &root, "--data-blocks=600", "--output=out"], more].concat();
        postread(at, &all)
    };
    assert_eq!(expect(&repair(&["--fec-device=fec", "--fec-roots=4"]), 0), "4 blocks repaired\n");
    assert!(fs::read(at.join("out")).unwrap() == good);
    assert!(fs::read(at.join("data")).unwrap() == bad, "the input is left alone");
    // From another copy, which is damaged elsewhere.
    let mut copy = good.clone();
    copy[300 * 4096] ^= 1;
    copy[599 * 4096] ^= 1;
    fs::write(at.join("copy"), copy).unwrap();
    let output = repair(&["--second-copy=copy"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("data block 599: CORRUPT") && stdout(&output).contains("3 blocks repaired"));
    // Parity that would lie inside the tree.
    let inside = ["dm-verity", "format", "copy", "hash9", "--fec-device=hash9", "--fec-offset=8192"];
    assert_eq!(postread(at, &inside).status.code(), Some(2));
    // Nothing to repair from.
    assert_eq!(repair(&[]).status.code(), Some(2));
}

/// Signatures of root hashes are OpenSSL's in both directions: those that `veritysetup --root-hash-signature` takes.
#[test]
fn signatures_of_root_hashes() {
    if !have_tool("openssl", "version", "signatures_of_root_hashes") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let root = format(at, &noise(100 * 4096, 1));
    fs::write(at.join("root"), &root).unwrap();
    let openssl = |line: &str| expect(&run(at, "openssl", &line.split(' ').collect::<Vec<_>>()), 0);
    let verify = |root: &str, more: &[&str]| {
        let args = ["dm-verity", "verify", "data", "hash", root, "--data-blocks=100", "--root-hash-signature=sig"];
        postread(at, &[&args[..], more].concat())
    };
    for kind in ["rsa:2048", "ec -pkeyopt ec_paramgen_curve:P-256"] {
        openssl(&format!("req -x509 -nodes -subj /CN=t -days 2 -newkey {kind} -keyout key.pem -out cert.pem"));
        openssl(&format!("req -x509 -nodes -subj /CN=u -days 2 -newkey {kind} -keyout other.pem -out othercert.pem"));
        let signed = postread(at, &["dm-verity", "sign", &root, "sig", "--key=key.pem", "--cert=cert.pem"]);
        assert_eq!(expect(&signed, 0), format!("signed root hash {root} as CN=t\n"));
        openssl(
            "smime -verify -binary -inform der -in sig -content root -nointern -noverify -certfile cert.pem -out seen",
        );
        expect(&verify(&root, &["--cert=cert.pem"]), 0);
        openssl("smime -sign -binary -nocerts -noattr -in root -inkey key.pem -signer cert.pem -outform der -out sig");
        expect(&verify(&root, &["--cert=othercert.pem", "--cert=cert.pem"]), 0);
        let missing = verify(&root, &["--cert=othercert.pem"]);
        expect(&missing, 3);
        assert!(stderr(&missing).contains("sig: no certificate given is that of a signer"), "{}", stderr(&missing));
        let other = verify(&"ab".repeat(32), &["--cert=cert.pem"]);
        expect(&other, 1);
        assert!(stderr(&other).contains("is not one of root hash abab"), "{}", stderr(&other));
    }
    fs::write(at.join("sig"), "x").unwrap();
    expect(&verify(&root, &["--cert=cert.pem"]), 2);
    expect(&verify(&root, &[]), 2);
    expect(&postread(at, &["dm-verity", "sign", "xy", "sig", "--key=key.pem", "--cert=cert.pem"]), 2);
    expect(&postread(at, &["dm-verity", "sign", "", "sig", "--key=key.pem", "--cert=cert.pem"]), 2);
    expect(&postread(at, &["dm-verity", "sign", &root, "sig", "--key=key.pem", "--cert=othercert.pem"]), 3);
    expect(&postread(at, &["dm-verity", "sign", &root, "key.pem", "--key=key.pem", "--cert=cert.pem"]), 2);
}

/// Bad blocks are named by the files that they belong to, as `debugfs` finds them.
#[test]
fn bad_blocks_are_named_by_their_files() {
    let (Some(mke2fs), Some(debugfs)) =
        (postread_tests::require_tool("mke2fs"), postread_tests::require_tool("debugfs"))
    else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::create_dir_all(at.join("tree/sub")).unwrap();
    fs::write(at.join("tree/sub/file"), noise(100_000, 1)).unwrap();
    fs::write(at.join("tree/other"), noise(100_000, 2)).unwrap();
    let mut make = std::process::Command::new(mke2fs);
    postread_tests::run(make.current_dir(at).args([
        "-q",
        "-F",
        "-b",
        "4096",
        "-O",
        "^has_journal",
        "-d",
        "tree",
        "fs",
        "4M",
    ]));
    let good = fs::read(at.join("fs")).unwrap();
    let root = format(at, &good);
    let block = |path: &str, index: usize| -> usize {
        let text = run(at, debugfs.to_str().unwrap(), &["-R", &format!("bmap {path} {index}"), "fs"]);
        expect(&text, 0).trim().parse().unwrap()
    };
    // Two neighbours of one file, one of another, an inode table, and free space.
    let places = [block("/sub/file", 3), block("/sub/file", 4), block("/other", 20), 1000];
    let mut bad = good.clone();
    places.iter().for_each(|place| bad[place * 4096 + 5] ^= 1);
    fs::write(at.join("data"), &bad).unwrap();
    let verify = |more: &[&str]| {
        let args = ["dm-verity", "verify", "data", "hash", &root, "--data-blocks=1024", "--files"];
        postread(at, &[&args[..], more].concat())
    };
    let text = expect(&verify(&[]), 1);
    for line in [
        "file /sub/file: bytes 12288 to 20479\n",
        "file /other: bytes 81920 to 86015\n",
        "4096 bytes belong to no file: ",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let text = expect(&verify(&["--fec-device=fec", "--fec-roots=4"]), 1);
    assert!(text.contains("file /other: bytes 81920 to 86015; can be repaired"), "{text}");
    if have_validator("bad_blocks_are_named_by_their_files") {
        valid(&verify(&["--fec-device=fec", "--fec-roots=4", "--json"]).stdout);
    }
    // More than can be repaired, in the blocks of one group.
    let mut worse = bad.clone();
    let other = block("/other", 20);
    (0..12).for_each(|n| worse[(other + n * 5) % 1024 * 4096..][..4096].fill(0x11));
    fs::write(at.join("data"), worse).unwrap();
    let output = verify(&["--fec-device=fec", "--fec-roots=4"]);
    expect(&output, 1);
    let text = stdout(&output);
    assert!(text.contains("cannot be repaired"), "{text}");
    // Without a file system there, that is said, and the blocks are listed all the same.
    fs::write(at.join("data"), noise(4 << 20, 7)).unwrap();
    let output = verify(&[]);
    expect(&output, 1);
    assert!(stderr(&output).contains("data: no file is named: "), "{}", stderr(&output));
    assert!(stdout(&output).contains("CORRUPT"));
}

/// Repair in place, killed at each call that writes, with the blocks that it was about to write torn: the next run has the
/// original back, also where parity alone has not.
#[test]
fn a_repair_in_place_that_was_killed_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let good = noise(600 * 4096, 1);
    let root = format(at, &good);
    let tree = fs::read(at.join("hash")).unwrap();
    // More blocks than parity has erasures for, in which few bytes are wrong, and a hash block.
    let bad: Vec<usize> = (0..9).map(|row| row * 3).collect();
    let damage = || {
        let mut data = good.clone();
        bad.iter().for_each(|block| data[block * 4096 + block * 10] ^= 1);
        fs::write(at.join("data"), data).unwrap();
        let mut hash = tree.clone();
        hash[4096 * 3 + 7] ^= 1;
        fs::write(at.join("hash"), hash).unwrap();
    };
    let args = ["dm-verity", "repair", "data", "hash", &root, "--data-blocks=600", "--fec-device=fec", "--fec-roots=4"];
    let args = [&args[..], &["--in-place=journal"]].concat();
    let whole = || fs::read(at.join("data")).unwrap() == good && fs::read(at.join("hash")).unwrap() == tree;
    damage();
    assert_eq!(expect(&postread(at, &args), 0), "10 blocks repaired\n");
    assert!(whole() && !at.join("journal").exists());
    // With nothing to do.
    assert_eq!(expect(&postread(at, &args), 0), "0 blocks repaired\n");

    let tear = |count: usize| {
        let mut data = fs::read(at.join("data")).unwrap();
        bad.iter().take(count).for_each(|block| data[block * 4096..][..4096].fill(0xa5));
        fs::write(at.join("data"), data).unwrap();
    };
    // So much is too much for parity.
    damage();
    tear(5);
    expect(&postread(at, &args), 1);
    assert!(!at.join("journal").exists());
    damage();
    let Some(strace) = postread_tests::require_tool("strace") else { return };
    let mut killed = 0;
    for call in ["write", "pwrite64", "fsync", "rename", "unlink"] {
        for n in 1.. {
            damage();
            let _ = fs::remove_file(at.join("journal"));
            let inject = format!("inject={call}:signal=SIGKILL:when={n}");
            let traced = ["-f", "-qqq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &inject];
            let program = [&traced[..], &[env!("CARGO_BIN_EXE_postread")], &args].concat();
            let output = run(at, strace.to_str().unwrap(), &program);
            if output.status.success() {
                assert!(whole(), "{call} {n}");
                break;
            }
            killed += 1;
            // From the first block on everything is in the journal.
            if call == "pwrite64" {
                tear(5);
            }
            let output = postread(at, &args);
            assert!(output.status.success(), "{call} {n}: {}{}", stdout(&output), stderr(&output));
            assert!(whole() && !at.join("journal").exists() && !at.join("journal.new").exists(), "{call} {n}");
        }
    }
    assert!(killed > 12, "{killed}");
    // A second run is killed as it writes its own journal: the first one's still holds what was torn.
    damage();
    for call in ["pwrite64:signal=SIGKILL:when=3", "fsync:signal=SIGKILL:when=1", "rename:signal=SIGKILL:when=1"] {
        let name = call.split(':').next().unwrap();
        let inject = format!("inject={call}");
        let traced = ["-f", "-qqq", "-o", "/dev/null", "-e", &format!("trace={name}"), "-e", &inject];
        let program = [&traced[..], &[env!("CARGO_BIN_EXE_postread")], &args].concat();
        assert!(!run(at, strace.to_str().unwrap(), &program).status.success());
        tear(5);
    }
    expect(&postread(at, &args), 0);
    assert!(whole());
    // What is no journal, or another device's, is left alone.
    damage();
    fs::write(at.join("journal"), "my notes").unwrap();
    let output = postread(at, &args);
    expect(&output, 2);
    assert!(stderr(&output).contains("journal: it is not a repair journal"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(at.join("journal")).unwrap(), "my notes");
    let both = [&args[..], &["--output=x"]].concat();
    expect(&postread(at, &both), 2);
    expect(&postread(at, &args[..args.len() - 1]), 2);
    let own = [&args[..args.len() - 1], &["--in-place=data"]].concat();
    expect(&postread(at, &own), 2);
}

#[test]
fn a_bad_tree_a_wrong_root_and_a_short_device() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let good = noise(600 * 4096, 1);
    let root = format(at, &good);
    let verify =
        |root: &str, more: &[&str]| postread(at, &[&["dm-verity", "verify", "data", "hash", root], more].concat());
    let output = verify(&"00".repeat(32), &["--data-blocks=600"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nothing can be verified"));
    assert_eq!(verify("00", &[]).status.code(), Some(2));
    assert_eq!(verify("zz", &[]).status.code(), Some(2));
    // The size comes from the superblock: a smaller one passes, but not without a warning.
    let output = verify(&root, &[]);
    assert!(output.status.success() && stderr(&output).contains("which nothing authenticates"));
    // A hash block.
    let hash = fs::read(at.join("hash")).unwrap();
    let mut bad = hash.clone();
    bad[4096 * 3 + 1] ^= 1;
    fs::write(at.join("hash"), &bad).unwrap();
    let text = expect(&verify(&root, &["--data-blocks=600"]), 1);
    assert!(text.contains("hash block 1 of level 0: CORRUPT"), "{text}");
    assert!(text.contains("data blocks 128 to 255: cannot be verified, the hash block above is bad"), "{text}");
    let fec = ["--fec-device=fec", "--fec-roots=4", "--output=out", "--output-hash=out-hash", "--data-blocks=600"];
    let output = postread(at, &[&["dm-verity", "repair", "data", "hash", &root], &fec[..]].concat());
    assert_eq!(expect(&output, 0), "1 block repaired\n");
    assert!(fs::read(at.join("out-hash")).unwrap() == hash);
    // A device that ends early cannot be read, and is no match.
    fs::write(at.join("hash"), &hash).unwrap();
    fs::write(at.join("data"), &good[..500 * 4096]).unwrap();
    let output = verify(&root, &["--data-blocks=600"]);
    assert!(stdout(&output).contains("data blocks 500 to 599: cannot be read"), "{}", stdout(&output));
    // Options that contradict the superblock; a superblock that is none.
    assert!(stderr(&verify(&root, &["--hash=sha1"])).contains("--hash is not what the superblock says: sha256"));
    fs::write(at.join("hash"), [0; 8192]).unwrap();
    assert_eq!(verify(&root, &[]).status.code(), Some(2));
}

#[test]
fn reports_are_valid() {
    if !have_validator("reports_are_valid") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let mut data = noise(600 * 4096, 1);
    let root = format(at, &data);
    let tail = ["data", "hash", &root, "--json", "--fec-device=fec", "--fec-roots=4"];
    valid(&postread(at, &[&["dm-verity", "verify"], &tail[..]].concat()).stdout);
    data[..40_000].fill(0);
    fs::write(at.join("data"), data).unwrap();
    valid(&postread(at, &[&["dm-verity", "verify"], &tail[..]].concat()).stdout);
    valid(&postread(at, &[&["dm-verity", "repair", "--output=out"], &tail[..]].concat()).stdout);
}
