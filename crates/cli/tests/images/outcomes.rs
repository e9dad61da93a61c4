//! What the exit status tells where several things go wrong at once, and what is refused before anything is read.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use crate::common::*;

/// The program with a standard output that takes nothing.
fn into_full(dir: &Path, args: &[&str]) -> Output {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_postread"));
    command.current_dir(dir).args(args).stdout(full).output().unwrap()
}

#[test]
fn a_path_that_is_not_there_hides_no_bad_file() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity");
    let paths = ["verify", &image, "/nope", "/v/f65537", "/nope2"];
    let output = postread(dir.path(), &paths);
    assert!(expect(&output, 2).contains("/v/f65537: self-consistent"), "{output:?}");
    assert!(stderr(&output).contains("/nope: ") && stderr(&output).contains("/nope2: "), "{output:?}");
    flip(&dir.path().join(&image), "/v/f65537", 8192, None);
    assert!(expect(&postread(dir.path(), &paths), 1).contains("/v/f65537: BAD"));
    expect(&postread(dir.path(), &["verify", &image, "/nope"]), 2);
}

/// The output fails, and a file is bad: that the file is bad is what counts.
#[test]
fn a_failing_output_hides_no_bad_file() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity");
    let commands: [&[&str]; 6] = [
        &["verify", &image],
        &["verify", &image, "--json"],
        &["extract", &image, "/v", "-C", "out"],
        &["extract", &image, "/v", "-C", "out-json", "--json"],
        &["check", "list"],
        &["check", "list", "--json"],
    ];
    fs::write(dir.path().join("file"), "good").unwrap();
    let digest = expect(&postread(dir.path(), &["digest", "file"]), 0);
    fs::write(dir.path().join("list"), digest).unwrap();
    for command in commands {
        let output = into_full(dir.path(), command);
        assert_eq!(output.status.code(), Some(4), "{command:?} {output:?}");
    }
    fs::remove_dir_all(dir.path().join("out")).unwrap();
    fs::remove_dir_all(dir.path().join("out-json")).unwrap();
    flip(&dir.path().join(&image), "/v/f65537", 8192, None);
    fs::write(dir.path().join("file"), "evil").unwrap();
    for command in commands {
        let output = into_full(dir.path(), command);
        assert_eq!(output.status.code(), Some(1), "{command:?} {output:?}");
        assert!(stderr(&output).contains("output: "), "{command:?} {output:?}");
    }
}

#[test]
fn numbers_without_meaning_are_usage_errors() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity");
    let cat = ["cat", &image, "/v/f65537", "--range"];
    assert_eq!(expect(&postread(dir.path(), &[&cat[..], &["65536..70000"]].concat()), 0).len(), 1);
    for range in ["65537..", "65538.."] {
        let output = postread(dir.path(), &[&cat[..], &[range]].concat());
        expect(&output, 2);
        assert!(stderr(&output).contains("65537 bytes"), "{output:?}");
    }
    for jobs in ["0", "1025", "18446744073709551615", "-1", "x"] {
        let jobs = format!("--jobs={jobs}");
        expect(&postread(dir.path(), &["verify", &image, &jobs]), 2);
        expect(&postread(dir.path(), &["extract", &image, "-C", "out", &jobs]), 2);
    }
    for n in ["0", "2049", "18446744073709551615"] {
        let n = format!("--max-active={n}");
        expect(&postread(dir.path(), &["verify", &image, "--queue=bound", &n]), 2);
    }
    expect(&postread(dir.path(), &["verify", &image, "--queue=bound", "--max-active=2048"]), 0);
    assert!(!dir.path().join("out").exists());
}

/// A pipe without a writer: opening one as usual would wait for ever.
#[test]
fn pipes_and_devices_are_no_images() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for target in ["pipe", "/dev/null", "."] {
        let commands: [&[&str]; 5] = [
            &["ls", target],
            &["inspect", target],
            &["verify", target],
            &["cat", target, "/f"],
            &["extract", target, "-C", "out"],
        ];
        for command in commands {
            let output = postread(dir.path(), command);
            expect(&output, 2);
            assert!(stderr(&output).contains("not an image"), "{command:?} {output:?}");
        }
    }
}

#[test]
fn messages_name_the_root() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mke2fs) = postread_tests::require_tool("mke2fs") else { return };
    let mut command = Command::new(mke2fs);
    command.current_dir(&dir).args(["-q", "-t", "ext4", "-O", "metadata_csum", "image", "4M"]);
    postread_tests::run(&mut command);
    flip(&dir.path().join("image"), "/", 40, None);
    for command in [&["extract", "image", "-C", "out2"][..], &["verify", "image"]] {
        let output = postread(dir.path(), command);
        expect(&output, 1);
        assert!(stderr(&output).contains("/: corrupt directory block"), "{output:?}");
    }
}

/// As few threads as a user may have: either nothing is done and that is told, or those that there are do it all; in
/// the end the one that started them, alone. One more than the readers need is one that works.
#[test]
fn users_with_few_threads() {
    use std::os::unix::fs::PermissionsExt;
    // Limits bind no root, and count the user's other processes: an ordinary user that has none.
    const USER: &str = "54321";
    if postread_tests::require_root().is_none() {
        return;
    }
    let (Some(setpriv), Some(_)) = (postread_tests::require_tool("setpriv"), postread_tests::require_tool("taskset"))
    else {
        return;
    };
    // On one CPU, so that as many threads are enough on any machine.
    let cpu = postread_sys::affinity::current().unwrap().iter().next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity-enc");
    fs::copy(env!("CARGO_BIN_EXE_postread"), dir.path().join("postread")).unwrap();
    fs::copy(key("key64.bin"), dir.path().join("key")).unwrap();
    for open in ["", "postread", "key", &image] {
        fs::set_permissions(dir.path().join(open), fs::Permissions::from_mode(0o777)).unwrap();
    }
    expect(&postread(dir.path(), &["extract", "--ciphertext", &image, "/enc", "-C", "saved"]), 0);
    let run = |limit: u32, args: &str| {
        // In a shell of the user's own, so that the limit is not this process's.
        let script = format!("ulimit -u {limit}; exec timeout 120 taskset -c {cpu} ./postread {args} --key key");
        let ids = [format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".to_owned()];
        let mut command = std::process::Command::new(&setpriv);
        command.current_dir(&dir).args(ids).args(["bash", "-c", &script]).output().unwrap()
    };
    for args in [
        &format!("verify {image} /enc --jobs=8"),
        &format!("verify {image} /enc --jobs=8 --queue=unbound"),
        &format!("extract {image} /enc -C out --jobs=8"),
        "extract --from-ciphertext saved -C out --jobs=8",
    ] {
        let enough = run(200, args);
        let whole = expect(&enough, 0);
        let _ = fs::remove_dir_all(dir.path().join("out"));
        let mut done = Vec::new();
        for limit in 2..=20 {
            let output = run(limit, args);
            let told = stderr(&output);
            assert!(!told.contains("panicked"), "{args}, {limit}: {told}");
            match output.status.code() {
                Some(0) => {
                    assert_eq!(String::from_utf8_lossy(&output.stdout), whole, "{args}, {limit}");
                    if args.starts_with("extract") {
                        assert_eq!(manifest(&dir.path().join("out")), text_of("tree.manifest"), "{args}, {limit}");
                    }
                    done.push(limit);
                }
                // The shell has no process left, or the readers no thread.
                Some(4 | 254) => assert!(!told.is_empty(), "{args}, {limit}"),
                code => panic!("{args}, {limit}: {code:?} {told}"),
            }
            let _ = fs::remove_dir_all(dir.path().join("out"));
        }
        // From the first that is enough on, all are.
        assert!(!done.is_empty() && done.iter().copied().eq(done[0]..=20), "{args}: {done:?}");
        println!("{args}: from {} threads on", done[0]);
    }
}

/// What a target is instead of an ext4 image, and what to do about it; and that an image is cut off.
#[test]
fn what_is_not_ext4_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity");
    let whole = fs::read(dir.path().join(&image)).unwrap();
    // The magic number, where it is, what the message calls it, and what it says to do.
    let table: [(&[u8], usize, &str, &str); 24] = [
        (b"\x1f\x8b\x08", 0, "gzip", "gunzip"),
        (b"BZh9", 0, "bzip2", "bunzip2"),
        (b"\xfd7zXZ\0", 0, "xz", "unxz"),
        (b"\x28\xb5\x2f\xfd", 0, "zstd", "unzstd"),
        (b"\x04\x22\x4d\x18", 0, "LZ4", "unlz4"),
        (b"PK\x03\x04", 0, "ZIP", "unzip"),
        (b"7z\xbc\xaf\x27\x1c", 0, "7-Zip", "7z"),
        (b"QFI\xfb", 0, "qcow2", "qemu-img"),
        (b"KDMV", 0, "VMDK", "qemu-img"),
        (b"vhdxfile", 0, "VHDX", "qemu-img"),
        (b"conectix", 0, "VHD", "qemu-img"),
        (b"\x7f\x10\xda\xbe", 0x40, "VDI", "qemu-img"),
        (b"EVF\x09\x0d\x0a\xff\x00", 0, "E01", "ewfexport"),
        (b"hsqs", 0, "SquashFS", "unsquashfs"),
        (b"XFSB", 0, "XFS", "mount"),
        (b"\xe2\xe1\xf5\xe0", 1024, "EROFS", "mount"),
        (b"\x10\x20\xf5\xf2", 1024, "f2fs", "mount"),
        (b"_BHRfS_M", 0x1_0040, "btrfs", "mount"),
        (b"LUKS\xba\xbe", 0, "LUKS", "version 1799 is not supported"),
        (b"LABELONE\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0LVM2 001", 512, "LVM2", "corrupt"),
        (b"gDla", 4096, "super partition", "corrupt"),
        (b"SWAPSPACE2", 4086, "swap", "no files"),
        (b"verity\0\0", 0, "dm-verity", "data device"),
        (b"nothing known", 0, "not an ext4 file system", "0xef53"),
    ];
    for (magic, at, name, advice) in table {
        let mut bytes = vec![7; 70_000];
        bytes[at..at + magic.len()].copy_from_slice(magic);
        fs::write(dir.path().join("other"), &bytes).unwrap();
        for command in [&["ls", "other"][..], &["cat", "other", "/f"], &["extract", "other", "-C", "out"]] {
            let output = postread(dir.path(), command);
            expect(&output, 2);
            let message = stderr(&output);
            assert!(message.starts_with("postread: other: ") && message.contains(name), "{name}: {message}");
            assert!(message.contains(advice), "{name}: {message}");
        }
        // A file system whose first sector holds that is a file system all the same.
        if at == 0 && name != "LUKS" && name != "SquashFS" && name != "XFS" && name != "dm-verity" {
            fs::write(dir.path().join("boots"), [magic, &whole[magic.len()..]].concat()).unwrap();
            expect(&postread(dir.path(), &["ls", "boots"]), 0);
        }
    }
    for len in [0, 1, 1500] {
        fs::write(dir.path().join("short"), vec![0; len]).unwrap();
        let output = postread(dir.path(), &["ls", "short"]);
        expect(&output, 2);
        let told = format!("not an ext4 file system: it has {len} bytes, expected at least 2048");
        assert!(stderr(&output).contains(&told), "{}", stderr(&output));
    }
    fs::write(dir.path().join("cut"), &whole[..whole.len() / 2]).unwrap();
    let output = postread(dir.path(), &["ls", "cut"]);
    let told = format!("truncated: expected {} bytes, found {}", whole.len(), whole.len() / 2);
    assert!(stderr(&output).contains(&told), "{}", stderr(&output));
}

#[test]
fn a_key_that_can_not_be_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "xts-pad16");
    fs::write(dir.path().join("short"), [1; 8]).unwrap();
    let output = postread(dir.path(), &["ls", &image, "--key", &key("key64.bin"), "--key", "short"]);
    expect(&output, 2);
    assert!(stderr(&output).contains("short: a master key has"), "{}", stderr(&output));
}
