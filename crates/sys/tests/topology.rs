//! Topologies of machines that are not this one, recorded as `path: value` lines in `topologies/`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use postread_sys::CpuSet;
use postread_sys::affinity::online_cpus_in;
use postread_sys::topology::{FULL_CAPACITY, Topology};
use tempfile::TempDir;

const SMT_NUMA: &str = include_str!("topologies/smt-numa.txt");
const RYZEN: &str = include_str!("topologies/ryzen-3900x.txt");
const JUNO: &str = include_str!("topologies/juno.txt");

/// A `sys` tree made from a recording; lines of `change` replace those with the same path, `-` as value removes one.
fn sysfs(recording: &str, change: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    for line in recording.lines().chain(change.lines()).filter(|l| !l.starts_with('#') && !l.is_empty()) {
        let (path, value) = line.split_once(": ").unwrap();
        let path = dir.path().join(path);
        if value == "-" {
            fs::remove_file(path).unwrap();
            continue;
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{value}\n")).unwrap();
    }
    dir
}

fn lists(groups: &[CpuSet]) -> Vec<String> {
    groups.iter().map(CpuSet::to_string).collect()
}

fn read(recording: &str, change: &str) -> Topology {
    Topology::read(sysfs(recording, change).path()).unwrap()
}

#[test]
fn smt_and_numa() {
    let topology = read(SMT_NUMA, "");
    assert_eq!(topology.online().to_string(), "0-7");
    assert_eq!(lists(&topology.cores()), ["0-1", "2-3", "4-5", "6-7"]);
    assert_eq!(lists(&topology.llcs()), ["0-3", "4-7"]);
    assert_eq!(topology.nodes(), [(0, "0-3".parse().unwrap()), (1, "4-7".parse().unwrap())]);
    assert_eq!(topology.cpus.iter().map(|c| c.package).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1]);
    assert_eq!(topology.cpu(5).unwrap().llc_size, Some(16 << 20));
    assert!(topology.cpu(8).is_none() && !topology.is_asymmetric());
}

#[test]
fn many_caches_in_one_package() {
    let topology = read(RYZEN, "");
    assert_eq!(lists(&topology.llcs()), ["0-2,12-14", "3-5,15-17", "6-8,18-20", "9-11,21-23"]);
    assert_eq!(topology.cores().len(), 12);
    assert_eq!(topology.cpu(13).unwrap().siblings.to_string(), "1,13");
    assert_eq!(topology.nodes().len(), 1);
}

#[test]
fn big_and_little_cores() {
    let topology = read(JUNO, "");
    assert!(topology.is_asymmetric());
    assert_eq!(topology.cpus.iter().map(|c| c.capacity).collect::<Vec<_>>(), [446, 1024, 1024, 446, 446, 446]);
    assert_eq!(lists(&topology.llcs()), ["0,3-5", "1-2"]);
    assert_eq!(topology.nodes(), [(0, "0-5".parse().unwrap())]);
}

#[test]
fn cpus_that_are_offline_are_in_no_group() {
    // The kernel takes the directories of an offline CPU's caches away, and the CPU out of its siblings' lists; the
    // lists here still name it, as in the moment between.
    let topology = read(SMT_NUMA, "devices/system/cpu/online: 0,2-7");
    assert_eq!(lists(&topology.cores()), ["0", "2-3", "4-5", "6-7"]);
    assert_eq!(lists(&topology.llcs()), ["0,2-3", "4-7"]);
    assert!(topology.cpu(1).is_none());
}

#[test]
fn what_is_missing_is_a_plain_machine() {
    let topology = read("devices/system/cpu/online: 0-2", "");
    assert_eq!(lists(&topology.cores()), ["0", "1", "2"]);
    assert_eq!(lists(&topology.llcs()), ["0-2"]);
    assert_eq!(topology.nodes(), [(0, "0-2".parse().unwrap())]);
    assert!(topology.cpus.iter().all(|c| c.capacity == FULL_CAPACITY && c.package == 0 && c.llc_size.is_none()));
    // A list without the CPU itself groups it with nobody.
    let odd = read(SMT_NUMA, "devices/system/cpu/cpu3/topology/thread_siblings_list: 0-1");
    assert_eq!(odd.cpu(3).unwrap().siblings.to_string(), "3");
    let firmware = read(JUNO, "devices/system/cpu/cpu0/topology/physical_package_id: -1");
    assert_eq!(firmware.cpu(0).unwrap().package, 0);
}

#[test]
fn malformed_files_are_errors_that_name_them() {
    for change in [
        "devices/system/cpu/online: x",
        "devices/system/node/node1/cpulist: 4-",
        "devices/system/node/node1/cpulist: -",
        "devices/system/cpu/cpu4/cache/index3/size: 99999999999999999999K",
        "devices/system/cpu/cpu4/cache/index3/level: -1",
        "devices/system/cpu/cpu4/cache/index3/shared_cpu_list: 0-99999999",
        "devices/system/cpu/cpu4/topology/physical_package_id: first",
        "devices/system/cpu/cpu4/cpu_capacity: 4294967296",
    ] {
        let error = Topology::read(sysfs(SMT_NUMA, change).path()).unwrap_err();
        let (path, value) = change.split_once(": ").unwrap();
        assert!(error.to_string().contains(path), "{change}: {error}");
        assert_eq!(error.kind(), if value == "-" { ErrorKind::NotFound } else { ErrorKind::InvalidData }, "{change}");
    }
    assert_eq!(Topology::read(Path::new("/nowhere")).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(online_cpus_in(Path::new("/nowhere")).is_err());
}
