//! `extract --digests`: no line of the list passes in silence.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::common::*;
use crate::verify::{cases, digests};

/// Whatever whoever made the image put in the place of a listed file, the run fails.
#[test]
fn what_stands_in_the_place_of_a_listed_file_fails() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity");
    fs::write(dir.path().join("list"), digests(&cases()[0])).unwrap();
    fs::write(dir.path().join("evil"), "EVILEVIL").unwrap();
    let whole = fs::read(dir.path().join(&image)).unwrap();
    for (i, requests) in IN_PLACE.into_iter().enumerate() {
        fs::write(dir.path().join(&image), &whole).unwrap();
        let Some(()) = debugfs(dir.path(), &image, &["rm /v/f4096"]) else { return };
        debugfs(dir.path(), &image, requests);
        for require in [&[][..], &["--require-digests"]] {
            let out = format!("out{i}{}", require.len());
            let output = postread(dir.path(), &[&["extract", &image, "-C", &out, "--digests=list"], require].concat());
            let text = expect(&output, 1);
            assert!(text.contains("8 files verified against given digests"), "{requests:?}: {text}");
            // A link is followed: what it leads to has to have the digest.
            let name = if requests[0] == "write evil /v/evil" { "v/evil: " } else { "v/f4096: " };
            assert!(stderr(&output).contains(name), "{requests:?}: {output:?}");
        }
    }
    fs::write(dir.path().join(&image), &whole).unwrap();
    debugfs(dir.path(), &image, LINK_ABOVE);
    expect(&postread(dir.path(), &["extract", &image, "-C", "above", "--digests=list"]), 1);
    fs::write(dir.path().join(&image), &whole).unwrap();
    let odd = digests(&cases()[0]).replace("/v/f4096", "/v/sub/../f4096");
    fs::write(dir.path().join("odd"), odd).unwrap();
    expect(&postread(dir.path(), &["extract", &image, "-C", "odd-out", "--digests=odd"]), 1);
}

/// A file of several names is checked against the digests of all.
#[test]
fn all_names_of_a_file_are_checked_against_their_lines() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity");
    let requests = ["ln /v/f4096 /v/zzz", "ln /v/f4096 /v/aaa", "set_inode_field /v/f4096 links_count 3"];
    let Some(()) = debugfs(dir.path(), &image, &requests) else { return };
    let all = digests(&cases()[0]);
    let find = |name: &str| {
        let line = all.lines().find(|line| line.ends_with(name)).unwrap();
        line.split_once(' ').unwrap().0.to_owned()
    };
    let (right, wrong) = (find("/v/f4096"), find("/v/f4097"));
    let names = ["aaa", "f4096", "zzz"];
    let rest: String = all.lines().filter(|l| !l.ends_with("/v/f4096")).map(|l| format!("{l}\n")).collect();
    // For each name: its line has the right digest, a wrong one, or it has none.
    for case in 0..27 {
        let lines = [case % 3, case / 3 % 3, case / 9];
        let mut list = rest.clone();
        for (name, line) in names.iter().zip(lines) {
            match line {
                0 => {}
                1 => list += &format!("{right} /v/{name}\n"),
                _ => list += &format!("{wrong} /v/{name}\n"),
            }
        }
        fs::write(dir.path().join("list"), &list).unwrap();
        let (vouched, denied) = (lines.contains(&1), lines.contains(&2));
        let out = format!("out{case}");
        // The second run finds there what the first one made.
        for _ in 0..2 {
            let args = ["extract", &image, "-C", &out, "--digests=list", "--require-digests"];
            let output = postread(dir.path(), &args);
            let text = expect(&output, i32::from(denied || !vouched));
            let verified = 8 + usize::from(vouched);
            assert!(text.contains(&format!("{verified} files verified against")), "{lines:?} {text}{output:?}");
            for (name, line) in names.iter().zip(lines) {
                let made = dir.path().join(&out).join("v").join(name).exists();
                assert_eq!(made, vouched && line != 2, "{lines:?} {name} {output:?}");
                if line == 2 {
                    assert!(stderr(&output).contains(&format!("v/{name}: ")), "{lines:?} {name} {output:?}");
                }
            }
        }
        // Changed in place, with its size and time: found under whichever name.
        if vouched && !denied {
            let path = dir.path().join(&out).join("v/aaa");
            let (good, time) = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap());
            let mut bad = good.clone();
            bad[99] ^= 1;
            fs::write(&path, &bad).unwrap();
            fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            let text = expect(&postread(dir.path(), &["extract", &image, "-C", &out, "--digests=list"]), 0);
            assert!(text.contains("1 existing files had another digest"), "{text}");
            for name in names {
                let path = dir.path().join(&out).join("v").join(name);
                assert!(fs::read(&path).unwrap() == good && fs::metadata(&path).unwrap().nlink() == 3, "{lines:?}");
            }
        }
    }
}

/// A list of other files than those that are extracted verifies nothing; one of files behind a key needs the key.
#[test]
fn a_list_of_other_files_verifies_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity");
    fs::write(dir.path().join("list"), digests(&cases()[0])).unwrap();
    let list: String =
        digests(&cases()[0]).lines().filter(|l| l.ends_with("/v/f4096")).map(|l| format!("{l}\n")).collect();
    fs::write(dir.path().join("one"), list).unwrap();
    let extract = |path: &str, out: &str, list: &str| {
        postread(dir.path(), &["extract", &image, path, "-C", out, "--digests", list])
    };
    expect(&extract("/v/sub", "all", "list"), 0);
    let output = extract("/v/sub", "sub", "one");
    expect(&output, 5);
    assert!(stderr(&output).contains("the list of digests names none of the extracted files"), "{output:?}");
    expect(&extract("/v/f4096", "file", "one"), 0);
    expect(&extract("/v/f4097", "other", "one"), 5);
    let (locked, key) = (unpack(dir.path(), "verity-enc"), key("key64.bin"));
    let case = &cases()[1];
    fs::write(dir.path().join("locked"), digests(case)).unwrap();
    let output = postread(dir.path(), &["extract", &locked, "-C", "no-key", "--digests=locked"]);
    expect(&output, 3);
    assert!(stderr(&output).contains("its directory is locked"), "{output:?}");
    expect(&postread(dir.path(), &["extract", &locked, "-C", "key", "--digests=locked", "--key", &key]), 0);
}
