//! Map files read by GNU ddrescue's own `ddrescuelog`.

use std::process::Command;

use postread_verity::ddrescue::{RangeStatus, RescueMap};

use crate::common::have_tool;

#[test]
fn ddrescuelog_reads_our_maps() {
    if !have_tool("ddrescuelog", "--version", "ddrescuelog_reads_our_maps") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("map");
    let mut map = RescueMap::new();
    map.push(0, 4 * 4096, RangeStatus::Finished);
    map.push(4 * 4096, 4096, RangeStatus::Bad);
    map.push(6 * 4096, 2 * 4096, RangeStatus::Bad);
    map.push(8 * 4096, 100, RangeStatus::Finished);
    std::fs::write(&path, map.to_text()).unwrap();
    let blocks = |kinds: &str| {
        let output =
            Command::new("ddrescuelog").args(["-b4096", &format!("--list-blocks={kinds}")]).arg(&path).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(|n| n.parse().unwrap()).collect::<Vec<u64>>()
    };
    assert_eq!(blocks("-"), [4, 6, 7]);
    assert_eq!(blocks("?"), [5]);

    // And the map it writes, back: only its bad areas left, as finished ones.
    let inverted = Command::new("ddrescuelog").arg("--invert-mapfile").arg(&path).output().unwrap();
    let read = RescueMap::parse(&inverted.stdout).unwrap();
    assert_eq!(read.end(), map.end());
    let finished: Vec<u64> =
        read.ranges().iter().filter(|r| r.status == RangeStatus::Finished).map(|r| r.pos).collect();
    assert_eq!(finished, [4 * 4096]);
}
