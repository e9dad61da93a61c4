//! `verify` and `cat` of files with fs-verity: bits flipped in data, tree and descriptor, encrypted or not.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::*;

pub(crate) struct Case {
    name: &'static str,
    top: &'static str,
    key: Option<Vec<u8>>,
    option: Vec<String>,
}

pub(crate) fn cases() -> Vec<Case> {
    let case = |name, top, key: Option<&str>| Case {
        name,
        top,
        key: key.map(|file| fs::read(crate::common::key(file)).unwrap()),
        option: key.map(|file| vec!["--key".to_owned(), crate::common::key(file)]).unwrap_or_default(),
    };
    vec![
        case("verity", "/v", None),
        case("verity-enc", "/enc", Some("key64.bin")),
        case("verity-adiantum", "/enc", Some("key32.bin")),
    ]
}

fn run(dir: &Path, case: &Case, args: &[&str]) -> std::process::Output {
    let option: Vec<&str> = case.option.iter().map(String::as_str).collect();
    postread(dir, &[args, &option].concat())
}

/// Reading is done by threads: where the system gives none (with such a stack), that is told.
#[test]
fn a_system_without_threads() {
    let dir = tempfile::tempdir().unwrap();
    let case = &cases()[0];
    let image = unpack(dir.path(), case.name);
    let alone = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_postread"));
        command.current_dir(dir.path()).env("RUST_MIN_STACK", (1u64 << 46).to_string()).args(args).output().unwrap()
    };
    for queue in ["--queue=inline", "--queue=bound", "--queue=unbound"] {
        let output = alone(&["verify", &image, queue]);
        expect(&output, 4);
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }
}

/// The kernel's digests, as a list with paths of the image.
pub(crate) fn digests(case: &Case) -> String {
    text_of(&format!("{}.verity", case.name))
        .lines()
        .map(|l| l.replacen(' ', &format!(" {}/", case.top), 1) + "\n")
        .collect()
}

#[test]
fn good_files_are_self_consistent_and_verified_against_digests() {
    let dir = tempfile::tempdir().unwrap();
    for case in cases() {
        let image = unpack(dir.path(), case.name);
        let text = expect(&run(dir.path(), &case, &["verify", &image]), 0);
        assert_eq!(text.matches(": self-consistent,").count(), 9, "{text}");
        assert!(!text.contains("verified"), "{text}");
        fs::write(dir.path().join("list"), digests(&case)).unwrap();
        for policy in ["--queue=inline", "--queue=bound", "--queue=unbound"] {
            let text = expect(&run(dir.path(), &case, &["verify", &image, "--digests=list", policy, "--jobs=3"]), 0);
            assert_eq!(text.matches(": verified,").count(), 9, "{text}");
        }
        // Another digest, a path that is not there, a file without fs-verity: nothing of that passes.
        let (top, list) = (case.top, digests(&case));
        let line = list.lines().next().unwrap();
        let (digest, path) = line.split_once(' ').unwrap();
        let last = if digest.ends_with('0') { "1" } else { "0" };
        let other = format!("{}{last}", &digest[..digest.len() - 1]);
        for bad in [format!("{other} {path}"), format!("{digest} {top}/none"), format!("{digest} {top}/f100")] {
            fs::write(dir.path().join("list"), bad).unwrap();
            expect(&run(dir.path(), &case, &["verify", &image, "--digests=list"]), 1);
        }
        expect(&run(dir.path(), &case, &["verify", &image, path, "--digest", digest]), 0);
        expect(&run(dir.path(), &case, &["verify", &image, path, "--digest", &other]), 1);
        expect(&run(dir.path(), &case, &["cat", &image, path, "--digest", &other]), 1);
        expect(&run(dir.path(), &case, &["verify", &image, &format!("{top}/many")]), 5);
    }
}

#[test]
fn an_image_without_verity_has_nothing_to_verify() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "xts-pad16");
    expect(&postread(dir.path(), &["verify", &image, "--key", &key("key64.bin")]), 5);
}

#[test]
fn a_flipped_bit_is_named_with_file_block_level_and_hashes() {
    let dir = tempfile::tempdir().unwrap();
    for case in cases() {
        let image = unpack(dir.path(), case.name);
        let whole = fs::read(dir.path().join(&image)).unwrap();
        let path = format!("{}/f65537", case.top);
        let good = run(dir.path(), &case, &["cat", &image, &path]).stdout;
        let (tree, descriptor) = {
            let image = open(&whole, case.key.as_deref());
            let inode = image.resolve(path.as_bytes()).unwrap();
            let location = image.verity(&inode).unwrap().unwrap().location;
            (location.tree_offset, location.descriptor_offset)
        };
        for at in [0, 8192 + 5, 65536] {
            fs::write(dir.path().join(&image), &whole).unwrap();
            flip(&dir.path().join(&image), &path, at, case.key.as_deref());
            let report = expect(&run(dir.path(), &case, &["verify", &image, "--json"]), 1);
            let report: Value = serde_json::from_str(&report).unwrap();
            let results = report["results"].as_array().unwrap();
            let bad: Vec<_> = results.iter().filter(|entry| entry["type"] == "data").collect();
            assert_eq!(bad.len(), 1, "{report}");
            assert_eq!(
                (bad[0]["path"].as_str().unwrap(), bad[0]["offset"].as_u64().unwrap()),
                (&*path, at / 4096 * 4096)
            );
            assert_ne!(bad[0]["wanted"], bad[0]["found"]);
            let summary = results.last().unwrap();
            assert_eq!((summary["files"].as_u64(), summary["good"].as_u64()), (Some(9), Some(8)));
            // Nothing at or behind the first bad block is printed.
            let cat = run(dir.path(), &case, &["cat", &image, &path]);
            expect(&cat, 1);
            assert!(cat.stdout == good[..at as usize / 4096 * 4096], "{} {at}", case.name);
        }
        fs::write(dir.path().join(&image), &whole).unwrap();
        flip(&dir.path().join(&image), &path, tree, case.key.as_deref());
        let text = expect(&run(dir.path(), &case, &["verify", &image]), 1);
        assert!(text.contains(&format!("{path}: tree block at ")) && text.contains("(level "), "{text}");
        assert!(text.contains("expected ") && text.contains("found "), "{text}");
        // The descriptor: then there is no verdict on blocks at all. A flipped root hash makes the tree's top block
        // corrupt, and another digest.
        for at in [0, 17] {
            fs::write(dir.path().join(&image), &whole).unwrap();
            flip(&dir.path().join(&image), &path, descriptor + at, case.key.as_deref());
            let output = run(dir.path(), &case, &["verify", &image]);
            expect(&output, 1);
            assert!(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).contains(&path));
            fs::write(dir.path().join("list"), digests(&case)).unwrap();
            expect(&run(dir.path(), &case, &["verify", &image, "--digests=list"]), 1);
        }
    }
}

/// Whichever byte of a descriptor is wrong, and its size behind it: the file has failed, and nobody has used the program
/// wrongly.
#[test]
fn a_wrong_descriptor_is_an_integrity_failure_in_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let case = &cases()[0];
    let image = unpack(dir.path(), case.name);
    let whole = fs::read(dir.path().join(&image)).unwrap();
    let path = "/v/f65537";
    let descriptor = {
        let image = open(&whole, None);
        let inode = image.resolve(path.as_bytes()).unwrap();
        image.verity(&inode).unwrap().unwrap().location.descriptor_offset
    };
    fs::write(dir.path().join("list"), digests(case)).unwrap();
    let bytes = (0..8).chain((8..256).step_by(7));
    // (A size with 16 bytes more is one that the kernel takes as well: 4092 is left out.)
    for at in bytes.chain(4093..4096) {
        fs::write(dir.path().join(&image), &whole).unwrap();
        flip(&dir.path().join(&image), path, descriptor + at, None);
        let text = expect(&postread(dir.path(), &["verify", &image, path, "--digests=list"]), 1);
        assert!(!text.contains(": verified,"), "{at}: {text}");
    }
}

/// Whoever made the image may have put something else in the place of a listed file: none of that is "good".
#[test]
fn what_stands_in_the_place_of_a_listed_file_is_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity");
    fs::write(dir.path().join("list"), digests(&cases()[0])).unwrap();
    fs::write(dir.path().join("evil"), "EVILEVIL").unwrap();
    let whole = fs::read(dir.path().join(&image)).unwrap();
    for requests in IN_PLACE {
        fs::write(dir.path().join(&image), &whole).unwrap();
        let Some(()) = debugfs(dir.path(), &image, &["rm /v/f4096"]) else { return };
        debugfs(dir.path(), &image, requests);
        let text = expect(&postread(dir.path(), &["verify", &image, "--digests=list"]), 1);
        assert!(text.contains("8 of 9 files are good"), "{requests:?}: {text}");
        // It is not asked for, and yet it is not what the list says.
        expect(
            &postread(dir.path(), &["verify", &image, "/v/f4097", "--digests=list"]),
            i32::from(!requests[0].starts_with("write evil")),
        );
    }
    // A directory above, and a path that no image has.
    fs::write(dir.path().join(&image), &whole).unwrap();
    debugfs(dir.path(), &image, LINK_ABOVE);
    expect(&postread(dir.path(), &["verify", &image, "--digests=list"]), 1);
    fs::write(dir.path().join(&image), &whole).unwrap();
    let odd = fs::read_to_string(dir.path().join("list")).unwrap().replace("/v/f4096", "/v/sub/../f4096");
    fs::write(dir.path().join("odd"), odd).unwrap();
    expect(&postread(dir.path(), &["verify", &image, "--digests=odd"]), 1);
}

/// Two digests of one path: the list is no list to trust. A byte order mark before it is none of it.
#[test]
fn a_list_that_contradicts_itself_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity");
    let list = digests(&cases()[0]);
    let (first, second) = (list.lines().next().unwrap(), list.lines().nth(1).unwrap());
    let path = first.split_once(' ').unwrap().1;
    let other = second.split_once(' ').unwrap().0;
    let code = |text: &str| {
        fs::write(dir.path().join("list"), text).unwrap();
        postread(dir.path(), &["verify", &image, "--digests=list"]).status.code()
    };
    assert_eq!(code(&format!("{first}\n{other} {path}\n")), Some(2));
    assert_eq!(code(&format!("{other} {path}\n{first}\n")), Some(2));
    assert_eq!(code(&format!("{first}\n{first}\n")), Some(0));
    assert_eq!(code(&format!("\u{feff}{list}")), Some(0));
}

/// A listed file that nobody can find without a key is a matter of the key, and no alarm.
#[test]
fn listed_files_behind_a_missing_key_are_not_taken_for_lost() {
    let dir = tempfile::tempdir().unwrap();
    let case = &cases()[1];
    let image = unpack(dir.path(), case.name);
    fs::write(dir.path().join("list"), digests(case)).unwrap();
    let output = postread(dir.path(), &["verify", &image, "--digests=list"]);
    expect(&output, 3);
    assert!(stderr(&output).contains("its directory is locked"), "{}", stderr(&output));
}

/// Every bad block of every file is told, not the first alone.
#[test]
fn all_bad_blocks_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity-enc");
    let key = fs::read(key("key64.bin")).unwrap();
    for (path, at) in [("/enc/f65537", 0), ("/enc/f65537", 20480), ("/enc/f4097", 4096), ("/enc/f12289", 8192)] {
        flip(&dir.path().join(&image), path, at, Some(&key));
    }
    let text = expect(&postread(dir.path(), &["verify", &image, "--key", &crate::common::key("key64.bin")]), 1);
    for what in [
        "/enc/f65537: data block at 0 ",
        "/enc/f65537: data block at 20480 ",
        "/enc/f4097: data block at 4096 ",
        "/enc/f12289: data block at 8192 ",
        "6 of 9 files are good",
    ] {
        assert!(text.contains(what), "{what}: {text}");
    }
}

#[test]
fn the_summary_tells_what_was_held_against_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let case = &cases()[0];
    let image = unpack(dir.path(), case.name);
    let list = digests(case);
    let first: Vec<&str> = list.lines().take(3).collect();
    let write = |lines: &[&str]| fs::write(dir.path().join("list"), lines.join("\n")).unwrap();
    let verify = |rest: &[&str]| postread(dir.path(), &[&["verify", &image, "--digests=list"], rest].concat());
    write(&first);
    let text = expect(&verify(&[]), 0);
    assert!(text.ends_with("9 of 9 files are good: 3 verified, 6 self-consistent only\n"), "{text}");
    let output = verify(&["--require-digests"]);
    let text = expect(&output, 1);
    assert!(text.ends_with("3 of 9 files are good\n"), "{text}");
    assert_eq!(stderr(&output).matches("no digest is given for it").count(), 6);
    let (digest, _) = first[0].split_once(' ').unwrap();
    write(&[&first[..], &[&format!("{digest} /v/none"), &format!("{digest} /v/no/such")]].concat());
    let text = expect(&verify(&[]), 1);
    assert!(text.ends_with("9 of 11 files are good: 3 verified, 6 self-consistent only\n"), "{text}");
    let report: Value = serde_json::from_str(&expect(&verify(&["--json"]), 1)).unwrap();
    let summary = report["results"].as_array().unwrap().last().unwrap();
    assert_eq!((&summary["files"], &summary["good"], &summary["self_consistent"]), (&11.into(), &9.into(), &6.into()));
    write(&[]);
    let output = verify(&[]);
    expect(&output, 5);
    assert!(stderr(&output).contains("the list of digests is empty"), "{}", stderr(&output));
}

#[test]
fn results_come_in_path_order_whatever_the_threads_do() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity");
    flip(&dir.path().join(&image), "/v/f65537", 20480, None);
    let one = expect(&postread(dir.path(), &["verify", &image, "--jobs=1"]), 1);
    let paths: Vec<&str> = one.lines().filter_map(|line| line.strip_prefix('/')?.split(':').next()).collect();
    assert!(paths.len() == 10 && paths.is_sorted(), "{one}");
    for _ in 0..20 {
        assert_eq!(expect(&postread(dir.path(), &["verify", &image, "--jobs=7"]), 1), one);
    }
}
