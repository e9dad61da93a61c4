//! Images and saved ciphertext that try to get out of the directory, or to stop a walk.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::common::*;

/// An image of `tree` whose directory blocks were edited: every `from` there is `to`, of the same length.
fn edited(dir: &Path, edits: &[(&[u8], &[u8])]) -> Option<()> {
    edited_with(dir, "^metadata_csum,^dir_index", edits)
}

fn edited_with(dir: &Path, features: &str, edits: &[(&[u8], &[u8])]) -> Option<()> {
    let mke2fs = postread_tests::require_tool("mke2fs")?;
    let mut command = Command::new(mke2fs);
    command.current_dir(dir).args(["-q", "-F", "-t", "ext4", "-I", "256", "-O", features, "-d", "tree", "image", "4M"]);
    postread_tests::run(&mut command);
    let mut bytes = fs::read(dir.join("image")).unwrap();
    for (from, to) in edits {
        assert_eq!(from.len(), to.len());
        let places: Vec<_> = (0..bytes.len() - from.len()).filter(|&at| bytes[at..].starts_with(from)).collect();
        assert!(!places.is_empty(), "{}", from.escape_ascii());
        for at in places {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
    fs::write(dir.join("image"), bytes).unwrap();
    Some(())
}

#[test]
fn names_and_links_do_not_lead_out() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
    fs::create_dir_all(tree.join("QQdirQQ1")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("victim"), "untouched").unwrap();
    fs::write(tree.join("QQslashQ"), "evil").unwrap();
    fs::write(tree.join("QQnulQQ1"), "evil").unwrap();
    fs::write(tree.join("QQdirQQ1/victim"), "evil").unwrap();
    fs::write(tree.join("fine"), "fine").unwrap();
    // A link to the outside, and a directory that takes its name afterwards.
    symlink(&outside, tree.join("QQdirQQ0")).unwrap();
    let edits: [(&[u8], &[u8]); 3] =
        [(b"QQslashQ", b"../evil1"), (b"QQnulQQ1", b"evil\0xx1"), (b"QQdirQQ1", b"QQdirQQ0")];
    let Some(()) = edited(dir.path(), &edits) else { return };
    let output = postread(dir.path(), &["extract", "image", "-C", "out"]);
    expect(&output, 2);
    for message in
        ["contains a slash", "contains a NUL", "QQdirQQ0: refused: its directory has a second entry of this name"]
    {
        assert!(stderr(&output).contains(message), "{output:?}");
    }
    assert_eq!(fs::read_to_string(outside.join("victim")).unwrap(), "untouched");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert!(!dir.path().join("evil1").exists());
    // Listings go on, whatever the names are.
    let listed = postread(dir.path(), &["ls", "-R", "image"]);
    assert!(listed.status.code().is_some_and(|code| code != 101));
}

/// `.` and `..` are a directory's own in its first two places only: elsewhere they are names, and bad ones.
#[test]
fn entries_named_as_dots_are_refused_and_counted() {
    let file: (&[u8], &[u8]) = (b"\x02\x01QQ", b"\x02\x01..");
    let directory: (&[u8], &[u8]) = (b"\x01\x02Z\0", b"\x01\x02.\0");
    for (features, edits) in
        [("^metadata_csum,^dir_index", [file, directory]), ("^metadata_csum,^dir_index,inline_data", [file, directory])]
    {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree/sub");
        fs::create_dir_all(tree.join("Z")).unwrap();
        fs::write(tree.join("QQ"), "evil").unwrap();
        fs::write(tree.join("fine"), "fine").unwrap();
        let Some(()) = edited_with(dir.path(), features, &edits) else { return };
        let output = postread(dir.path(), &["extract", "image", "-C", "out", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&expect(&output, 2)).unwrap();
        let entries = report["results"].as_array().unwrap();
        let mut refused: Vec<_> = entries.iter().filter_map(|entry| entry["path"].as_str()).collect();
        refused.sort();
        assert_eq!(refused, ["sub/.", "sub/.."], "{features}: {report}");
        assert_eq!(entries.last().unwrap()["failed"], 2);
        let made: Vec<_> = fs::read_dir(dir.path().join("out/sub")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(made, ["fine"]);
    }
}

/// One name for a link, a directory and a file, and a size that no file has: the image's fault, not the directory's.
#[test]
fn what_no_directory_could_take_is_the_images_fault() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("QQsameQ1")).unwrap();
    fs::write(tree.join("QQsameQ1/in"), "in").unwrap();
    fs::write(tree.join("QQsameQ2"), "file").unwrap();
    symlink("target", tree.join("QQsameQ3")).unwrap();
    fs::write(tree.join("huge"), "huge").unwrap();
    let edits: [(&[u8], &[u8]); 3] =
        [(b"QQsameQ1", b"QQsameQ0"), (b"QQsameQ2", b"QQsameQ0"), (b"QQsameQ3", b"QQsameQ0")];
    let Some(()) = edited(dir.path(), &edits) else { return };
    let output = postread(dir.path(), &["extract", "image", "-C", "out"]);
    expect(&output, 2);
    assert_eq!(stderr(&output).matches("QQsameQ0: refused: its directory has a second entry").count(), 2, "{output:?}");
    let Some(debugfs) = postread_tests::require_tool("debugfs") else { return };
    let mut command = Command::new(debugfs);
    command.current_dir(&dir).args(["-w", "-R", "set_inode_field /huge size 9223372036854775807", "image"]);
    postread_tests::run(&mut command);
    let output = postread(dir.path(), &["extract", "image", "-C", "out2"]);
    expect(&output, 2);
    assert!(stderr(&output).contains("the size is 9223372036854775807, the limit is"), "{output:?}");
}

/// A link that an earlier extraction, or anybody, left in the way is not followed.
#[test]
fn what_is_there_already_does_not_lead_out() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    let (out, outside) = (dir.path().join("out"), dir.path().join("outside"));
    fs::create_dir(&out).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("victim"), "untouched").unwrap();
    symlink(&outside, out.join("sub")).unwrap();
    symlink(outside.join("victim"), out.join("f100")).unwrap();
    let output = postread(dir.path(), &["extract", &image, "/enc", "-C", "out", "--key", &key]);
    expect(&output, 4);
    assert!(stderr(&output).contains("sub: "), "{output:?}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(outside.join("victim")).unwrap(), "untouched");
    // The file took the link's place.
    assert!(fs::symlink_metadata(out.join("f100")).unwrap().is_file());
}

/// Nothing in the directory of saved ciphertext is followed out of it, or waited for.
#[test]
fn what_is_saved_does_not_lead_out() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("victim"), "untouched").unwrap();
    let (_, inode) = locate(&fs::read(dir.path().join(&image)).unwrap(), "/enc/f100", Some(&fs::read(&key).unwrap()));
    let save = |out: &str| postread(dir.path(), &["extract", "--ciphertext", &image, "/enc", "-C", out]);
    let untouched = || {
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(outside.join("victim")).unwrap(), "untouched");
    };
    fs::create_dir(dir.path().join("linked")).unwrap();
    symlink("../outside", dir.path().join("linked/data")).unwrap();
    let output = save("linked");
    expect(&output, 4);
    assert!(stderr(&output).contains("linked/data: "), "{output:?}");
    untouched();
    fs::create_dir(dir.path().join("manifest")).unwrap();
    symlink("../outside/victim", dir.path().join("manifest/manifest.jsonl")).unwrap();
    let output = save("manifest");
    expect(&output, 4);
    assert!(stderr(&output).contains("manifest.jsonl: not a regular file"), "{output:?}");
    untouched();
    // Links and pipes in the place of contents give way.
    for pipe in [false, true] {
        let out = format!("left{pipe}");
        let data = dir.path().join(&out).join("data");
        fs::create_dir_all(&data).unwrap();
        for part in [&data.join(inode.ino.to_string())] {
            match pipe {
                true => rustix::fs::mknodat(
                    rustix::fs::CWD,
                    part,
                    rustix::fs::FileType::Fifo,
                    rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
                    0,
                )
                .unwrap(),
                false => symlink(outside.join("victim"), part).unwrap(),
            }
        }
        expect(&save(&out), 0);
        untouched();
        let restored = format!("restored{pipe}");
        let args = ["extract", "--from-ciphertext", &out, "-C", &restored, "--key", &key];
        expect(&postread(dir.path(), &args), 0);
        assert_eq!(manifest(&dir.path().join(restored)), text_of("tree.manifest"));
    }
}

/// Hostile saved ciphertext: names that lead out, ranges that overlap, numbers without end.
#[test]
fn saved_ciphertext_is_not_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let key = key("key64.bin");
    let saved = dir.path().join("saved");
    fs::create_dir_all(saved.join("data")).unwrap();
    let header = r#"{"format":"postread-ciphertext-3","fs_uuid":"00000000000000000000000000000000","block_size":4096,"root":2,"root_context":null}"#;
    let entry = |inode: u32, kind: &str, dir: u32, name: &str, rest: &str| {
        format!(
            r#"{{"inode":{inode},"type":"{kind}","directory":{dir},"raw_name":"{}","mode":33188,"uid":0,"gid":0,"links":1,"size":9223372036854775808,"atime":[0,0],"mtime":[0,0]{rest}}}"#,
            hex::encode(name)
        )
    };
    let context = format!(r#","context":"02010403000000 00{}{}""#, "10", "00").replace(' ', "");
    let lines = [
        header.to_owned(),
        entry(12, "directory", 2, "../evil", ""),
        entry(13, "directory", 2, "..", ""),
        entry(14, "directory", 99, "orphan", ""),
        entry(15, "file", 2, "short-context", &context),
        entry(16, "link", 2, "no-context", r#","target":"00""#),
        entry(17, "directory", 2, "in", ""),
        entry(17, "directory", 17, "twice", ""),
        "{".to_owned(),
    ];
    fs::write(saved.join("manifest.jsonl"), lines.join("\n")).unwrap();
    let output =
        postread(dir.path(), &["extract", "--keep-going", "--from-ciphertext", "saved", "-C", "out", "--key", &key]);
    expect(&output, 2);
    let mut made: Vec<_> = fs::read_dir(dir.path().join("out")).unwrap().map(|e| e.unwrap().file_name()).collect();
    made.sort();
    assert_eq!(made, ["in"]);
    assert!(!dir.path().join("evil").exists());
    for bad in ["", "{}", "not json", &header.replace("4096", "4095"), &header.replace("-3", "-1")] {
        fs::write(saved.join("manifest.jsonl"), bad).unwrap();
        expect(&postread(dir.path(), &["extract", "--from-ciphertext", "saved", "-C", "out2", "--key", &key]), 2);
    }
}

/// Truncated and overwritten images end with an error, never a panic.
#[test]
fn damaged_images_end_with_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity-enc");
    let whole = fs::read(dir.path().join(&image)).unwrap();
    let key = key("key64.bin");
    for (i, cut) in [0, 1000, 2048, 5000, 100_000, 2_000_000].into_iter().enumerate() {
        fs::write(dir.path().join("cut"), &whole[..cut]).unwrap();
        let out = format!("out{i}");
        for command in
            [&["inspect", "cut"][..], &["ls", "-R", "cut"], &["verify", "cut", "/"], &["extract", "cut", "-C", &out]]
        {
            let output = postread(dir.path(), &[command, &["--key", &key]].concat());
            let code = output.status.code();
            assert!(matches!(code, Some(0..=5)), "{cut} {command:?} {output:?}");
            assert!(!stderr(&output).contains("panicked"), "{cut} {command:?} {output:?}");
            // A cut metadata area is reported; later only contents are missing.
            assert!(cut > 2_000_000 || code != Some(0) || command[0] != "extract", "{cut} {command:?}");
        }
    }
}

/// Directories within directories, far deeper than a path may be long for the kernel, and wide beside that: all of it
/// is put down, by few open files, and also out of saved ciphertext.
#[test]
fn thousands_of_directories_one_in_the_other() {
    const DEEP: usize = 1500;
    let dir = tempfile::tempdir().unwrap();
    let (Some(mke2fs), Some(debugfs)) =
        (postread_tests::require_tool("mke2fs"), postread_tests::require_tool("debugfs"))
    else {
        return;
    };
    let mut command = Command::new(mke2fs);
    let features = "^has_journal,^metadata_csum";
    command
        .current_dir(&dir)
        .args(["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "4000", "-O", features, "image", "32M"]);
    postread_tests::run(&mut command);
    let mut script = String::new();
    for level in 0..DEEP {
        // Before and after the next level, in the order of the directory.
        script += &format!(
            "mkdir deep\nsymlink b level-{level}\nset_inode_field deep mode 040500\nset_inode_field deep mtime 86400\ncd deep\n"
        );
    }
    fs::write(dir.path().join("script"), script).unwrap();
    let mut command = Command::new(debugfs);
    postread_tests::run(command.current_dir(&dir).args(["-w", "-f", "script", "image"]));
    let program = env!("CARGO_BIN_EXE_postread");
    let limited = |args: &str| {
        let script = format!("ulimit -n 128; exec \"$0\" {args}");
        Command::new("bash").current_dir(&dir).args(["-c", &script, program]).output().unwrap()
    };
    for args in [
        "extract image -C out --jobs=1024",
        "extract --ciphertext image -C saved",
        "extract --from-ciphertext saved -C again",
    ] {
        // lost+found is one more.
        let text = expect(&limited(args), 0);
        assert!(text.contains(&format!(" {} directories", DEEP + 1)), "{args}: {text}");
    }
    for (tree, links) in [("out", DEEP), ("again", 0)] {
        let script = "find \"$0\" -mindepth 1 -type d -perm 0500 ! -newermt '1970-01-02 00:00:01 UTC' | wc -l; find \"$0\" -type l -name b | wc -l";
        let output = Command::new("bash").current_dir(&dir).args(["-c", script, tree]).output().unwrap();
        let text = expect(&output, 0);
        let counts: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
        // lost+found is not one of them.
        assert_eq!(counts, [DEEP, links], "{tree}");
    }
    // What goes when the test ends is removed name by name.
    postread_tests::run(Command::new("bash").current_dir(&dir).args(["-c", "chmod -R u+w out again; rm -r out again"]));
}

/// The number that stands for no user and no group, as an owner: reported, and the rest is extracted.
#[test]
fn owners_that_nobody_can_be() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("dir")).unwrap();
    fs::write(tree.join("dir/file"), "file").unwrap();
    symlink("target", tree.join("link")).unwrap();
    let Some(()) = edited(dir.path(), &[]) else { return };
    let Some(debugfs) = postread_tests::require_tool("debugfs") else { return };
    let mut script = String::new();
    for (name, field) in [("/dir", "uid"), ("/dir/file", "gid"), ("/link", "uid")] {
        script += &format!("set_inode_field {name} {field} 4294967295\n");
    }
    fs::write(dir.path().join("script"), script).unwrap();
    postread_tests::run(Command::new(debugfs).current_dir(&dir).args(["-w", "-f", "script", "image"]));
    let output = postread(dir.path(), &["extract", "image", "-C", "out"]);
    if postread_tests::require_root().is_none() {
        expect(&output, 0);
        return;
    }
    expect(&output, 2);
    for name in ["dir: its owner: ", "dir/file: its owner: ", "link: its owner: "] {
        assert!(stderr(&output).contains(&format!("{name}nothing can have the owner ")), "{output:?}");
    }
    assert_eq!(fs::read_to_string(dir.path().join("out/dir/file")).unwrap(), "file");
}

/// An access control list that the kernel refuses is the image's fault; all else of the file is put down.
#[test]
fn an_access_control_list_that_is_none() {
    use std::os::unix::fs::MetadataExt;
    let (Some(setfacl), Some(debugfs)) =
        (postread_tests::require_tool("setfacl"), postread_tests::require_tool("debugfs"))
    else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::write(dir.path().join("tree/file"), "file").unwrap();
    postread_tests::run(Command::new(setfacl).current_dir(&dir).args(["-m", "u:77777:r", "tree/file"]));
    // The user's number, which the list has as it is, made the one that stands for none.
    let none = u32::MAX.to_le_bytes();
    let Some(()) = edited(dir.path(), &[(&77777u32.to_le_bytes(), &none)]) else { return };
    let mut command = Command::new(debugfs);
    command.current_dir(&dir).args(["-w", "-R", "set_inode_field /file mtime @86400", "image"]);
    postread_tests::run(&mut command);
    let output = postread(dir.path(), &["extract", "image", "-C", "out"]);
    expect(&output, 2);
    let messages = stderr(&output);
    assert!(
        messages.contains("file: its extended attribute system.posix_acl_access: the kernel rejects its value"),
        "{messages}"
    );
    assert_eq!(fs::metadata(dir.path().join("out/file")).unwrap().mtime(), 86400);
}
