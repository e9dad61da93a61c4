//! Peak memory over hostile images and files: what a few bytes of the input ask for is not kept.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::common::*;

/// Runs the program. Returns its exit status and its peak of resident memory in MiB.
#[track_caller]
fn peak(dir: &Path, args: &[&str]) -> Option<(i32, u64)> {
    let time = postread_tests::require_tool("time")?;
    let mut command = Command::new(time);
    command.current_dir(dir).args(["-q", "-f", "%M", "-o", "peak", env!("CARGO_BIN_EXE_postread")]).args(args);
    let output = command.output().unwrap();
    let text = fs::read_to_string(dir.join("peak")).unwrap();
    let kib: u64 = text.trim().parse().unwrap_or_else(|error| panic!("{text:?}: {error}"));
    let status = output.status.code().unwrap();
    assert!(status != 101 && status < 128, "{args:?}: {output:?}");
    eprintln!("{args:?}: exit status {status}, {} MiB", kib / 1024);
    Some((status, kib / 1024))
}

/// What the program takes for next to nothing.
#[track_caller]
fn base(dir: &Path) -> Option<u64> {
    let mke2fs = postread_tests::require_tool("mke2fs")?;
    postread_tests::run(Command::new(mke2fs).current_dir(dir).args(["-q", "-F", "-t", "ext4", "small", "1M"]));
    Some(peak(dir, &["extract", "-q", "small", "-C", "nothing"])?.1)
}

fn mkfs(dir: &Path, options: &[&str], size: &str) -> Option<()> {
    let mke2fs = postread_tests::require_tool("mke2fs")?;
    let mut command = Command::new(mke2fs);
    command.current_dir(dir).args(["-q", "-F", "-t", "ext4"]).args(options).args(["image", size]);
    postread_tests::run(&mut command);
    Some(())
}

fn script(dir: &Path, image: &str, requests: &str) -> Option<String> {
    let debugfs = postread_tests::require_tool("debugfs")?;
    fs::write(dir.join("requests"), requests).unwrap();
    let mut command = Command::new(debugfs);
    let output = postread_tests::run(command.current_dir(dir).args(["-w", "-f", "requests", image]));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// One block of attributes with 200 values of 64 KiB, all in one inode, shared by directories and by files: 13 MB for
/// the 256 bytes of each.
#[test]
fn a_shared_block_of_large_attributes() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["-b", "4096", "-I", "256", "-N", "4000", "-O", "ea_inode,^has_journal,^metadata_csum"];
    let Some(()) = mkfs(dir.path(), &options, "24M") else { return };
    fs::write(dir.path().join("value"), vec![b'A'; 65536]).unwrap();
    fs::write(dir.path().join("block"), vec![1; 4096]).unwrap();
    let setup =
        "write value /ea\nwrite block /block\nset_inode_field /ea flags 0x280000\nset_inode_field /ea mode 0100000\n";
    let Some(_) = script(dir.path(), "image", setup) else { return };
    let found = script(dir.path(), "image", "stat /ea\nbmap /block 0\n").unwrap();
    let ino: u32 = found.split("Inode: ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let block: u64 = found.trim_end().lines().last().unwrap().trim().parse().unwrap();
    let mut attributes =
        [&0xea02_0000u32.to_le_bytes()[..], &1000u32.to_le_bytes(), &1u32.to_le_bytes(), &[0; 20]].concat();
    for n in 0..160 {
        // Name of 4 bytes, `user.`, no offset; the inode of the value, its size, no hash.
        attributes.extend_from_slice(&[4, 1, 0, 0]);
        [ino, 65536, 0].iter().for_each(|field| attributes.extend_from_slice(&field.to_le_bytes()));
        attributes.extend_from_slice(format!("{n:04}").as_bytes());
    }
    attributes.resize(4096, 0);
    let image = fs::File::options().write(true).open(dir.path().join("image")).unwrap();
    image.write_all_at(&attributes, block * 4096).unwrap();
    drop(image);
    let mut requests = String::new();
    for n in 0..40 {
        requests += &format!("mkdir /d{n}\nset_inode_field /d{n} file_acl {block}\n");
        requests += &format!("write requests /f{n}\nset_inode_field /f{n} file_acl {block}\n");
    }
    let Some(_) = script(dir.path(), "image", &requests) else { return };
    let Some(base) = base(dir.path()) else { return };
    for args in [
        &["extract", "-q", "image", "-C", "out", "--jobs=2"][..],
        &["extract", "-q", "image", "-C", "out", "--jobs=2"],
        &["extract", "-q", "--ciphertext", "image", "-C", "saved"],
    ] {
        let Some((_, mib)) = peak(dir.path(), args) else { return };
        assert!(mib < base + 120, "{args:?}: {mib} MiB, and {base} for nothing");
    }
}

/// Directories one in the other with long names, a verified file and another name of a file in each: whole paths would
/// take the square.
#[test]
fn files_at_each_level_of_a_deep_chain() {
    const DEEP: usize = 1200;
    let dir = tempfile::tempdir().unwrap();
    let options = ["-b", "4096", "-N", "8000", "-O", "verity,^has_journal,^metadata_csum"];
    let Some(()) = mkfs(dir.path(), &options, "32M") else { return };
    let name = "n".repeat(250);
    let mut requests = String::from("write requests first\nset_inode_field first links_count 60000\n");
    for level in 0..DEEP {
        requests += &format!("ln first {name}x\nmknod {name}y p\nwrite /dev/null file-{level}\n");
        requests += &format!("set_inode_field file-{level} flags 0x180000\nmkdir {name}\ncd {name}\n");
    }
    let requests = requests.replace("ln first ", "ln /first ");
    let Some(_) = script(dir.path(), "image", &requests) else { return };
    let Some(base) = base(dir.path()) else { return };
    for args in [&["verify", "-q", "image", "--json"][..], &["extract", "-q", "image", "-C", "out"]] {
        let Some((_, mib)) = peak(dir.path(), args) else { return };
        assert!(mib < base + 60, "{args:?}: {mib} MiB, and {base} for nothing");
    }
    // What goes when the test ends is removed name by name.
    postread_tests::run(Command::new("rm").current_dir(&dir).args(["-r", "out"]));
}

/// Every other block of a file is bad: without a map that is wanted, none is kept.
#[test]
fn bad_ranges_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let Some(base) = base(dir.path()) else { return };
    let size = 256 << 20;
    let file = dir.path().join("file");
    fs::File::create(&file).unwrap().set_len(size).unwrap();
    let args = ["digest", "--compact", "--block-size=512", "--out-merkle-tree=tree", "file"];
    let digest = expect(&postread(dir.path(), &args), 0);
    let mut stretch = vec![0; 1 << 20];
    stretch.chunks_mut(1024).for_each(|blocks| blocks[512..].fill(1));
    let out = fs::File::options().write(true).open(&file).unwrap();
    (0..size >> 20).for_each(|n| out.write_all_at(&stretch, n << 20).unwrap());
    drop(out);
    let digest = format!("sha256:{}", digest.trim());
    let args = ["verify", "file", "--digest", &digest, "--block-size=512", "--merkle-tree=tree", "--quiet"];
    let Some((status, mib)) = peak(dir.path(), &args) else { return };
    assert_eq!(status, 1);
    // The map would take 6 MiB for the half of them, and 12 while it grows.
    let Some((_, mapped)) = peak(dir.path(), &[&args[..], &["--map=map"]].concat()) else { return };
    assert!(mib + 8 < mapped || mib < base + 30, "{mib} MiB, {mapped} with a map, and {base} for nothing");
}

/// A directory of very many names, which are names of few inodes.
#[test]
fn very_many_names() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = mkfs(dir.path(), &["-b", "4096", "-O", "^has_journal,^metadata_csum,^dir_index"], "32M") else {
        return;
    };
    // Blocks full of entries of 12 bytes with names of 4, all of one inode, as a file that is made a directory.
    let Some(_) = script(dir.path(), "image", "write requests /one\nset_inode_field /one links_count 65000\n") else {
        return;
    };
    let found = script(dir.path(), "image", "stat /one\n").unwrap();
    let ino: u32 = found.split("Inode: ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let mut entries = Vec::new();
    let mut count = 0u32;
    while count < 400_000 {
        let mut block = Vec::new();
        if entries.is_empty() {
            for (name, len) in [(".", 1u8), ("..", 2)] {
                block.extend_from_slice(&2u32.to_le_bytes());
                block.extend_from_slice(&[12, 0, len, 2]);
                block.extend_from_slice(format!("{name:\0<4}").as_bytes());
            }
        }
        while block.len() < 4096 {
            let last = block.len() + 24 > 4096;
            let length = if last { 4096 - block.len() } else { 12 } as u16;
            block.extend_from_slice(&ino.to_le_bytes());
            block.extend_from_slice(&length.to_le_bytes());
            block.extend_from_slice(&[4, 1]);
            block.extend((0..4).map(|n| b'0' + (count >> (5 * n) & 31) as u8));
            count += 1;
            block.resize(block.len() + usize::from(length) - 12, 0);
        }
        entries.extend_from_slice(&block);
    }
    fs::write(dir.path().join("entries"), entries).unwrap();
    let Some(_) = script(dir.path(), "image", "write entries /dir\nset_inode_field /dir mode 040755\n") else { return };
    let Some(base) = base(dir.path()) else { return };
    for args in [
        &["extract", "-q", "image", "/dir", "-C", "out"][..],
        &["extract", "-q", "--ciphertext", "image", "-C", "saved"],
        &["verify", "-q", "image"],
    ] {
        let Some((_, mib)) = peak(dir.path(), args) else { return };
        assert!(mib < base + 60, "{args:?}: {mib} MiB, and {base} for nothing");
    }
}

/// Saved ciphertext whose lines are as long as a line may be: they do not wait beside each other.
#[test]
fn long_lines_of_a_manifest() {
    let dir = tempfile::tempdir().unwrap();
    let Some(base) = base(dir.path()) else { return };
    let saved = dir.path().join("saved");
    fs::create_dir_all(saved.join("data")).unwrap();
    let header = r#"{"format":"postread-ciphertext-3","fs_uuid":"00000000000000000000000000000000","block_size":4096,"root":2,"root_context":null}"#;
    let mut manifest = format!("{header}\n");
    let context = hex::encode([&[1, 1, 4, 0][..], &[0x11; 8], &[0x22; 16]].concat());
    let ranges: Vec<String> = (0..60_000u64).map(|n| format!("[{},4096]", n * 8192)).collect();
    let (ranges, value) = (ranges.join(","), "aa".repeat(60_000));
    for ino in 12..60 {
        fs::File::create(saved.join(format!("data/{ino}"))).unwrap();
        let name = hex::encode(format!("file-{ino}"));
        manifest += &format!(
            r#"{{"inode":{ino},"type":"file","directory":2,"raw_name":"{name}","mode":33188,"uid":0,"gid":0,"links":1,"size":4000000000,"atime":[0,0],"mtime":[0,0],"context":"{context}","data":[{ranges}],"sha256":"{}","xattrs":[["{}","{value}"]]}}"#,
            "00".repeat(32),
            hex::encode("user.note")
        );
        manifest.push('\n');
    }
    fs::write(saved.join("manifest.jsonl"), manifest).unwrap();
    let key = format!("1111111111111111={}", key("key64.bin"));
    let args = ["extract", "-q", "--keep-going", "--from-ciphertext", "saved", "-C", "out", "--key", &key];
    let Some((status, mib)) = peak(dir.path(), &args) else { return };
    assert_eq!(status, 1);
    assert!(mib < base + 60, "{mib} MiB, and {base} for nothing");
}
