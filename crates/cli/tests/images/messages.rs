//! Messages say what is wrong, with expected and found, and name the option that helps.

use std::fs;
use std::path::Path;
use std::process::Command;

use postread_tests::{noise, require_tool, run};

use crate::common::*;

/// An image of one file `f` of 1 MiB.
fn image(dir: &Path, options: &str, size: &str) -> Option<()> {
    fs::create_dir_all(dir.join("tree/d")).unwrap();
    fs::write(dir.join("tree/f"), noise(1 << 20, 4)).unwrap();
    fs::write(dir.join("image"), "").unwrap();
    let mut mke2fs = Command::new(require_tool("mke2fs")?);
    run(mke2fs.current_dir(dir).args(["-q", "-F", "-d", "tree"]).args(options.split(' ')).args(["image", size]));
    Some(())
}

/// What has no contents is named as what it is; whether its key is there does not matter.
#[test]
fn a_directory_is_called_one() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "xts-pad16");
    for options in [&[][..], &["--key", &key("key64.bin")]] {
        for path in ["/", "/lost+found", "/enc"] {
            let output = postread(dir.path(), &[&["cat", &image, path], options].concat());
            expect(&output, 2);
            assert_eq!(stderr(&output), format!("postread: {path}: is a directory\n"));
        }
    }
}

/// A truncated image is called that in every message about what is missing, with both sizes.
#[test]
fn a_truncated_image_is_called_one() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = image(dir.path(), "-t ext4 -b 1024 -O ^has_journal", "4M") else { return };
    let whole = fs::read(dir.path().join("image")).unwrap();
    let contents = noise(1 << 20, 4);
    let last = contents.len() - 1024;
    let at = whole.windows(64).position(|window| window == &contents[last..last + 64]).unwrap();
    for (len, what) in [(3000, "metadata"), (at, "the last block of the file")] {
        fs::write(dir.path().join("cut"), &whole[..len]).unwrap();
        let expected = format!("expected {} bytes, found {len}", whole.len());
        for command in [&["ls", "cut"][..], &["cat", "cut", "/f"], &["extract", "cut", "-C", "out"], &["verify", "cut"]]
        {
            let output = postread(dir.path(), command);
            let messages = stderr(&output);
            assert!(!messages.contains("end of file") && !messages.contains("source ends"), "{what}: {messages}");
            // The warning, and whatever follows it.
            assert!(messages.lines().count() >= 1, "{what} {command:?}");
            let about = messages.lines().filter(|line| line.contains("truncated")).collect::<Vec<_>>();
            assert!(!about.is_empty() && about.iter().all(|line| line.contains(&expected)), "{what}: {messages}");
            if command[0] == "cat" && len > 3000 {
                assert_eq!((output.status.code(), about.len()), (Some(1), 2), "{messages}");
                assert_eq!(output.stdout, contents[..last]);
            }
        }
    }
}

/// Arguments the wrong way round: neither is what the other should be.
#[test]
fn swapped_arguments_are_recognized() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "xts-pad16");
    let key = key("key64.bin");
    for (args, expected) in [
        ([&key, "--key", &image], "not a key or passphrase: expected at most 4096 bytes"),
        ([&key, "--key", &key], "not an ext4 file system: it has 64 bytes, expected at least 2048"),
    ] {
        let output = postread(dir.path(), &[&["ls"], &args[..]].concat());
        expect(&output, 2);
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

/// The start of the image was overwritten: the message names the option that uses the backup, and that reads everything.
#[test]
fn a_backup_of_the_superblock() {
    let dir = tempfile::tempdir().unwrap();
    for (options, block) in [("-t ext4 -b 1024", "8193"), ("-t ext4 -b 4096", "32768")] {
        let Some(()) = image(dir.path(), options, if block == "8193" { "16M" } else { "160M" }) else { return };
        let path = dir.path().join("image");
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0; 4096], 0).unwrap();
        let output = postread(dir.path(), &["ls", "image"]);
        expect(&output, 2);
        let hint = format!("--superblock {block} uses it");
        assert!(stderr(&output).contains(&hint), "{}", stderr(&output));
        let output = postread(dir.path(), &["cat", "image", "/f", "--superblock", block]);
        expect(&output, 0);
        assert!(
            output.stdout == noise(1 << 20, 4) && stderr(&output).contains("the superblock is the backup in block")
        );
        let output = postread(dir.path(), &["ls", "image", "--superblock", "77"]);
        expect(&output, 2);
        assert!(stderr(&output).contains("no ext4 superblock in block 77"), "{}", stderr(&output));
        fs::remove_file(path).unwrap();
    }
}

/// A journal that cannot be replayed: the message names the options that help, and each of them does.
#[test]
fn journals_elsewhere_and_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = image(dir.path(), "-t ext4 -b 1024 -O ^has_journal,^metadata_csum", "8M") else { return };
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    let Some(mke2fs) = require_tool("mke2fs") else { return };
    for (name, uuid) in [("journal", uuid), ("other", "11234567-89ab-cdef-0123-456789abcdef")] {
        fs::write(dir.path().join(name), "").unwrap();
        let mut mke2fs = Command::new(&mke2fs);
        run(mke2fs.current_dir(&dir).args(["-q", "-F", "-b", "1024", "-U", uuid, "-O", "journal_dev", name, "8M"]));
    }
    let requests = ["feature has_journal needs_recovery", &format!("set_super_value journal_uuid {uuid}")];
    let Some(()) = debugfs(dir.path(), "image", &requests) else { return };
    let output = postread(dir.path(), &["ls", "image"]);
    expect(&output, 2);
    for expected in [uuid, "--journal FILE", "--ignore-journal"] {
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    let output = postread(dir.path(), &["ls", "image", "--journal", "journal"]);
    assert_eq!((expect(&output, 0).as_str(), stderr(&output).as_str()), ("d\nf\nlost+found\n", ""));
    let output = postread(dir.path(), &["ls", "image", "--ignore-journal"]);
    assert_eq!(expect(&output, 0), "d\nf\nlost+found\n");
    assert!(stderr(&output).contains("the journal was ignored"), "{}", stderr(&output));
    expect(&postread(dir.path(), &["ls", "image", "--journal", "other"]), 2);
    expect(&postread(dir.path(), &["ls", "image", "--journal", "none"]), 4);
    expect(&postread(dir.path(), &["ls", "image", "--journal", "journal", "--ignore-journal"]), 2);
}

/// Metadata with a wrong checksum: one option reads it all the same.
#[test]
fn wrong_checksums_name_their_option() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = image(dir.path(), "-t ext4 -b 1024 -O metadata_csum,^has_journal", "4M") else { return };
    let path = dir.path().join("image");
    let mut bytes = fs::read(&path).unwrap();
    // The label, in a superblock that has no backup in so small an image.
    bytes[1024 + 0x78] ^= 1;
    fs::write(&path, bytes).unwrap();
    let output = postread(dir.path(), &["ls", "image"]);
    expect(&output, 1);
    assert!(stderr(&output).contains("--ignore-checksums"), "{}", stderr(&output));
    expect(&postread(dir.path(), &["ls", "image", "--ignore-checksums"]), 0);
}
