//! The manual pages name every option that the commands have, and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::{expect, postread};

/// The long options that a text names.
fn options(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
    text.split("--")
        .skip(1)
        .map(|rest| rest.split(|c| !is_name(c)).next().unwrap_or("").to_owned())
        .filter(|name| !name.is_empty() && name != "help")
        .collect()
}

#[test]
fn pages_and_help_agree() {
    let at = Path::new(env!("CARGO_MANIFEST_DIR"));
    for command in ["digest", "check", "sign", "measure", "enable", "inspect", "ls", "key", "extract", "cat", "verify"]
    {
        let what = if command == "key" { vec!["key", "id", "--help"] } else { vec![command, "--help"] };
        let help = options(&expect(&postread(at, &what), 0));
        let page = fs::read_to_string(at.join(format!("../../docs/man/postread-{command}.1"))).unwrap();
        let mut page = options(&page.replace('\\', ""));
        // `sha256sum --check` is spoken of.
        if command == "check" {
            page.remove("check");
        }
        assert_eq!(help, page, "{command}");
    }
}
