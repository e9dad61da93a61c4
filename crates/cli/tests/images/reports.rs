//! Every report on images validates against its schema in `docs/schemas/`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::*;

/// Python's `jsonschema` judges: a validator that nobody here wrote.
const VALIDATE: &str = "
import json, sys, jsonschema
schema = json.load(open(sys.argv[1]))
jsonschema.Draft202012Validator.check_schema(schema)
errors = list(jsonschema.Draft202012Validator(schema).iter_errors(json.load(open(sys.argv[2]))))
print('; '.join(str(e.message) for e in errors))
sys.exit(1 if errors else 0)
";

#[track_caller]
fn valid(dir: &Path, output: &Output) {
    let report = dir.join("report.json");
    fs::write(&report, &output.stdout).unwrap();
    let parsed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let schema = repository().join(format!("docs/schemas/{}.json", parsed["schema"].as_str().unwrap()));
    let judged = Command::new("python3").args(["-c", VALIDATE]).arg(schema).arg(report).output().unwrap();
    assert!(judged.status.success(), "{}{}", String::from_utf8_lossy(&judged.stdout), stderr(&judged));
}

#[test]
fn reports_validate() {
    let check = Command::new("python3").args(["-c", "import jsonschema; jsonschema.Draft202012Validator"]).output();
    if !check.is_ok_and(|output| output.status.success()) {
        return postread_tests::skip("no jsonschema in Python");
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let (tool, key) = (unpack(at, "fscrypt-tool"), key("key64.bin"));
    let image = unpack(at, "verity-enc");
    let damaged = "damaged.img";
    fs::copy(at.join(&image), at.join(damaged)).unwrap();
    let bytes = fs::read(&key).unwrap();
    flip(&at.join(damaged), "/enc/f65537", 5000, Some(&bytes));
    let tree = {
        let image = open(&fs::read(at.join(damaged)).unwrap(), Some(&bytes));
        let inode = image.resolve(b"/enc/sparse").unwrap();
        image.verity(&inode).unwrap().unwrap().location.tree_offset
    };
    flip(&at.join(damaged), "/enc/sparse", tree, Some(&bytes));
    let disk = postread_tests::unpack_image(&repository().join("tests/images/stacked/disk.img.zst"));
    fs::copy(disk.path(), at.join("disk")).unwrap();
    fs::write(at.join("pass"), "stacked").unwrap();
    let k: &[&str] = &["--json", "--key", &key];
    let opened = ["--part=1", "--passphrase-file=pass"];
    valid(at, &postread(at, &["inspect", "disk", "--json", "--part=1"]));
    for more in [&[][..], &["--volume=root"]] {
        valid(at, &postread(at, &[&["inspect", "disk", "--json"][..], &opened, more].concat()));
    }
    for args in [
        &["inspect", &image][..],
        &["inspect", &image, "/enc/f65537"],
        &["inspect", &image, "/enc/lnk"],
        &["inspect", &tool],
        &["ls", &image],
        &["ls", "-R", &image],
        &["verify", &image],
        &["verify", damaged, "--stats"],
        &["verify", &image, "/enc/many"],
        &["extract", damaged, "-C", "out"],
        &["extract", &tool, "-C", "out2"],
        &["extract", "--ciphertext", &image, "-C", "saved"],
        &["extract", "--from-ciphertext", "saved", "-C", "out3"],
    ] {
        valid(at, &postread(at, &[args, k].concat()));
    }
    valid(at, &postread(at, &["inspect", &image, "--json"]));
    valid(at, &postread(at, &["verify", &image, "--json"]));
    valid(at, &postread(at, &["ls", "-R", &image, "--json"]));
    valid(at, &postread(at, &["key", "id", &key, "--json"]));
    valid(at, &postread(at, &["key", "id", "--hw-wrapped", &crate::common::key("key32.bin"), "--json"]));
}
