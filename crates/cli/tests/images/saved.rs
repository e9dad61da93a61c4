//! Saved ciphertext that was damaged before it is restored.

use std::fs;

use sha2::{Digest, Sha256};

use crate::common::*;

/// A file that is shorter, longer or other than what was saved is named and not delivered; the others are.
#[test]
fn damaged_ciphertext_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "verity-enc"), key("key64.bin"));
    expect(&postread(dir.path(), &["extract", "--ciphertext", &image, "/enc", "-C", "saved"]), 0);
    let bytes = fs::read(dir.path().join(&image)).unwrap();
    let key_bytes = fs::read(&key).unwrap();
    let (_, inode) = locate(&bytes, "/enc/f65537", Some(&key_bytes));
    let saved = dir.path().join(format!("saved/data/{}", inode.ino));
    let good = fs::read(&saved).unwrap();
    let mut flipped = good.clone();
    flipped[8192] ^= 1;
    let mut longer = good.clone();
    longer.extend([0; 4096]);
    let left: String =
        text_of("tree.manifest").lines().filter(|l| !l.ends_with("/f65537")).map(|l| format!("{l}\n")).collect();
    let damaged = [&good[..good.len() - 4096], &good[..65536], &good[..100], b"", &longer, &flipped];
    for (i, damaged) in damaged.into_iter().enumerate() {
        fs::write(&saved, damaged).unwrap();
        for keep_going in [&[][..], &["--keep-going"]] {
            let out = format!("out{i}-{}", keep_going.len());
            let args = ["extract", "--from-ciphertext", "saved", "-C", &out, "--key", &key];
            let output = postread(dir.path(), &[&args[..], keep_going].concat());
            expect(&output, 1);
            let message = format!("saved/data/{}: ", inode.ino);
            assert!(stderr(&output).contains(&message) && stderr(&output).contains("f65537: "), "{i} {output:?}");
            assert_eq!(manifest(&dir.path().join(out)), left, "{i}");
        }
    }
    // A second run of saving replaces what is not the image's, and passes over what is.
    fs::write(&saved, &flipped).unwrap();
    let time = std::time::UNIX_EPOCH
        + std::time::Duration::new(inode.mtime.seconds.try_into().unwrap(), inode.mtime.nanoseconds);
    fs::File::options().write(true).open(&saved).unwrap().set_modified(time).unwrap();
    for replaced in [true, false] {
        let output = postread(dir.path(), &["extract", "--ciphertext", &image, "/enc", "-C", "saved"]);
        expect(&output, 0);
        let message = format!("data/{}: the existing file differs from the image: replaced", inode.ino);
        assert_eq!(stderr(&output).contains(&message), replaced, "{output:?}");
        assert!(fs::read(&saved).unwrap() == good);
    }
    let args = ["extract", "--from-ciphertext", "saved", "-C", "again", "--key", &key];
    expect(&postread(dir.path(), &args), 0);
    assert_eq!(manifest(&dir.path().join("again")), text_of("tree.manifest"));
}

/// A manifest with a last line for what it now says.
fn sealed(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.pop();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let sha256 = hex::encode(Sha256::digest(&text));
    format!("{text}{{\"lines\":{},\"sha256\":\"{sha256}\"}}\n", lines.len())
}

/// A manifest that was cut off, at a line or within one, or changed, is reported; what is there is restored if asked for.
#[test]
fn a_manifest_that_is_not_complete_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    expect(&postread(dir.path(), &["extract", "--ciphertext", &image, "/enc", "-C", "saved"]), 0);
    let manifest = dir.path().join("saved/manifest.jsonl");
    let text = fs::read_to_string(&manifest).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let restore = |out: &str, rest: &[&str]| {
        let args = ["extract", "--from-ciphertext", "saved", "-C", out, "--key", &key];
        postread(dir.path(), &[&args[..], rest].concat())
    };
    let cut = |n: usize| lines[..n].iter().map(|line| format!("{line}\n")).collect::<String>();
    let (cut, less) = (cut(lines.len() - 1), cut(10));
    let middle = text.replacen("\"uid\":0", "\"uid\":1", 1);
    let twice = format!("{text}{}\n", lines[5]);
    let last = lines[lines.len() - 1];
    let short = format!("{less}{last}\n");
    for (i, (broken, status, what)) in [
        (&cut, 2, "cut off"),
        (&less, 2, "cut off after line 10"),
        (&less[..less.len() - 20].to_owned(), 2, "cut off"),
        (&short, 2, "lines, found 10"),
        (&twice, 2, "there is more after"),
        (&middle, 1, "expected SHA-256"),
    ]
    .into_iter()
    .enumerate()
    {
        fs::write(&manifest, broken).unwrap();
        let output = restore(&format!("out{i}"), &[]);
        expect(&output, status);
        assert!(stderr(&output).contains(what), "{output:?}");
        assert!(!dir.path().join(format!("out{i}")).exists(), "{what}");
        let output = restore(&format!("out{i}"), &["--keep-going"]);
        expect(&output, status);
        assert!(fs::read_dir(dir.path().join(format!("out{i}"))).unwrap().count() > 3, "{what}");
    }
    // A broken line is named, with its inode; contents that nothing names are reported.
    let entry = lines[3];
    let inode = serde_json::from_str::<serde_json::Value>(entry).unwrap()["inode"].to_string();
    let broken = text.replacen(entry, &entry.replacen("\"mode\":", "\"other\":", 1), 1);
    fs::write(&manifest, sealed(&broken)).unwrap();
    let output = restore("out", &[]);
    expect(&output, 2);
    assert!(stderr(&output).contains(&format!("line 4: inode {inode}: missing field `mode`")), "{output:?}");
    fs::write(&manifest, &text).unwrap();
    fs::write(dir.path().join("saved/data/4000000000"), "x").unwrap();
    let output = restore("all", &[]);
    expect(&output, 0);
    assert!(stderr(&output).contains("data/4000000000: not named in the manifest"), "{output:?}");
    assert_eq!(crate::common::manifest(&dir.path().join("all")), text_of("tree.manifest"));
}

/// A second save does not take the place of another one, whose nonces would be lost.
#[test]
fn another_save_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (unpack(dir.path(), "xts-pad16"), unpack(dir.path(), "lblk64"));
    let save = |image: &str, path: &str| postread(dir.path(), &["extract", "--ciphertext", image, path, "-C", "saved"]);
    expect(&save(&one, "/enc"), 0);
    let read = || fs::read(dir.path().join("saved/manifest.jsonl")).unwrap();
    let before = read();
    for (image, path, what) in [(&other, "/enc", "another file system"), (&one, "/", "another directory")] {
        let output = save(image, path);
        expect(&output, 2);
        assert!(stderr(&output).contains(what) && stderr(&output).contains("save into another"), "{output:?}");
        assert_eq!(read(), before);
    }
    expect(&save(&one, "/enc"), 0);
    assert_eq!(read(), before);
}

/// A wrong key of a v1 policy restores nothing.
#[test]
fn a_wrong_v1_key_restores_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (image, right) = (unpack(dir.path(), "v1-xts"), key("key64.bin"));
    expect(&postread(dir.path(), &["extract", "--ciphertext", &image, "/enc", "-C", "saved"]), 0);
    fs::write(dir.path().join("wrong"), (0..64u8).map(|i| i ^ 0x5c).collect::<Vec<_>>()).unwrap();
    let restore = |out: &str, key: &str| {
        let key = format!("0000111122223333={key}");
        postread(dir.path(), &["extract", "--from-ciphertext", "saved", "-C", out, "--key", &key])
    };
    let output = restore("out", "wrong");
    expect(&output, 3);
    assert!(stderr(&output).contains("probably it is the wrong key"), "{output:?}");
    assert_eq!(fs::read_dir(dir.path().join("out")).unwrap().count(), 0);
    expect(&restore("out", &right), 0);
    assert_eq!(manifest(&dir.path().join("out")), text_of("tree.manifest"));
}

/// What the manifest must say of a file.
#[test]
fn a_file_without_a_digest_is_not_restored() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    expect(&postread(dir.path(), &["extract", "--ciphertext", &image, "/enc", "-C", "saved"]), 0);
    let manifest = dir.path().join("saved/manifest.jsonl");
    let text = fs::read_to_string(&manifest).unwrap();
    for (i, to) in ["\"other\":", "\"sha256\":\"00\",\"other\":"].into_iter().enumerate() {
        fs::write(&manifest, sealed(&text.replacen("\"sha256\":", to, 1))).unwrap();
        let out = format!("out{i}");
        let output = postread(dir.path(), &["extract", "--from-ciphertext", "saved", "-C", &out, "--key", &key]);
        expect(&output, 2);
        assert!(stderr(&output).contains("sha256"), "{output:?}");
    }
}

/// A file of saved ciphertext that is not there, or is none: the input is not whole, and the rest is restored.
#[test]
fn missing_ciphertext_is_malformed_input() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    let key_bytes = fs::read(&key).unwrap();
    expect(&postread(dir.path(), &["extract", "--ciphertext", &image, "/enc", "-C", "saved"]), 0);
    let (_, inode) = locate(&fs::read(dir.path().join(&image)).unwrap(), "/enc/f65537", Some(&key_bytes));
    let saved = dir.path().join(format!("saved/data/{}", inode.ino));
    let left: String =
        text_of("tree.manifest").lines().filter(|l| !l.ends_with("/f65537")).map(|l| format!("{l}\n")).collect();
    fs::remove_file(&saved).unwrap();
    for (out, message) in [("missing", "missing: what was saved is not complete"), ("directory", "not a regular file")]
    {
        let output = postread(dir.path(), &["extract", "--from-ciphertext", "saved", "-C", out, "--key", &key]);
        expect(&output, 2);
        assert!(stderr(&output).contains(&format!("saved/data/{}: {message}", inode.ino)), "{}", stderr(&output));
        assert_eq!(manifest(&dir.path().join(out)), left);
        let _ = fs::create_dir(&saved);
    }
}

/// What is not encrypted is not saved, and that is reported.
#[test]
fn what_is_left_out_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let plain = unpack(dir.path(), "verity");
    let files = expect(&postread(dir.path(), &["ls", "-R", "-l", &plain]), 0);
    let files = files.lines().filter(|line| !line.starts_with('d')).count();
    let args = ["extract", "--ciphertext", &plain, "-C", "saved"];
    let text = expect(&postread(dir.path(), &args), 0);
    assert!(text.contains(&format!("; {files} files and links that are not encrypted were left out")), "{text}");
    let json = expect(&postread(dir.path(), &[&args[..], &["--json"]].concat()), 0);
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["results"]["not_encrypted"], files);
    let encrypted = unpack(dir.path(), "xts-pad16");
    let text = expect(&postread(dir.path(), &["extract", "--ciphertext", &encrypted, "/enc", "-C", "other"]), 0);
    assert!(!text.contains("left out"), "{text}");
}

/// Each name of a file that can't be restored is reported, and malformed input is not a failing system.
#[test]
fn a_link_to_what_failed_has_its_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    expect(&postread(dir.path(), &["extract", "--ciphertext", &image, "-C", "saved"]), 0);
    let path = dir.path().join("saved/manifest.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let file = text.lines().find(|line| line.contains(r#""type":"file""#)).unwrap();
    let entry: serde_json::Value = serde_json::from_str(file).unwrap();
    let inode = entry["inode"].as_u64().unwrap();
    let plain = r#"{"inode":4000000,"type":"directory","directory":2,"raw_name":"78","mode":16877,"uid":0,"gid":0,"links":2,"size":0,"atime":[0,0],"mtime":[0,0]}"#;
    let mut alias = entry.clone();
    for (field, value) in [("links", 2.into()), ("directory", 4_000_000.into()), ("raw_name", "616c696173".into())] {
        alias[field] = value;
    }
    let two = serde_json::to_string(&serde_json::json!(entry)).unwrap().replace(r#""links":1"#, r#""links":2"#);
    fs::write(&path, sealed(&text.replace(file, &format!("{two}\n{plain}\n{alias}")))).unwrap();
    let args = |out| ["extract", "--from-ciphertext", "saved", "-C", out, "--key", &key];
    expect(&postread(dir.path(), &args("good")), 0);
    assert!(dir.path().join("good/x/alias").exists());
    fs::remove_file(dir.path().join(format!("saved/data/{inode}"))).unwrap();
    let output = postread(dir.path(), &args("bad"));
    expect(&output, 2);
    assert_eq!(stderr(&output).matches("missing: what was saved is not complete").count(), 2, "{}", stderr(&output));
}

/// What a message quotes of a file does not reach a terminal as it is.
#[test]
fn messages_send_no_controls_to_a_terminal() {
    let Some(script) = postread_tests::require_tool("script") else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("saved/data")).unwrap();
    let header = r#"{"format":"postread-ciphertext-3","fs_uuid":"00000000000000000000000000000000","block_size":4096,"root":2,"root_context":null}"#;
    fs::write(dir.path().join("saved/manifest.jsonl"), format!("{header}\n{{\"type\":\"\\u001b[31mred\"}}\n")).unwrap();
    let command = format!("{} extract -q --keep-going --from-ciphertext saved -C out", env!("CARGO_BIN_EXE_postread"));
    let mut run = std::process::Command::new(script);
    let output = run.current_dir(&dir).args(["-qec", &command, "/dev/null"]).output().unwrap();
    let text = expect(&output, 2);
    assert!(text.contains("\\x1b[31mred") && !text.contains('\x1b'), "{text:?}");
}

/// Pipes, sockets and devices of an encrypted directory are saved, and restored as `extract` makes them.
#[test]
fn pipes_sockets_and_devices_are_saved() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    let Some(debugfs) = postread_tests::require_tool("debugfs") else { return };
    // Ciphertext that decrypts to some name: nobody knows which, and all are names.
    let (pipe, socket) = ("ciphertext-pipe-", "ciphertext-sock-");
    let script = format!(
        "cd /enc\nmknod {pipe} p\nset_inode_field {pipe} mode 010640\nset_inode_field {pipe} mtime 86400\nmknod {socket} p\n\
         set_inode_field {socket} mode 0140600\nmknod ciphertext-chrd- c 1 3\nmknod ciphertext-dev0- b 259 60000\n"
    );
    fs::write(dir.path().join("script"), script).unwrap();
    let mut command = std::process::Command::new(debugfs);
    postread_tests::run(command.current_dir(&dir).args(["-w", "-f", "script", &image]));
    let text = expect(&postread(dir.path(), &["extract", "--ciphertext", &image, "/enc", "-C", "saved"]), 0);
    assert!(text.contains("4 pipes, sockets and devices"), "{text}");
    let list = |top: &str| {
        let mut command = std::process::Command::new("find");
        command.current_dir(dir.path().join(top)).args([".", "-mindepth", "1", "-printf", "%P %y %m %T@ "]);
        let output =
            command.args(["(", "-type", "c", "-o", "-type", "b", ")", "-exec", "stat", "-c", "%t:%T", "{}", ";"]);
        let output = output.args(["-o", "-printf", "\n"]).output().unwrap();
        let mut lines: Vec<Vec<u8>> = output.stdout.split(|&b| b == b'\n').map(<[u8]>::to_vec).collect();
        lines.sort();
        lines
    };
    let mut options = vec![&[][..]];
    if postread_tests::require_root().is_some() {
        options.push(&["--privileged"][..]);
    }
    for (i, rest) in options.into_iter().enumerate() {
        let (plain, restored) = (format!("plain{i}"), format!("restored{i}"));
        let run = |args: &[&str]| expect(&postread(dir.path(), &[args, &["--key", &key], rest].concat()), 0);
        run(&["extract", &image, "/enc", "-C", &plain]);
        let text = run(&["extract", "--from-ciphertext", "saved", "-C", &restored]);
        assert_eq!(text.contains("left out by design: 2 device nodes"), rest.is_empty(), "{text}");
        let found = list(&restored);
        assert_eq!(found, list(&plain));
        let count = |kind: &str| found.iter().filter(|line| line.windows(3).any(|w| w == kind.as_bytes())).count();
        assert_eq!((count(" p "), count(" s "), count(" c ")), (1, 1, rest.len()), "{rest:?}");
    }
}
