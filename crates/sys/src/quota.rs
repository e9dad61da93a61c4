//! How many CPUs' worth of time the cgroup grants: cgroup v1 (`cpu.cfs_quota_us`) and v2 (`cpu.max`).
//!
//! A limit applies to everything below it, so the smallest one on the path from the process's cgroup to the root
//! counts.

use std::io;
use std::path::{Path, PathBuf};

/// Where a process is in the hierarchy that has the `cpu` controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cgroup {
    V1(String),
    V2(String),
    None,
}

/// The calling process's CPU quota in CPUs (1.5 is one and a half), `None` without a limit.
pub fn cpu_quota() -> io::Result<Option<f64>> {
    cpu_quota_in(Path::new("/"))
}

/// As [`cpu_quota`], by the file system under `root`: its `proc/self/cgroup` and `proc/self/mountinfo` show where the
/// hierarchies are. Missing files (no cgroups, no controller, the root of a hierarchy) mean no limit; one that cannot
/// be read or parsed is an error.
pub fn cpu_quota_in(root: &Path) -> io::Result<Option<f64>> {
    let (Some(cgroup), Some(mounts)) =
        (optional(&root.join("proc/self/cgroup"))?, optional(&root.join("proc/self/mountinfo"))?)
    else {
        return Ok(None);
    };
    let (path, v2) = match cpu_cgroup(&cgroup) {
        Cgroup::V1(path) => (path, false),
        Cgroup::V2(path) => (path, true),
        Cgroup::None => return Ok(None),
    };
    let Some((mount, mount_root)) = find_mount(&mounts, v2) else { return Ok(None) };
    let mut limit: Option<f64> = None;
    for dir in directories(&root.join(mount.trim_start_matches('/')), &mount_root, &path) {
        let quota = if v2 { v2_quota(&dir)? } else { v1_quota(&dir)? };
        limit = match (limit, quota) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
    Ok(limit)
}

/// The process's cgroup under the `cpu` controller, from the text of `/proc/self/cgroup`: a line of `ID:CONTROLLERS:PATH`
/// each, with ID 0 and no controllers for v2. A v1 hierarchy that has the controller takes it from v2.
pub(crate) fn cpu_cgroup(text: &str) -> Cgroup {
    let mut v2 = Cgroup::None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        if controllers.split(',').any(|c| c == "cpu") {
            return Cgroup::V1(path.into());
        }
        if id == "0" && controllers.is_empty() {
            v2 = Cgroup::V2(path.into());
        }
    }
    v2
}

/// Mount point and root of the hierarchy, from the text of `/proc/self/mountinfo` (`proc_pid_mountinfo(5)`).
fn find_mount(text: &str, v2: bool) -> Option<(String, String)> {
    text.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, _device, options) = (right.next()?, right.next()?, right.next().unwrap_or(""));
        let ours = if v2 { kind == "cgroup2" } else { kind == "cgroup" && options.split(',').any(|o| o == "cpu") };
        ours.then(|| (unescape(point), unescape(root)))
    })
}

/// Undoes mountinfo's octal escapes of space, tab, newline and backslash.
fn unescape(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// The directories from the mount point down to the process's cgroup. In a container the mount shows a part of the
/// hierarchy, whose root is `mount_root`; a path outside of it leaves only the mount point itself.
fn directories(mount: &Path, mount_root: &str, path: &str) -> Vec<PathBuf> {
    let inside = match mount_root {
        "/" => Some(path),
        root => path.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/')),
    };
    let mut dirs = vec![mount.to_owned()];
    for part in inside.unwrap_or("").split('/').filter(|p| !p.is_empty()) {
        if part == ".." {
            // Happens when the process is outside its cgroup namespace's root: nothing below the mount is on its path.
            return vec![mount.to_owned()];
        }
        dirs.push(dirs[dirs.len() - 1].join(part));
    }
    dirs
}

/// `cpu.max`: `QUOTA PERIOD` in microseconds, QUOTA may be `max`.
fn v2_quota(dir: &Path) -> io::Result<Option<f64>> {
    let path = dir.join("cpu.max");
    let Some(text) = optional(&path)? else { return Ok(None) };
    let mut fields = text.split_ascii_whitespace();
    let (quota, period) = (fields.next().unwrap_or(""), fields.next().unwrap_or("100000"));
    if quota == "max" { Ok(None) } else { ratio(quota, period).map(Some).ok_or_else(|| malformed(&path)) }
}

/// `cpu.cfs_quota_us`, -1 for no limit, and `cpu.cfs_period_us`.
fn v1_quota(dir: &Path) -> io::Result<Option<f64>> {
    let path = dir.join("cpu.cfs_quota_us");
    let (Some(quota), Some(period)) = (optional(&path)?, optional(&dir.join("cpu.cfs_period_us"))?) else {
        return Ok(None);
    };
    if quota.trim() == "-1" {
        Ok(None)
    } else {
        ratio(quota.trim(), period.trim()).map(Some).ok_or_else(|| malformed(&path))
    }
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?);
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

fn malformed(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: not a CPU quota", path.display()))
}

fn optional(path: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}
