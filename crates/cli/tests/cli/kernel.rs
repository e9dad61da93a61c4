//! `postread measure` and `enable` where the file system has no fs-verity. (With a kernel that has it: the emulator.)

use std::fs;

use crate::common::{expect, postread, stderr};

#[test]
fn refusals_name_the_cause() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("f"), "x").unwrap();
    for command in ["measure", "enable"] {
        let output = postread(at, &[command, "f"]);
        // 5 where the file system has the feature, and the file is just not protected.
        assert_ne!(output.status.code(), Some(0));
        let text = stderr(&output);
        assert!(text.starts_with("postread: f: cannot "), "{text}");
        if output.status.code() == Some(4) {
            assert!(text.contains("tune2fs -O verity") || text.contains("ext4, f2fs and btrfs"), "{text}");
        }
        let output = postread(at, &[command, "missing"]);
        expect(&output, 4);
        assert!(stderr(&output).contains("missing: No such file"));
        expect(&postread(at, &[command, "."]), 2);
        expect(&postread(at, &[command]), 2);
    }
    expect(&postread(at, &["enable", "f", "--signature=none"]), 4);
    fs::write(at.join("sig"), vec![0; 16129]).unwrap();
    expect(&postread(at, &["enable", "f", "--signature=sig"]), 2);
    expect(&postread(at, &["enable", "f", "--block-size=100"]), 2);
}
