//! `extract`: the tree that was put in comes out, from the image or from its saved ciphertext.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use serde_json::Value;

use crate::common::*;

#[test]
fn every_encrypted_image_extracts_as_its_manifest_says() {
    let wanted = text_of("tree.manifest");
    let dir = tempfile::tempdir().unwrap();
    for (i, (name, key)) in encrypted(dir.path()).into_iter().enumerate() {
        let image = unpack(dir.path(), name);
        let out = format!("out-{name}");
        let queue = ["--queue=inline", "--queue=bound", "--queue=unbound"][i % 3];
        expect(&postread(dir.path(), &["extract", &image, "/enc", "-C", &out, "--key", &key, queue]), 0);
        assert_eq!(manifest(&dir.path().join(&out)), wanted, "{name}");
        // The saved ciphertext needs no key, and later no image.
        let saved = format!("saved-{name}");
        expect(&postread(dir.path(), &["extract", "--ciphertext", &image, "/enc", "-C", &saved]), 0);
        fs::remove_file(dir.path().join(&image)).unwrap();
        let restored = format!("restored-{name}");
        let from = ["extract", "--from-ciphertext", &saved, "-C", &restored];
        let locked = postread(dir.path(), &from);
        expect(&locked, 3);
        assert!(stderr(&locked).contains("this needs key"), "{locked:?}");
        expect(&postread(dir.path(), &[&from[..], &["--key", &key]].concat()), 0);
        assert_eq!(manifest(&dir.path().join(&restored)), wanted, "{name}");
    }
}

#[test]
fn unencrypted_images_extract_too() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["verity", "casefold"] {
        let image = unpack(dir.path(), name);
        expect(&postread(dir.path(), &["extract", &image, "/v", "-C", name, "--jobs=3"]), 0);
        assert_eq!(manifest(&dir.path().join(name)), text_of("tree.manifest"), "{name}");
    }
}

/// A second run takes what is there; a file that was cut, or left half written, is made anew.
#[test]
fn extraction_resumes() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    let args = ["extract", &image, "/enc", "-C", "out", "--key", &key, "--json"];
    let counts = |output: &std::process::Output| -> (u64, u64) {
        let report: Value = serde_json::from_str(&expect(output, 0)).unwrap();
        let summary = report["results"].as_array().unwrap().last().unwrap().clone();
        (summary["files"].as_u64().unwrap(), summary["already_there"].as_u64().unwrap())
    };
    assert_eq!(counts(&postread(dir.path(), &args)), (53, 0));
    let out = dir.path().join("out");
    fs::write(out.join("f65537"), "cut").unwrap();
    fs::remove_file(out.join("f4096")).unwrap();
    // What a killed run leaves where the file system has no files without names.
    let left = format!(".postread-{}", "0123456789abcdef".repeat(2));
    fs::write(out.join(&left), "half").unwrap();
    assert_eq!(counts(&postread(dir.path(), &args)), (2, 51));
    assert!(!out.join(left).exists());
    assert_eq!(manifest(&out), text_of("tree.manifest"));
}

#[test]
fn holes_stay_holes_and_times_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    for (name, top, key) in [("xts-pad16", "/enc", Some(key("key64.bin"))), ("verity", "/v", None)] {
        let image = unpack(dir.path(), name);
        let key: Vec<&str> = key.iter().flat_map(|key| ["--key", key]).collect();
        expect(&postread(dir.path(), &[&["extract", &image, top, "-C", name][..], &key].concat()), 0);
        let found = fs::metadata(dir.path().join(name).join("sparse")).unwrap();
        assert_eq!(found.len(), 1_048_577);
        assert!(found.blocks() * 512 < 100_000, "{name}: {} blocks", found.blocks());
        let bytes = fs::read(dir.path().join(&image)).unwrap();
        let key = key.get(1).map(|file| fs::read(file).unwrap());
        let (_, inode) = locate(&bytes, &format!("{top}/sub/deep"), key.as_deref());
        let deep = fs::metadata(dir.path().join(name).join("sub/deep")).unwrap();
        assert_eq!((deep.mtime(), deep.mtime_nsec()), (inode.mtime.seconds, inode.mtime.nanoseconds.into()));
        assert_eq!(deep.permissions().mode() & 0o7777, u32::from(inode.mode & 0o7777));
    }
}

/// A damaged file does not come out, the others do; with --keep-going its good blocks do too.
#[test]
fn damaged_files_are_left_out_or_kept_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity-enc");
    let (key_file, bytes) = (key("key64.bin"), fs::read(key("key64.bin")).unwrap());
    expect(&postread(dir.path(), &["extract", &image, "/enc", "-C", "good", "--key", &key_file]), 0);
    flip(&dir.path().join(&image), "/enc/f65537", 8192, Some(&bytes));
    let output = postread(dir.path(), &["extract", &image, "/enc", "-C", "out", "--key", &key_file]);
    expect(&output, 1);
    assert!(stderr(&output).contains("f65537: at byte 8192"), "{output:?}");
    let left: String =
        text_of("tree.manifest").lines().filter(|l| !l.ends_with("/f65537")).map(|l| format!("{l}\n")).collect();
    assert_eq!(manifest(&dir.path().join("out")), left);
    expect(&postread(dir.path(), &["extract", &image, "/enc", "-C", "kept", "--key", &key_file, "--keep-going"]), 1);
    let (good, kept) =
        (fs::read(dir.path().join("good/f65537")).unwrap(), fs::read(dir.path().join("kept/f65537")).unwrap());
    let mut wanted = good;
    wanted[8192..12288].fill(0);
    assert!(kept == wanted);
}

/// What mkfs put in comes out: hard links, extended attributes, pipes, modes; as root and as nobody.
#[test]
fn metadata_comes_out() {
    let Some(mke2fs) = postread_tests::require_tool("mke2fs") else { return };
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::write(tree.join("a"), "twice").unwrap();
    fs::hard_link(tree.join("a"), tree.join("d/b")).unwrap();
    fs::write(tree.join("setuid"), "s").unwrap();
    fs::set_permissions(tree.join("setuid"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::set_permissions(tree.join("d"), fs::Permissions::from_mode(0o555)).unwrap();
    let made = rustix::fs::mknodat(rustix::fs::CWD, tree.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0);
    made.unwrap();
    let set = rustix::fs::setxattr(tree.join("a"), "user.note", b"a value", rustix::fs::XattrFlags::empty());
    let xattrs = postread_tests::require("user xattrs", set).is_some();
    let mut command = Command::new(mke2fs);
    command.current_dir(&dir).args(["-q", "-t", "ext4", "-b", "1024", "-d", "tree", "image", "4M"]);
    postread_tests::run(&mut command);
    fs::set_permissions(tree.join("d"), fs::Permissions::from_mode(0o755)).unwrap();
    for (out, privileged) in [("plain", false), ("privileged", true)] {
        let mut args = vec!["extract", "image", "-C", out];
        args.extend(privileged.then_some("--privileged"));
        expect(&postread(dir.path(), &args), 0);
        let out = dir.path().join(out);
        let inode = |path: &str| fs::symlink_metadata(out.join(path)).unwrap().ino();
        assert_eq!(inode("a"), inode("d/b"));
        let mode = |path: &str| fs::symlink_metadata(out.join(path)).unwrap().mode();
        assert_eq!(mode("setuid") & 0o7777, if privileged { 0o4711 } else { 0o711 });
        assert_eq!((mode("d") & 0o7777, mode("pipe") & 0o170_000), (0o555, 0o010_000));
        if xattrs {
            let mut value = [0; 16];
            let n = rustix::fs::getxattr(out.join("a"), "user.note", &mut value).unwrap();
            assert_eq!(&value[..n], b"a value");
        }
        // A second run finds links and directories as they are.
        expect(&postread(dir.path(), &args), 0);
        assert_eq!(inode("a"), inode("d/b"));
        fs::set_permissions(out.join("d"), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Nothing of this needs root: nobody reads an image and extracts it.
#[test]
fn an_ordinary_user_extracts() {
    use std::os::unix::process::CommandExt;
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "xts-pad16");
    let program = dir.path().join("postread");
    copy_program(&program);
    fs::copy(key("key64.bin"), dir.path().join("key")).unwrap();
    for open in [dir.path().to_owned(), program.clone(), dir.path().join(&image), dir.path().join("key")] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let mut command = Command::new(&program);
    command.current_dir(&dir).args(["extract", &image, "/enc", "-C", "out", "--key", "key"]);
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    expect(&command.output().unwrap(), 0);
    assert_eq!(manifest(&dir.path().join("out")), text_of("tree.manifest"));
    if rustix::process::geteuid().is_root() {
        assert_eq!(fs::metadata(dir.path().join("out/f1")).unwrap().uid(), 65534);
    }
}

/// As many jobs as may be asked for, and few files that may be open: fewer threads, and no file fails.
#[test]
fn many_jobs_and_few_open_files() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    expect(&postread(dir.path(), &["extract", "--ciphertext", &image, "/enc", "-C", "saved"]), 0);
    // A soft limit below the hard one is raised; the hard one is kept.
    for limit in ["ulimit -n 40", "ulimit -n 64", "ulimit -S -n 32", "true"] {
        for from in [&format!("{image} /enc"), "--from-ciphertext saved"] {
            let script = format!("{limit}; exec \"$0\" extract {from} -C out --jobs=1024 --key {key}");
            let output = std::process::Command::new("bash")
                .current_dir(&dir)
                .args(["-c", &script, env!("CARGO_BIN_EXE_postread")])
                .output()
                .unwrap();
            expect(&output, 0);
            assert_eq!(manifest(&dir.path().join("out")), text_of("tree.manifest"), "{script}");
            fs::remove_dir_all(dir.path().join("out")).unwrap();
        }
    }
}
