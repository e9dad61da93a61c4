//! Split sparse images and partition tables: what is chosen, and what is missing.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::*;

/// The pieces of a split image are read together; of fewer, no file has zeros in place of what is missing.
#[test]
fn pieces_of_a_sparse_image_are_read_together() {
    let dir = tempfile::tempdir().unwrap();
    let tools = ["img2simg", "simg2simg", "mke2fs"].map(postread_tests::require_tool);
    let [Some(img2simg), Some(simg2simg), Some(mke2fs)] = tools else { return };
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let files = ["f1", "f2", "f3"].map(|name| {
        let bytes = postread_tests::noise(1_500_000, name.as_bytes()[1].into());
        fs::write(tree.join(name), &bytes).unwrap();
        (name, bytes)
    });
    let run = |program: &std::path::Path, args: &[&str]| {
        postread_tests::run(Command::new(program).current_dir(dir.path()).args(args));
    };
    run(&mke2fs, &["-q", "-F", "-t", "ext4", "-b", "4096", "-O", "^has_journal", "-d", "tree", "raw", "8M"]);
    run(&img2simg, &["raw", "sparse"]);
    run(&simg2simg, &["sparse", "piece", "2000000"]);
    let mut pieces: Vec<String> =
        (0..).map(|i| format!("piece.{i}")).take_while(|p| dir.path().join(p).exists()).collect();
    assert!(pieces.len() >= 3, "{pieces:?}");
    let cat = |pieces: &[String], name: &str| {
        let mut args = vec!["cat".to_owned(), pieces[0].clone(), name.to_owned()];
        args.extend(pieces[1..].iter().map(|piece| format!("--piece={piece}")));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        postread(dir.path(), &args)
    };
    for (name, bytes) in &files {
        assert_eq!(&cat(&pieces, name).stdout, bytes, "{name}");
        let alone = cat(&pieces[..1], name);
        assert!(bytes.starts_with(&alone.stdout), "{name}: zeros in place of what is in another piece");
        assert_eq!(alone.status.success(), alone.stdout == *bytes, "{name}");
    }
    assert!(files.iter().any(|(name, _)| cat(&pieces[..1], name).status.code() == Some(4)));
    // In any order; but not one twice, none of another image, and none beside what is no sparse image.
    pieces.reverse();
    assert_eq!(cat(&pieces, "f2").stdout, files[1].1);
    let first = pieces.last().unwrap().clone();
    let failed = |pieces: &[&str], why: &str| {
        let pieces: Vec<String> = pieces.iter().map(|&piece| piece.to_owned()).collect();
        let output = cat(&pieces, "f1");
        expect(&output, 2);
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    };
    failed(&[&first, &first], "both hold byte");
    failed(&["raw", &first], "not a sparse image");
    failed(&[&pieces[0]], "give all pieces");
}

/// Without a choice the partitions are listed with what they hold, their sizes and names; a container is none of them.
#[test]
fn partitions_are_listed_with_what_they_hold() {
    let dir = tempfile::tempdir().unwrap();
    let Some(sfdisk) = postread_tests::require_tool("sfdisk") else { return };
    let image = fs::read(dir.path().join(unpack(dir.path(), "verity"))).unwrap();
    let table = |script: &str| {
        let disk = fs::File::create(dir.path().join("disk")).unwrap();
        disk.set_len(64 << 20).unwrap();
        let mut child = Command::new(&sfdisk)
            .args(["-q", "--no-reread", "--no-tell-kernel"])
            .arg(dir.path().join("disk"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    };
    table("label: gpt\nstart=2048,size=40MiB,name=\"system\"\nsize=5MiB,type=U,name=\"boot\"\n");
    let disk = fs::File::options().write(true).open(dir.path().join("disk")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&disk, &image, 2048 * 512).unwrap();
    let output = postread(dir.path(), &["ls", "disk"]);
    expect(&output, 2);
    let message = stderr(&output);
    assert!(message.contains("1 (ext4, 40 MiB \"system\")") && message.contains("5 MiB \"boot\")"), "{message}");
    assert!(message.contains("--part"), "{message}");
    expect(&postread(dir.path(), &["ls", "disk", "--part=1"]), 0);
    let output = postread(dir.path(), &["ls", "disk", "--part=7"]);
    expect(&output, 2);
    assert!(stderr(&output).contains("there is no partition 7: there are 1 (ext4"), "{}", stderr(&output));
    table("label: dos\n2048,20480,83\n24576,40960,5\n26624,2048,83\n");
    let message = stderr(&postread(dir.path(), &["ls", "disk"]));
    assert!(message.contains("1 (") && message.contains("5 (") && !message.contains("2 ("), "{message}");
    expect(&postread(dir.path(), &["ls", "disk", "--part=2"]), 2);
}
