//! Runs over what an earlier run left, and what is not put down or not put on.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::*;

/// An ext4 image of a tree, changed by a script of `debugfs`. None where a tool is missing.
fn made_image(dir: &Path, tree: impl Fn(&Path), script: &str) -> Option<()> {
    let (mke2fs, debugfs) = (postread_tests::require_tool("mke2fs")?, postread_tests::require_tool("debugfs")?);
    let from = dir.join("from");
    fs::create_dir(&from).unwrap();
    tree(&from);
    let mut command = Command::new(mke2fs);
    command
        .current_dir(dir)
        .args(["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "ea_inode", "-d", "from", "image", "16M"]);
    postread_tests::run(&mut command);
    fs::write(dir.join("script"), script).unwrap();
    postread_tests::run(Command::new(debugfs).current_dir(dir).args(["-w", "-f", "script", "image"]));
    Some(())
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A file that lacks a part is not taken for whole by the next run, which tries again.
#[test]
fn a_damaged_file_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "verity-enc"), key("key64.bin"));
    fs::copy(dir.path().join(&image), dir.path().join("good.img")).unwrap();
    flip(&dir.path().join(&image), "/enc/f65537", 4096, Some(&fs::read(&key).unwrap()));
    let extract = |image: &str, rest: &[&str]| {
        postread(dir.path(), &[&["extract", image, "/enc", "-C", "out", "--key", &key], rest].concat())
    };
    for _ in 0..2 {
        let text = expect(&extract(&image, &["--keep-going"]), 1);
        assert!(text.contains("1 files have holes where blocks were bad"), "{text}");
        let found = fs::metadata(dir.path().join("out/f65537")).unwrap();
        assert_eq!(found.len(), 65537);
    }
    expect(&extract(&image, &[]), 1);
    expect(&extract("good.img", &[]), 0);
    assert_eq!(manifest(&dir.path().join("out")), text_of("tree.manifest"));
    let text = expect(&extract("good.img", &[]), 0);
    assert!(text.contains("extracted 0 files"), "{text}");
}

/// With a list of digests what is there already is hashed, not believed; what is listed has to be in the image.
#[test]
fn digests_hold_for_what_is_there_already() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "verity-enc"), key("key64.bin"));
    let extract = |rest: &[&str]| {
        postread(dir.path(), &[&["extract", &image, "/enc", "-C", "out", "--key", &key], rest].concat())
    };
    let text = expect(&extract(&[]), 0);
    assert!(text.contains("0 files verified against given digests"), "{text}");
    let report: Value =
        serde_json::from_str(&expect(&postread(dir.path(), &["inspect", "--json", &image, "--key", &key]), 0)).unwrap();
    let files = report["results"]["verity_files"].as_array().unwrap();
    let line = |file: &Value| format!("{} {}\n", file["digest"].as_str().unwrap(), file["path"].as_str().unwrap());
    let list: String = files.iter().map(line).collect();
    fs::write(dir.path().join("list"), &list).unwrap();
    let verified = |text: &str| text.contains(&format!("{} files verified against given digests", files.len()));
    let text = expect(&extract(&["--digests", "list", "--require-digests"]), 0);
    assert!(verified(&text) && text.contains("extracted 0 files"), "{text}");
    // Changed, with its size and time as they were.
    let name = files.iter().find(|file| file["size"].as_u64() > Some(5000)).unwrap()["path"].as_str().unwrap();
    let path = dir.path().join("out").join(name.strip_prefix("/enc/").unwrap());
    let (good, time) = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap());
    let mut bad = good.clone();
    bad[4999] ^= 1;
    fs::write(&path, &bad).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    let text = expect(&extract(&[]), 0);
    assert!(text.contains("extracted 0 files"), "{text}");
    let output = extract(&["--digests", "list"]);
    let text = expect(&output, 0);
    assert!(verified(&text) && text.contains("extracted 1 files") && text.contains("were replaced"), "{text}");
    assert!(stderr(&output).contains("the existing file has another digest"), "{output:?}");
    assert_eq!(fs::read(&path).unwrap(), good);
    // As `verify` has it: not there, not listed, nothing listed.
    fs::write(dir.path().join("list"), list.clone() + &line(&files[0]).replace("/enc/", "/enc/none-")).unwrap();
    let output = extract(&["--digests", "list"]);
    expect(&output, 1);
    assert!(stderr(&output).contains("no such file"), "{output:?}");
    fs::write(dir.path().join("list"), line(&files[0])).unwrap();
    expect(&extract(&["--digests", "list"]), 0);
    expect(&extract(&["--digests", "list", "--require-digests"]), if files.len() > 1 { 1 } else { 0 });
    fs::write(dir.path().join("list"), "").unwrap();
    expect(&extract(&["--digests", "list"]), 5);
}

/// The directory gets what the extracted one has, where it is made, or was empty; else it is left alone.
#[test]
fn the_directory_itself_gets_its_attributes() {
    let dir = tempfile::tempdir().unwrap();
    let tree = |top: &Path| {
        fs::create_dir(top.join("private")).unwrap();
        fs::write(top.join("private/file"), "x").unwrap();
    };
    let script = "set_inode_field private mode 040700\nset_inode_field private mtime 86400\n";
    let Some(()) = made_image(dir.path(), tree, script) else { return };
    for there in ["empty", "full"] {
        fs::create_dir(dir.path().join(there)).unwrap();
        fs::set_permissions(dir.path().join(there), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(dir.path().join("full/other"), "y").unwrap();
    for (out, wanted) in [("new", 0o700), ("empty", 0o700), ("full", 0o755)] {
        expect(&postread(dir.path(), &["extract", "image", "private", "-C", out]), 0);
        let out = dir.path().join(out);
        assert_eq!(mode(&out), wanted);
        assert_eq!(fs::metadata(&out).unwrap().mtime() == 86400, wanted == 0o700);
    }
    // A file is no directory: what is made for it is like any other.
    fs::create_dir(dir.path().join("like-any-other")).unwrap();
    expect(&postread(dir.path(), &["extract", "image", "private/file", "-C", "one"]), 0);
    assert_eq!(mode(&dir.path().join("one")), mode(&dir.path().join("like-any-other")));
}

/// What is left out by design is counted, and is no failure; `--privileged` makes it.
#[test]
fn what_is_left_out_by_design_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let tree = |top: &Path| {
        for name in ["program", "capable", "frozen"] {
            fs::write(top.join(name), name).unwrap();
        }
    };
    let script = "mknod device c 1 3\nset_inode_field program mode 0104755\nset_inode_field frozen flags 0x80010\n\
                  ea_set capable security.capability value\nea_set program trusted.t value\n";
    let Some(()) = made_image(dir.path(), tree, script) else { return };
    let output = postread(dir.path(), &["extract", "image", "-C", "out", "--json"]);
    let report: Value = serde_json::from_str(&expect(&output, 0)).unwrap();
    let summary = report["results"].as_array().unwrap().last().unwrap();
    let left_out = serde_json::json!({"devices": 1, "set_id": 1, "xattrs": 2, "flags": 1});
    assert_eq!((&summary["left_out"], summary["failed"].as_u64()), (&left_out, Some(0)), "{summary}");
    assert_eq!(mode(&dir.path().join("out/program")), 0o755);
    let text = expect(&postread(dir.path(), &["extract", "image", "-C", "out2"]), 0);
    assert!(text.contains("left out by design: 1 device nodes, 1 times set-id bits"), "{text}");
    assert!(!text.contains("failed"), "{text}");
}

/// An attribute that can't be set costs no other one.
#[test]
fn an_attribute_that_does_not_fit_costs_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let tree = |top: &Path| fs::write(top.join("file"), "x").unwrap();
    fs::write(dir.path().join("value"), [b'v'; 30_000]).unwrap();
    let script = "ea_set -f value file user.big\nset_inode_field file mode 0100640\nset_inode_field file mtime 86400\n";
    let Some(()) = made_image(dir.path(), tree, script) else { return };
    let output = postread(dir.path(), &["extract", "image", "-C", "out"]);
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
    // Some file systems take it.
    assert!(output.status.success() || output.status.code() == Some(4) && text.contains("user.big"), "{text}");
    let file = dir.path().join("out/file");
    assert_eq!((mode(&file), fs::metadata(&file).unwrap().mtime()), (0o640, 86400), "{text}");
}

/// A file whose first name is blocked is made under its next one.
#[test]
fn the_next_name_is_taken_where_the_first_is_blocked() {
    let dir = tempfile::tempdir().unwrap();
    let tree = |top: &Path| {
        fs::write(top.join("one"), "contents").unwrap();
        fs::hard_link(top.join("one"), top.join("two")).unwrap();
        fs::hard_link(top.join("one"), top.join("three")).unwrap();
    };
    let Some(()) = made_image(dir.path(), tree, "stat one\n") else { return };
    for blocked in ["one", "two", "three"] {
        let out = dir.path().join(format!("out-{blocked}"));
        fs::create_dir_all(out.join(blocked)).unwrap();
        expect(&postread(dir.path(), &["extract", "image", "-C", out.to_str().unwrap()]), 4);
        for name in ["one", "two", "three"].into_iter().filter(|name| *name != blocked) {
            assert_eq!(fs::read(out.join(name)).unwrap(), b"contents", "{blocked} {name}");
            assert_eq!(fs::metadata(out.join(name)).unwrap().nlink(), 2);
        }
    }
}

/// A file with holes does not take the place of one that has fewer bad bytes.
#[test]
fn what_is_there_is_kept_where_it_is_better() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "verity-enc"), key("key64.bin"));
    let key_bytes = fs::read(&key).unwrap();
    let damaged = |name: &str, blocks: &[u64]| {
        fs::copy(dir.path().join(&image), dir.path().join(name)).unwrap();
        blocks.iter().for_each(|block| flip(&dir.path().join(name), "/enc/f65537", block * 4096, Some(&key_bytes)));
    };
    damaged("one", &[3]);
    damaged("other", &[5]);
    damaged("two", &[3, 5]);
    let path = dir.path().join("out/f65537");
    let extract = |image: &str, kept: bool| {
        let args = ["extract", image, "/enc", "-C", "out", "--key", &key, "--keep-going"];
        let output = postread(dir.path(), &args);
        expect(&output, 1);
        let reported = stderr(&output).contains("of the existing file");
        assert_eq!(reported, kept, "{image} {output:?}");
        fs::read(&path).unwrap()
    };
    expect(&postread(dir.path(), &["extract", &image, "/enc", "-C", "out", "--key", &key]), 0);
    let good = fs::read(&path).unwrap();
    let holes = |blocks: &[usize]| {
        let mut bytes = good.clone();
        blocks.iter().for_each(|block| bytes[block * 4096..(block + 1) * 4096].fill(0));
        bytes
    };
    fs::remove_file(&path).unwrap();
    assert!(extract("two", false) == holes(&[3, 5]));
    assert!(extract("one", false) == holes(&[3]));
    assert!(extract("two", true) == holes(&[3]));
    // As many, elsewhere: the new one.
    assert!(extract("other", false) == holes(&[5]));
    // Whole, with another time.
    fs::write(&path, &good).unwrap();
    assert!(extract("one", true) == good);
    // Of the same size, and another file.
    fs::write(&path, vec![b'x'; good.len()]).unwrap();
    assert!(extract("two", false) == holes(&[3, 5]));
    let unfinished = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with(".postread-");
    assert!(!fs::read_dir(dir.path().join("out")).unwrap().any(|entry| unfinished(entry.unwrap())));
}

/// A directory that nobody may enter is gone on with by its owner, and keeps its attributes.
#[test]
fn a_directory_without_rights_is_gone_on_with() {
    let Some(()) = postread_tests::require_root() else { return };
    let Some(setpriv) = postread_tests::require_tool("setpriv") else { return };
    let dir = tempfile::tempdir().unwrap();
    let tree = |top: &Path| {
        fs::create_dir(top.join("closed")).unwrap();
        fs::write(top.join("closed/file"), "x").unwrap();
    };
    let script = "set_inode_field closed mode 040000\nea_set closed user.name value\n";
    let Some(()) = made_image(dir.path(), tree, script) else { return };
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = dir.path().join("program");
    copy_program(&program);
    for files in [1, 0] {
        let mut command = Command::new(&setpriv);
        command.current_dir(dir.path()).args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        let text = expect(&command.args(["extract", "image", "-C", "out"]).output().unwrap(), 0);
        assert!(text.contains(&format!("extracted {files} files")), "{text}");
        assert_eq!(mode(&dir.path().join("out/closed")), 0);
    }
    assert_eq!(fs::read(dir.path().join("out/closed/file")).unwrap(), b"x");
}

/// One run at a time writes into a directory.
#[test]
fn two_runs_do_not_write_into_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity");
    fs::create_dir(dir.path().join("out")).unwrap();
    let held = fs::File::open(dir.path().join("out")).unwrap();
    held.lock().unwrap();
    for command in [&["extract", &image, "-C", "out"][..], &["extract", "--ciphertext", &image, "-C", "out"]] {
        let output = postread(dir.path(), command);
        expect(&output, 4);
        assert!(stderr(&output).contains("another postread is writing into this directory"), "{output:?}");
    }
    assert_eq!(fs::read_dir(dir.path().join("out")).unwrap().count(), 0);
    drop(held);
    expect(&postread(dir.path(), &["extract", &image, "-C", "out"]), 0);
}

/// A directory block with a wrong checksum costs its own entries, and with `--ignore-checksums` not even those.
#[test]
fn a_bad_directory_block_costs_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..200).map(|i| format!("file-with-a-long-name-{i}")).collect();
    let tree = |top: &Path| {
        fs::create_dir(top.join("dir")).unwrap();
        names.iter().for_each(|name| fs::write(top.join("dir").join(name), name).unwrap());
    };
    let Some(()) = made_image(dir.path(), tree, "stat dir\n") else { return };
    let image = dir.path().join("image");
    let bytes = fs::read(&image).unwrap();
    // A byte of its last block that is no entry's.
    let (image_fs, inode) = locate(&bytes, "/dir", None);
    let extents = image_fs.extents(&inode).unwrap();
    let last = extents.last().unwrap();
    let block = image_fs.superblock().block_size as usize;
    let blocks = inode.size as usize / block;
    assert!(blocks > 2);
    let at = last.physical as usize + last.len as usize - 16;
    let mut bad = bytes.clone();
    bad[at] ^= 0x10;
    fs::write(&image, &bad).unwrap();
    let run = |args: &[&str]| postread(dir.path(), args);
    let there: Vec<bool> = names
        .iter()
        .map(|name| {
            let output = run(&["cat", "image", &format!("/dir/{name}")]);
            match output.status.code() {
                Some(0) => assert_eq!(output.stdout, name.as_bytes()),
                _ => expect(&output, 1).clear(),
            }
            output.status.success()
        })
        .collect();
    let kept = there.iter().filter(|there| **there).count();
    assert!(kept > 100 && kept < names.len(), "{kept}");
    let listed = |text: &str| text.lines().filter(|line| line.contains("file-with")).count();
    for rest in [&[][..], &["--keep-going"]] {
        let output = run(&[&["extract", "image", "-C", "out"], rest].concat());
        expect(&output, 1);
        assert!(stderr(&output).contains("dir: corrupt directory block"), "{output:?}");
        assert_eq!(fs::read_dir(dir.path().join("out/dir")).unwrap().count(), kept);
    }
    let output = run(&["ls", "-R", "image"]);
    assert_eq!(listed(&expect(&output, 1)), kept);
    assert!(stderr(&output).contains("/dir: corrupt directory block"), "{output:?}");
    assert_eq!(listed(&expect(&run(&["ls", "-R", "image", "--ignore-checksums"]), 0)), names.len());
    expect(&run(&["extract", "image", "-C", "all", "--ignore-checksums"]), 0);
    assert_eq!(fs::read_dir(dir.path().join("all/dir")).unwrap().count(), names.len());
}

/// A set-id bit lends the owner's rights: where the owner could not be set, it goes, asked for or not.
#[test]
fn a_set_id_bit_needs_its_owner() {
    let Some(()) = postread_tests::require_root() else { return };
    let Some(setpriv) = postread_tests::require_tool("setpriv") else { return };
    let dir = tempfile::tempdir().unwrap();
    let tree = |top: &Path| {
        for name in ["roots", "own", "groups"] {
            fs::write(top.join(name), name).unwrap();
        }
    };
    let script = "set_inode_field roots mode 0104755\nset_inode_field own mode 0104755\nset_inode_field own uid 65534\n\
                  set_inode_field groups mode 0102755\n";
    let Some(()) = made_image(dir.path(), tree, script) else { return };
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = dir.path().join("program");
    copy_program(&program);
    let mut command = Command::new(setpriv);
    command.current_dir(dir.path()).args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    let output = command.args(["extract", "image", "-C", "out", "--privileged", "--json"]).output().unwrap();
    // lost+found is root's alone; where it lies nothing depends on it.
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let summary = report["results"].as_array().unwrap().last().unwrap();
    assert_eq!(summary["left_out"]["set_id"].as_u64(), Some(2), "{summary}");
    let out = dir.path().join("out");
    assert_eq!([mode(&out.join("roots")), mode(&out.join("own")), mode(&out.join("groups"))], [0o755, 0o4755, 0o755]);
}
