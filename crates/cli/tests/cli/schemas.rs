//! Every report validates against its schema in `docs/schemas/`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{noise, postread};

/// Python's `jsonschema` judges: a validator that nobody here wrote.
const VALIDATE: &str = "
import json, sys, jsonschema
schema = json.load(open(sys.argv[1]))
jsonschema.Draft202012Validator.check_schema(schema)
errors = list(jsonschema.Draft202012Validator(schema).iter_errors(json.load(open(sys.argv[2]))))
print('; '.join(str(e.message) for e in errors))
sys.exit(1 if errors else 0)
";

/// Is the validator there? If not, the test is skipped, or fails if everything is required.
pub(crate) fn have_validator(test: &str) -> bool {
    let found = Command::new("python3").args(["-c", "import jsonschema; jsonschema.Draft202012Validator"]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        assert_ne!(std::env::var("POSTREAD_REQUIRE_ALL").as_deref(), Ok("1"), "{test} needs python3-jsonschema");
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            format!("SKIP {test}: no jsonschema in Python\n").as_bytes(),
        );
    }
    found
}

/// Validates a report against the schema that it names; what is wrong with it otherwise.
fn validate(report: &[u8]) -> Result<(), String> {
    let parsed: serde_json::Value = serde_json::from_slice(report).unwrap();
    let name = parsed["schema"].as_str().expect("a report names its schema");
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas").join(format!("{name}.json"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report");
    fs::write(&file, report).unwrap();
    let output = Command::new("python3").args(["-c", VALIDATE]).arg(schema).arg(file).output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{name}: {}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
}

#[track_caller]
pub(crate) fn valid(report: &[u8]) {
    assert_eq!(validate(report), Ok(()));
}

#[test]
fn digest_and_check() {
    if !have_validator("digest_and_check") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("f"), noise(50_000, 6)).unwrap();
    fs::write(at.join("one"), "x").unwrap();
    valid(&postread(at, &["digest", "f", "one", "none", ".", "--json"]).stdout);
    valid(&postread(at, &["digest", "f", "--json", "--for-builtin-sig", "--hash-alg=sha512", "--salt=01"]).stdout);
    valid(&postread(at, &["digest", "none", "--json"]).stdout);
    let list = postread(at, &["digest", "f", "one", "--out-merkle-tree=f.verity-tree"]);
    assert_eq!(list.status.code(), Some(2));
    let list = postread(at, &["digest", "f", "--out-merkle-tree=f.verity-tree"]).stdout;
    let more = postread(at, &["digest", "one"]).stdout;
    let missing = String::from_utf8(more.clone()).unwrap().replace("one", "none");
    fs::write(at.join("list"), [&list[..], &more, missing.as_bytes()].concat()).unwrap();
    valid(&postread(at, &["check", "list", "--json"]).stdout);
    let mut bad = noise(50_000, 6);
    bad[20_000] ^= 1;
    fs::write(at.join("f"), bad).unwrap();
    fs::write(at.join("one"), "y").unwrap();
    valid(&postread(at, &["check", "list", "--json"]).stdout);
}

#[test]
fn a_schema_refuses_what_is_not_in_it() {
    if !have_validator("a_schema_refuses_what_is_not_in_it") {
        return;
    }
    let machine = r#"{"cpu":"","cpus":1,"kernel":"","arch":""}"#;
    let report = |results: &str| {
        format!(
            r#"{{"schema":"postread-digest-1","version":"0","command":[],"machine":{machine},"results":{results}}}"#
        )
    };
    valid(report("[]").as_bytes());
    for bad in [r#"[{"path":"x"}]"#, r#"[{"path":"x","error":"e","exit_status":0}]"#, "{}"] {
        validate(report(bad).as_bytes()).unwrap_err();
    }
}

/// Where the file system has fs-verity, a digest would be in it; what is there always are errors.
#[test]
fn measure() {
    if !have_validator("measure") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), "x").unwrap();
    let output = postread(dir.path(), &["measure", "f", "none", ".", "--json"]);
    valid(&output.stdout);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let results = report["results"].as_array().unwrap();
    let codes: Vec<_> = results.iter().map(|result| result["exit_status"].as_u64()).collect();
    assert!(codes.len() == 3 && codes[1..] == [Some(4), Some(2)], "{report}");
    let machine = r#"{"cpu":"","cpus":1,"kernel":"","arch":""}"#;
    let good = format!(r#"[{{"path":"f","digest":"sha256:{}"}}]"#, "0".repeat(64));
    for (results, wanted) in [(good.as_str(), true), (r#"[{"path":"f"}]"#, false)] {
        let head = r#"{"schema":"postread-measure-1","version":"0","command":[],"machine":"#;
        assert_eq!(validate(format!("{head}{machine},\"results\":{results}}}").as_bytes()).is_ok(), wanted);
    }
}
