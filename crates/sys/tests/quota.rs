//! CPU quotas by cgroup v1 and v2, from trees as real systems show them.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use postread_sys::group::sched_group_in;
use postread_sys::quota::{cpu_quota, cpu_quota_in};
use tempfile::TempDir;

const V2: &str = "25 1 0:22 / /proc rw - proc proc rw\n30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const V1: &str = "30 23 0:26 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";

/// A root directory with these files.
fn root(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

#[track_caller]
fn quota(files: &[(&str, &str)]) -> Option<f64> {
    cpu_quota_in(root(files).path()).unwrap()
}

#[test]
fn v2_the_minimum_of_nested_limits_wins() {
    let files = |a: &'static str, ab: &'static str, abc: &'static str| {
        [
            ("proc/self/cgroup", "0::/a/b/c\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/a/cpu.max", a),
            ("sys/fs/cgroup/a/b/cpu.max", ab),
            ("sys/fs/cgroup/a/b/c/cpu.max", abc),
        ]
    };
    assert_eq!(quota(&files("max 100000\n", "150000 100000\n", "400000 100000\n")), Some(1.5));
    assert_eq!(quota(&files("50000 100000\n", "max 100000\n", "400000 100000\n")), Some(0.5));
    assert_eq!(quota(&files("max 100000\n", "max\n", "200000\n")), Some(2.0));
    assert_eq!(quota(&files("max 100000\n", "max 100000\n", "max 100000\n")), None);
}

#[test]
fn v1_the_minimum_of_nested_limits_wins() {
    let files = |outer: &'static str, inner: &'static str| {
        [
            ("proc/self/cgroup", "9:name=systemd:/s\n4:cpu,cpuacct:/a/b\n2:cpuset:/x\n0::/unified\n"),
            ("proc/self/mountinfo", V1),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", outer),
            ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", inner),
            ("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n"),
        ]
    };
    assert_eq!(quota(&files("100000\n", "250000\n")), Some(2.0));
    assert_eq!(quota(&files("-1\n", "25000\n")), Some(0.25));
    assert_eq!(quota(&files("-1\n", "-1\n")), None);
}

#[test]
fn in_a_container_the_mount_shows_a_part() {
    // The mount's root is the container's cgroup: its limit is at the mount point, its parents' are out of sight.
    let mounts = "31 23 0:27 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n";
    let files = [
        ("proc/self/cgroup", "4:cpu:/docker/abc/inner\n"),
        ("proc/self/mountinfo", mounts),
        ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000"),
        ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"),
        ("sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "50000"),
        ("sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000"),
    ];
    assert_eq!(quota(&files), Some(0.5));
    // A path that only begins alike is not inside it.
    let mut outside = files;
    outside[0].1 = "4:cpu:/docker/abcdef/inner\n";
    assert_eq!(quota(&outside), Some(1.5));
    // Outside the cgroup namespace's root.
    outside[0].1 = "4:cpu:/docker/abc/../inner\n";
    assert_eq!(quota(&outside), Some(1.5));
}

#[test]
fn what_is_missing_limits_nothing() {
    assert_eq!(quota(&[]), None);
    assert_eq!(quota(&[("proc/self/cgroup", "0::/a\n")]), None);
    assert_eq!(quota(&[("proc/self/cgroup", "0::/a\n"), ("proc/self/mountinfo", V2)]), None);
    assert_eq!(quota(&[("proc/self/cgroup", "1:memory:/\n"), ("proc/self/mountinfo", V1)]), None);
}

#[test]
fn malformed_limits_are_errors_that_name_the_file() {
    for text in ["", "x 100000", "1 0", "0 100000", "-5 100000", "99999999999999999999 1"] {
        let files = [("proc/self/cgroup", "0::/\n"), ("proc/self/mountinfo", V2), ("sys/fs/cgroup/cpu.max", text)];
        let error = cpu_quota_in(root(&files).path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{text:?}");
        assert!(error.to_string().contains("sys/fs/cgroup/cpu.max"), "{error}");
    }
}

#[test]
fn this_machine_has_a_quota_or_none() {
    assert!(cpu_quota().unwrap().is_none_or(|cpus| cpus > 0.0));
}

/// A quota that the kernel itself keeps, where the tests may make a cgroup.
#[test]
fn the_kernels_own_quota_is_read() {
    let Some(()) = postread_tests::require_root() else { return };
    // Inner cgroups of v2 need the controller handed down; v1's do not. Whichever this machine mounts.
    let (parent, v2) = match ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"].map(Path::new) {
        [a, _] if a.join("cpu.shares").exists() => (a, false),
        [_, b] if b.join("cpu.shares").exists() => (b, false),
        _ => (Path::new("/sys/fs/cgroup"), true),
    };
    let ours = parent.join(format!("postread-test-{}", std::process::id()));
    if postread_tests::require("a cgroup", fs::create_dir(&ours)).is_none() {
        return;
    }
    let set = || {
        if v2 {
            fs::write(ours.join("cpu.max"), "150000 100000")
        } else {
            fs::write(ours.join("cpu.cfs_quota_us"), "150000")
        }
    };
    let result = set().map(|()| {
        // Only the text that says where we are is ours; mounts and limit are the kernel's.
        let name = ours.file_name().unwrap().to_str().unwrap();
        let cgroup = if v2 { format!("0::/{name}\n") } else { format!("1:cpu:/{name}\n") };
        let fake = TempDir::new().unwrap();
        fs::create_dir_all(fake.path().join("proc/self")).unwrap();
        fs::write(fake.path().join("proc/self/cgroup"), cgroup).unwrap();
        fs::copy("/proc/self/mountinfo", fake.path().join("proc/self/mountinfo")).unwrap();
        std::os::unix::fs::symlink("/sys", fake.path().join("sys")).unwrap();
        cpu_quota_in(fake.path()).unwrap()
    });
    fs::remove_dir(&ours).unwrap();
    if let Some(quota) = postread_tests::require("a CPU quota", result) {
        assert_eq!(quota, Some(1.5));
    }
}

#[test]
fn the_scheduling_group_is_the_cgroup_or_the_session() {
    let group = |files: &[(&str, &str)]| sched_group_in(root(files).path()).unwrap();
    let session = ("proc/self/autogroup", "/autogroup-12 nice 3\n");
    assert_eq!(group(&[session, ("proc/self/cgroup", "0::/\n")]).to_string(), "autogroup 12 (nice 3)");
    assert_eq!(group(&[session, ("proc/self/cgroup", "0::/user.slice\n")]).to_string(), "cgroup /user.slice");
    let off = ("proc/sys/kernel/sched_autogroup_enabled", "0\n");
    assert_eq!(group(&[session, off, ("proc/self/cgroup", "0::/\n")]).to_string(), "root");
    assert_eq!(group(&[]).to_string(), "root");
    let here = postread_sys::group::sched_group().unwrap();
    assert!(here.same_as(&here));
}
