//! `ls`, `cat`, `inspect`, and the layers above a file system.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::common::*;

/// Without the key `ls` shows what the kernel shows: names, kinds, sizes, targets.
#[test]
fn a_listing_without_the_key_is_the_kernels() {
    let dir = tempfile::tempdir().unwrap();
    for (name, _) in encrypted(dir.path()) {
        let image = unpack(dir.path(), name);
        let report = expect(&postread(dir.path(), &["ls", "-R", "--json", &image, "/enc"]), 0);
        let report: Value = serde_json::from_str(&report).unwrap();
        let mut found = BTreeMap::new();
        for entry in report["results"].as_array().unwrap() {
            let text = |field: &str| entry[field].as_str().unwrap().to_owned();
            assert_eq!(entry["locked"], true);
            let kind = &text("type")[..1];
            let size = &entry["size"];
            let target = entry["target"].as_str().unwrap_or_default();
            found.insert(text("path"), format!("{} {kind} {size} {target}", entry["inode"]));
        }
        let mut wanted = BTreeMap::new();
        for line in text_of(&format!("{name}.nokey")).lines() {
            let (left, target) = line.split_once('\t').unwrap();
            let [inode, kind, size, path] = left.splitn(4, ' ').collect::<Vec<_>>().try_into().unwrap();
            wanted.insert(path.to_owned(), format!("{inode} {kind} {size} {target}"));
        }
        assert_eq!(found, wanted, "{name}");
        // A no-key name is good as a path.
        let directory = wanted.iter().find(|(path, line)| line.contains(" d ") && !path.contains('/')).unwrap().0;
        let below = expect(&postread(dir.path(), &["ls", &image, &format!("/enc/{directory}")]), 0);
        assert!(!below.is_empty(), "{name}");
    }
}

#[test]
fn cat_prints_a_file_or_a_part_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    let whole = postread(dir.path(), &["cat", &image, "/enc/f65537", "--key", &key]).stdout;
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&whole));
    assert!(text_of("tree.manifest").contains(&format!("file 65537 {digest} ./f65537")));
    for policy in [&["--queue=bound"][..], &["--queue=unbound", "--max-active=1", "--stats"]] {
        let args = [&["cat", &image, "/enc/f65537", "--key", &key, "--range=5000..60001"], policy].concat();
        assert!(postread(dir.path(), &args).stdout == whole[5000..60001]);
    }
    let sparse = postread(dir.path(), &["cat", &image, "//enc/./sparse", "--key", &key]).stdout;
    assert_eq!(sparse.len(), 1_048_577);
    let missing = postread(dir.path(), &["cat", &image, "/enc/none", "--key", &key]);
    expect(&missing, 2);
    assert!(stderr(&missing).contains("/enc/none"));
}

/// What the kernel takes for one name is one: `tests/tests/casefold.rs` asks it.
#[test]
fn paths_fold_case_where_their_directories_do() {
    let dir = tempfile::tempdir().unwrap();
    let key = key("key64.bin");
    for (name, top, keys) in [("casefold", "/v", &[][..]), ("casefold-enc", "/enc", &["--key", &key])] {
        let image = unpack(dir.path(), name);
        let run = |args: &[&str]| postread(dir.path(), &[args, keys].concat());
        let (small, large) = (format!("{top}/sub/deep/er/leaf"), format!("{top}/SUB/Deep/ER/LEAF"));
        let whole = run(&["cat", &image, &small]).stdout;
        assert_eq!(whole.len(), 3333);
        assert!(run(&["cat", &image, &large]).stdout == whole, "{name}");
        assert_eq!(expect(&run(&["ls", &image, &format!("{top}/NAI\u{308}VE ☃ NAME")]), 0), "naïve ☃ name\n");
        expect(&run(&["cat", &image, &large.to_uppercase()]), 2);
        expect(&run(&["extract", &image, &format!("{top}/SUB/DEEP"), "-C", name]), 0);
        assert!(std::fs::read(dir.path().join(name).join("er/leaf")).unwrap() == whole);
        // A digest is held to the image's own spelling, and no other passes in silence.
        let digest = format!("sha256:{} {large}\n", "0".repeat(64));
        std::fs::write(dir.path().join("list"), digest).unwrap();
        let verified = run(&["verify", &image, "--digests", "list"]);
        expect(&verified, 1);
        assert!(stderr(&verified).contains(&format!("the image spells it {small}")), "{}", stderr(&verified));
    }
}

#[test]
fn inspect_tells_policies_and_which_keys_fit() {
    let dir = tempfile::tempdir().unwrap();
    for (name, key) in encrypted(dir.path()) {
        let image = unpack(dir.path(), name);
        let report = |rest: &[&str]| -> Value {
            let output = postread(dir.path(), &[&["inspect", "--json", &image], rest].concat());
            serde_json::from_str(&expect(&output, 0)).unwrap()
        };
        let with_key = report(&["--key", &key]);
        let policies = with_key["results"]["policies"].as_array().unwrap();
        let verdict = if name.starts_with("v1-") { "given; looks right" } else { "fits" };
        assert_eq!((policies.len(), policies[0]["key"].as_str()), (1, Some(verdict)), "{name}");
        assert_eq!(policies[0]["files"], 53, "{name}");
        assert_eq!(policies[0]["links"], 4, "{name}");
        let without = report(&[]);
        assert_eq!(without["results"]["policies"][0]["key"], "missing", "{name}");
        // The kernel's own words on the policy, where it was asked.
        if let Ok(kernel) = fs::read_to_string(stored(&format!("{name}.policy"))) {
            let policy = &policies[0];
            let key = policy["key_identifier"].as_str().or(policy["key_descriptor"].as_str()).unwrap();
            assert!(kernel.contains(key), "{name}: {kernel}");
            let contents = policy["contents"].as_str().unwrap();
            assert!(
                kernel.to_lowercase().contains(&contents.to_lowercase().replace("aes-128-cbc-essiv", "aes-128-cbc")),
                "{name}: {contents}: {kernel}"
            );
        }
    }
}

#[test]
fn inspect_tells_digests_that_the_kernel_measured() {
    let dir = tempfile::tempdir().unwrap();
    for (name, key, top) in [("verity", None, "/v"), ("verity-enc", Some("key64.bin"), "/enc")] {
        let image = unpack(dir.path(), name);
        let key = key.map(key_option).unwrap_or_default();
        let args: Vec<&str> = ["inspect", "--json", &image].into_iter().chain(key.iter().map(String::as_str)).collect();
        let report: Value = serde_json::from_str(&expect(&postread(dir.path(), &args), 0)).unwrap();
        let files = report["results"]["verity_files"].as_array().unwrap();
        let mut found: Vec<String> = files
            .iter()
            .map(|file| format!("{} {}", file["digest"].as_str().unwrap(), file["path"].as_str().unwrap()))
            .collect();
        let mut wanted: Vec<String> =
            text_of(&format!("{name}.verity")).lines().map(|line| line.replacen(' ', &format!(" {top}/"), 1)).collect();
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted);
        let one = postread(dir.path(), &[&args[..], &[&format!("{top}/f12289")]].concat());
        let one: Value = serde_json::from_str(&expect(&one, 0)).unwrap();
        assert!(one["results"]["verity"]["digest"].as_str().unwrap().starts_with("sha512:"));
    }
}

fn key_option(file: &str) -> Vec<String> {
    vec!["--key".to_owned(), key(file)]
}

/// An image in a partition, behind an offset, and as an Android sparse image reads like itself.
#[test]
fn partitions_offsets_and_sparse_images_are_gone_through() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "xts-pad16");
    let bytes = fs::read(dir.path().join(&image)).unwrap();
    let key = key("key64.bin");
    let wanted = expect(&postread(dir.path(), &["ls", "-l", &image, "/enc", "--key", &key]), 0);

    let mut disk = vec![0; 1 << 20];
    disk.extend_from_slice(&bytes);
    let sectors = (bytes.len() / 512) as u32;
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&2048u32.to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&sectors.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(dir.path().join("disk"), &disk).unwrap();

    // Two raw chunks, of which a boundary falls into a file, and a hole.
    let blocks = (bytes.len() / 4096) as u32;
    let mut sparse = Vec::new();
    for word in [0xed26_ff3a_u32, 1, 28 | 12 << 16, 4096, blocks + 7, 3, 0] {
        sparse.extend(word.to_le_bytes());
    }
    let cut = blocks / 3;
    let mut chunk = |kind: u32, count: u32, data: &[u8]| {
        for word in [kind, count, 12 + data.len() as u32] {
            sparse.extend(word.to_le_bytes());
        }
        sparse.extend_from_slice(data);
    };
    chunk(0xcac1, cut, &bytes[..cut as usize * 4096]);
    chunk(0xcac1, blocks - cut, &bytes[cut as usize * 4096..]);
    chunk(0xcac3, 7, &[]);
    fs::write(dir.path().join("sparse"), &sparse).unwrap();

    for target in [&["disk", "--part=1"][..], &["disk", "--offset=1M"], &["sparse"]] {
        let ls = [&["ls", "-l", "--key", &key, target[0], "/enc"], &target[1..]].concat();
        assert_eq!(expect(&postread(dir.path(), &ls), 0), wanted, "{target:?}");
        let cat = [&["cat", "--key", &key, target[0], "/enc/f65537"], &target[1..]].concat();
        assert_eq!(postread(dir.path(), &cat).stdout.len(), 65537, "{target:?}");
    }
    let table = expect(&postread(dir.path(), &["inspect", "disk"]), 0);
    assert!(table.contains("part 1") && table.contains("ext4"), "{table}");
    let unclear = postread(dir.path(), &["ls", "disk"]);
    expect(&unclear, 2);
    assert!(stderr(&unclear).contains("--part"));
    expect(&postread(dir.path(), &["ls", "disk", "--part=2"]), 2);
    expect(&postread(dir.path(), &["ls", "disk", "--part=1", "--offset=1M"]), 2);
}

/// A key that fits nothing is told, and what can be listed is; with no key at all nothing is asked for.
#[test]
fn a_key_that_fits_nothing_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "xts-pad16");
    fs::write(dir.path().join("other"), [7; 64]).unwrap();
    let without = expect(&postread(dir.path(), &["ls", &image, "/enc"]), 0);
    for rest in [&[][..], &["-R"]] {
        for path in ["/", "/enc"] {
            let output = postread(dir.path(), &[&["ls", &image, path, "--key=other"], rest].concat());
            let text = expect(&output, 3);
            assert!(path == "/" || !rest.is_empty() || text == without, "{text}");
            assert!(stderr(&output).contains("this needs key ") && stderr(&output).contains("you gave "));
        }
    }
    // One that fits among several is enough.
    let key = key("key64.bin");
    let output = postread(dir.path(), &["ls", &image, "/enc", "--key=other", "--key", &key]);
    expect(&output, 0);
    assert_eq!(stderr(&output), "");
}

#[test]
fn listings_are_sorted_and_links_have_their_targets_size() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    let text = expect(&postread(dir.path(), &["ls", "-R", &image, "/enc", "--key", &key]), 0);
    let names: Vec<Vec<&str>> = text.lines().map(|line| line.split('/').collect()).collect();
    assert!(names.len() > 50 && names.is_sorted(), "{text}");
    let report = expect(&postread(dir.path(), &["ls", "-R", "--json", &image, "/enc", "--key", &key]), 0);
    let report: Value = serde_json::from_str(&report).unwrap();
    let links: Vec<&Value> =
        report["results"].as_array().unwrap().iter().filter(|entry| entry["type"] == "link").collect();
    assert_eq!(links.len(), 4);
    for link in links {
        assert_eq!(link["size"].as_u64().unwrap() as usize, link["target"].as_str().unwrap().len(), "{link}");
    }
    let slash = postread(dir.path(), &["ls", &image, "/enc/f65537/", "--key", &key]);
    assert_eq!(expect(&slash, 2), "");
    assert!(stderr(&slash).contains("is not a directory"), "{}", stderr(&slash));
    expect(&postread(dir.path(), &["ls", &image, "/enc/", "--key", &key]), 0);
}

/// As the kernel has it: what a slash stands behind is a directory. And `..` is explained, not looked for.
#[test]
fn slashes_and_parents_in_paths() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    let run = |command: &str, path: &str| {
        let out: &[&str] = if command == "extract" { &["-C", "out"] } else { &[] };
        postread(dir.path(), &[&[command, &image, path, "--key", &key], out].concat())
    };
    for command in ["ls", "cat", "inspect", "extract", "verify"] {
        for path in ["/enc/f100/", "/enc/f100//", "/enc/f100/.", "/enc/f100/./"] {
            let output = run(command, path);
            expect(&output, 2);
            let told = stderr(&output);
            assert!(told.contains("/enc/f100: is not a directory"), "{command} {path}: {told}");
        }
        for path in ["../enc/f100", "/enc/sub/../f100", "/enc/.."] {
            let output = run(command, path);
            expect(&output, 2);
            assert!(stderr(&output).contains("`..` has no meaning"), "{command} {path}: {}", stderr(&output));
        }
        assert!(!dir.path().join("out").exists());
    }
    for path in ["/enc/sub/", "/enc/sub/.", "enc//./sub//"] {
        expect(&run("ls", path), 0);
        expect(&run("inspect", path), 0);
    }
}

/// Files alike are not a line each, however many they are; the report in JSON has all.
#[test]
fn inspect_groups_locked_files() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpack(dir.path(), "verity-enc");
    let text = expect(&postread(dir.path(), &["inspect", &image]), 0);
    let json = expect(&postread(dir.path(), &["inspect", &image, "--json"]), 0);
    let report: Value = serde_json::from_str(&json).unwrap();
    let files = report["results"]["verity_files"].as_array().unwrap();
    assert!(files.len() > 3 && files.iter().all(|file| file["error"].is_string() && file.get("locked").is_none()));
    let lines: Vec<_> = text.lines().filter(|line| line.contains("fs-verity")).collect();
    let [line] = lines[..] else { panic!("{text}") };
    let first = files[0]["path"].as_str().unwrap();
    let wanted = format!("fs-verity, locked: {} files ({first}, ", files.len());
    assert!(line.starts_with(&wanted) && line.contains(", ...): their digests need the keys"), "{line}");
    let key = key("key64.bin");
    let text = expect(&postread(dir.path(), &["inspect", &image, "--key", &key]), 0);
    assert_eq!(text.matches("fs-verity /enc/").count(), files.len(), "{text}");
}

/// Contexts of a version that nobody knows: names are listed as Linux lists them, as without a key, whatever keys there are.
#[test]
fn an_unknown_version_of_a_context_lists_no_key_names() {
    let dir = tempfile::tempdir().unwrap();
    let (image, key) = (unpack(dir.path(), "xts-pad16"), key("key64.bin"));
    let no_key = expect(&postread(dir.path(), &["ls", &image, "/enc"]), 0);
    let with_key = expect(&postread(dir.path(), &["ls", &image, "/enc", "--key", &key]), 0);
    let mut bytes = fs::read(dir.path().join(&image)).unwrap();
    let identifier = hex::decode("106febaab6f204fb554357b2adefc46b").unwrap();
    // Version 2, AES-256-XTS, AES-256-CTS, flags, log2 of the data unit size, three reserved bytes, identifier.
    let contexts: Vec<usize> = (8..bytes.len() - 16)
        .filter(|&at| bytes[at..at + 16] == identifier && bytes[at - 8..at - 5] == [2, 1, 4])
        .collect();
    assert!(contexts.len() > 3);
    contexts.iter().for_each(|&at| bytes[at - 8] = 3);
    fs::write(dir.path().join("unknown"), bytes).unwrap();
    let args = ["ls", "unknown", "/enc", "--ignore-checksums"];
    for options in [&[][..], &["--key", &key]] {
        let listed = expect(&postread(dir.path(), &[&args[..], options].concat()), 0);
        assert_eq!(listed, no_key);
        assert_ne!(listed, with_key);
    }
    let output = postread(
        dir.path(),
        &["cat", "unknown", &format!("/enc/{}", no_key.lines().next().unwrap()), "--key", &key, "--ignore-checksums"],
    );
    assert!(matches!(output.status.code(), Some(2 | 3)), "{}", stderr(&output));
}
