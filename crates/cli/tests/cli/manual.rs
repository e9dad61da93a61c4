//! The manual pages name every option that the commands have, and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::{expect, postread};

/// The long options that a text names.
fn options(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.split("--")
        .skip(1)
        .map(|rest| rest.split(|c| !is_name(c)).next().unwrap_or("").to_owned())
        .filter(|name| !name.is_empty() && name != "help")
        .collect()
}

#[test]
fn pages_and_help_agree() {
    let at = Path::new(env!("CARGO_MANIFEST_DIR"));
    for command in [
        "digest", "check", "sign", "measure", "enable", "inspect", "ls", "key", "extract", "cat", "verify", "tune",
        "serve",
    ] {
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
    // Commands that share a page.
    for (command, parts) in
        [("dm-verity", &["format", "verify", "repair", "sign", "dump"][..]), ("luks", &["dump", "test"])]
    {
        let help = |part: &&str| options(&expect(&postread(at, &[command, part, "--help"]), 0));
        let help: BTreeSet<String> = parts.iter().flat_map(help).collect();
        let page = fs::read_to_string(at.join(format!("../../docs/man/postread-{command}.1"))).unwrap();
        assert_eq!(help, options(&page.replace('\\', "")), "{command}");
    }
    // The experiments share a page.
    let help = |experiment| options(&expect(&postread(at, &["lab", experiment, "--help"]), 0));
    let help: BTreeSet<String> =
        ["app-start", "tar", "factors", "kernel", "record"].into_iter().flat_map(help).collect();
    let page = fs::read_to_string(at.join("../../docs/man/postread-lab.1")).unwrap();
    assert_eq!(help, options(&page.replace('\\', "")));
}

#[test]
fn the_overview_names_every_command() {
    let at = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(at.join("../../docs/man/postread.1")).unwrap().replace('\\', "");
    let help = expect(&postread(at, &["--help"]), 0);
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands = commands.lines().take_while(|line| !line.is_empty());
    let names: Vec<&str> = commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    assert!(names.len() > 10, "{help}");
    for name in names.into_iter().filter(|name| !name.is_empty() && *name != "help") {
        assert!(page.contains(&format!("postread-{name}")), "{name}");
    }
}
