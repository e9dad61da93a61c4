//! One cause gives one message and one exit status.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::common::*;

/// The magic number that blocks of a journal begin with.
const MAGIC: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];

/// An image whose journal holds transactions that are not yet in the file system.
fn image_with_journal(dir: &std::path::Path, features: &str, checksums: &str) -> Option<Vec<u8>> {
    let debugfs = postread_tests::require_tool("debugfs")?;
    let mke2fs = postread_tests::require_tool("mke2fs")?;
    let image = dir.join("image");
    fs::write(&image, "").unwrap();
    let mut command = Command::new(mke2fs);
    command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=4"]);
    postread_tests::run(command.args(["-O", features]).arg(&image).arg("16M"));
    fs::write(dir.join("data"), vec![0x5a; 8192]).unwrap();
    let data = dir.join("data");
    let data = data.display();
    let commands = format!(
        "jo {checksums}\njw -b 3900-3901 {data}\njw -b 3902 {data}\njw -r 3900\njc\njo {checksums}\njw -b 3901 {data}\njc\n"
    );
    fs::write(dir.join("script"), commands).unwrap();
    postread_tests::run(Command::new(debugfs).args(["-w", "-f"]).arg(dir.join("script")).arg(&image));
    Some(fs::read(&image).unwrap())
}

/// Whatever is wrong with a journal, it is damage (1), with checksums or without; only what it asks for that nobody here
/// can do is not. Where the damage does not show, the image is read.
#[test]
fn every_fault_of_a_journal_has_one_exit_status() {
    let dir = tempfile::tempdir().unwrap();
    for (features, checksums) in [("^metadata_csum", ""), ("metadata_csum", "-c -v 3"), ("metadata_csum", "-c -v 2")] {
        let Some(good) = image_with_journal(dir.path(), features, checksums) else { return };
        let at = dir.path().join("bad");
        fs::write(&at, &good).unwrap();
        expect(&postread(dir.path(), &["ls", "bad"]), 0);
        let image = fs::OpenOptions::new().write(true).open(&at).unwrap();
        // By type: descriptors, commits, superblock, revocations.
        let blocks: Vec<usize> = (0..good.len()).step_by(4096).filter(|&at| good[at..at + 4] == MAGIC).collect();
        assert!(blocks.iter().filter(|&&at| matches!(good[at + 7], 1 | 2 | 5)).count() >= 5, "{blocks:?}");
        assert!(blocks.iter().any(|&at| good[at + 7] == 4));
        let mut faults = 0;
        let mut wrong = Vec::new();
        for &block in &blocks {
            let is_super = good[block + 7] == 4;
            // Magic, type, sequence, then what each type has; a byte of the body.
            for field in (0..0x60).step_by(4).chain([1000]) {
                // Of the superblock: what it asks for, and its UUID and users, which say nothing of damage.
                if is_super && (0x24..0x50).contains(&field) {
                    continue;
                }
                for value in [0, 0xff] {
                    // Without checksums, a tag or a block of the body that is 0 is no fault: it sends data to block 0, over
                    // the superblock, as a journal may.
                    if checksums.is_empty() && good[block + 7] == 1 && value == 0 && [0xc, 0x28].contains(&field) {
                        continue;
                    }
                    let was = &good[block + field..block + field + 4];
                    if was == [value; 4] {
                        continue;
                    }
                    image.write_all_at(&[value; 4], (block + field) as u64).unwrap();
                    let output = postread(dir.path(), &["ls", "bad"]);
                    image.write_all_at(was, (block + field) as u64).unwrap();
                    match output.status.code() {
                        Some(0) => {}
                        Some(1) => faults += 1,
                        other => wrong.push(format!(
                            "{checksums:?} type {} field {field:#x} = {value:#x}: {other:?} {}",
                            good[block + 7],
                            stderr(&output)
                        )),
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(faults >= 8, "{checksums:?}: {faults}");
    }
}

/// Bad blocks beside each other are one range; those apart are not.
#[test]
fn extract_merges_neighbouring_bad_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity-enc");
    let (key_file, bytes) = (key("key64.bin"), fs::read(key("key64.bin")).unwrap());
    for at in [4096, 8192, 12288, 24576, 61440, 65536] {
        flip(&dir.path().join(&image), "/enc/f65537", at, Some(&bytes));
    }
    let args = ["extract", "-q", &image, "/enc", "-C", "out", "--key", &key_file, "--keep-going"];
    for queue in ["inline", "bound", "unbound"] {
        let output = postread(dir.path(), &[&args[..], &["--queue", queue]].concat());
        expect(&output, 1);
        let text = stderr(&output);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("f65537: at byte")).collect();
        let wanted = ["at bytes 4096 to 16383 (3 blocks)", "at byte 24576", "at bytes 61440 to 65536 (2 blocks)"];
        assert_eq!(lines.len(), wanted.len(), "{text}");
        for (line, wanted) in lines.iter().zip(wanted) {
            assert!(line.contains(wanted), "{wanted}: {text}");
        }
        fs::remove_dir_all(dir.path().join("out")).unwrap();
    }
}
