//! Paths through symbolic links of an image: followed by every command, never out of it, and not for ever.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::common::*;
use crate::verify::{cases, digests};

/// A tree as distributions have it since /usr was merged, and some links that are odd. `None` without `mke2fs`.
fn merged_usr(dir: &Path) -> Option<String> {
    let mke2fs = postread_tests::require_tool("mke2fs")?;
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("usr/bin")).unwrap();
    fs::create_dir_all(tree.join("deep/er")).unwrap();
    fs::write(tree.join("usr/bin/true"), "the program").unwrap();
    fs::write(dir.join("true"), "of the host").unwrap();
    for (target, link) in [
        ("usr/bin", "bin"),
        ("/usr/bin/true", "deep/absolute"),
        ("../../../../../../usr/bin/./true", "deep/er/above"),
        ("true", "usr/bin/again"),
        ("loop", "loop"),
        ("b", "a"),
        ("a", "b"),
        ("nowhere", "dangling"),
        ("usr/bin/true/", "slash"),
        ("..", "deep/up"),
    ] {
        symlink(target, tree.join(link)).unwrap();
    }
    // A chain of 40 links is followed, one of 41 is not.
    for i in 1..=41 {
        let target = if i == 1 { "usr/bin/true".to_owned() } else { format!("chain{}", i - 1) };
        symlink(target, tree.join(format!("chain{i}"))).unwrap();
    }
    let mut command = Command::new(mke2fs);
    command.current_dir(dir).args(["-q", "-F", "-t", "ext4", "-d", "tree", "links.img", "8M"]);
    postread_tests::run(&mut command);
    Some("links.img".to_owned())
}

#[test]
fn links_are_followed_within_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = merged_usr(dir.path()) else { return };
    for path in [
        "/bin/true",
        "bin/again",
        "deep/absolute",
        "/deep/er/above",
        "chain1",
        "chain40",
        "/deep/up/bin/true",
        "/bin/./true",
    ] {
        assert_eq!(expect(&postread(dir.path(), &["cat", &image, path]), 0), "the program", "{path}");
        let listed = expect(&postread(dir.path(), &["ls", &image, path]), 0);
        assert_eq!(listed, "true\n", "{path}");
        let inspected = expect(&postread(dir.path(), &["inspect", &image, path]), 0);
        assert!(inspected.contains(": file, mode"), "{path}: {inspected}");
        let out = path.replace('/', "_");
        expect(&postread(dir.path(), &["extract", "-q", &image, path, "-C", &out]), 0);
        assert_eq!(fs::read_to_string(dir.path().join(&out).join("true")).unwrap(), "the program");
        // Nothing to verify in it, which is not "no such file".
        expect(&postread(dir.path(), &["verify", &image, path]), 5);
    }
    assert_eq!(expect(&postread(dir.path(), &["ls", &image, "/bin"]), 0), "again\ntrue\n");
}

#[test]
fn links_that_lead_nowhere_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = merged_usr(dir.path()) else { return };
    for (path, why) in [
        ("/loop", "too many levels of symbolic links"),
        ("/a", "too many levels of symbolic links"),
        ("/b/x", "too many levels of symbolic links"),
        ("/chain41", "too many levels of symbolic links"),
        ("/dangling", "no such file: /nowhere"),
        ("/slash", "is not a directory"),
        ("/bin/true/x", "is not a directory"),
        ("/bin/../true", "`..` has no meaning"),
    ] {
        for command in ["cat", "ls", "inspect", "verify"] {
            let output = postread(dir.path(), &[command, &image, path]);
            expect(&output, 2);
            assert!(stderr(&output).contains(why), "{command} {path}: {}", stderr(&output));
        }
    }
}

#[test]
fn the_last_link_is_not_followed_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = merged_usr(dir.path()) else { return };
    let listed = expect(&postread(dir.path(), &["ls", "-l", "--no-follow", &image, "/bin"]), 0);
    assert!(listed.contains("bin -> usr/bin"), "{listed}");
    let listed = expect(&postread(dir.path(), &["ls", "-l", "--no-follow", &image, "/bin/again"]), 0);
    assert!(listed.contains("again -> true"), "{listed}");
    let inspected = expect(&postread(dir.path(), &["inspect", "--no-follow", &image, "/loop"]), 0);
    assert!(inspected.contains(": link, mode"), "{inspected}");
    let output = postread(dir.path(), &["cat", "--no-follow", &image, "/bin/again"]);
    expect(&output, 2);
    assert!(stderr(&output).contains("/bin/again: is a link"), "{}", stderr(&output));
    // A slash says that a directory is meant, as in the kernel.
    let listed = expect(&postread(dir.path(), &["ls", "--no-follow", &image, "/bin/"]), 2);
    assert_eq!(listed, "");
}

/// A list may name a file through links: what it leads to has to have the digest.
#[test]
fn listed_paths_lead_through_links() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity");
    let Some(()) = debugfs(dir.path(), &image, &["symlink /alias v", "symlink /v/other f4096"]) else { return };
    let list = digests(&cases()[0]).replace("/v/", "/alias/").replace("/alias/f4096", "/alias/other");
    fs::write(dir.path().join("list"), &list).unwrap();
    let text = expect(&postread(dir.path(), &["verify", &image, "--digests=list", "--require-digests"]), 0);
    assert!(text.contains("9 of 9 files are good") && !text.contains("self-consistent"), "{text}");
    let args = ["extract", &image, "-C", "out", "--digests=list", "--require-digests"];
    let text = expect(&postread(dir.path(), &args), 0);
    assert!(text.contains("9 files verified against given digests"), "{text}");
    // A file that is listed under its own name and, through a link, with another digest.
    let other = list.lines().find(|line| line.ends_with("f4097")).unwrap().replace("f4097", "f8192");
    let two = format!("{}{}\n", digests(&cases()[0]), other.replace("/alias/f8192", "/alias/f4096"));
    fs::write(dir.path().join("two"), two).unwrap();
    let output = postread(dir.path(), &["verify", &image, "--digests=two"]);
    expect(&output, 1);
    assert!(stderr(&output).contains("for which the list has another digest"), "{}", stderr(&output));
    // A wrong digest through a link fails, as it does without.
    let first = list.lines().next().unwrap();
    let (digest, path) = first.split_once(' ').unwrap();
    let flipped = if digest.ends_with('0') { "1" } else { "0" };
    let wrong = list.replacen(first, &format!("{}{flipped} {path}", &digest[..digest.len() - 1]), 1);
    fs::write(dir.path().join("wrong"), wrong).unwrap();
    expect(&postread(dir.path(), &["verify", &image, "--digests=wrong"]), 1);
}
