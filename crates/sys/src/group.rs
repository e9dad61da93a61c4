//! The scheduling group that the caller's nice value counts in.
//!
//! The fair scheduler shares CPUs between groups first, and between a group's threads by their nice values after. A
//! thread's group is its cgroup under the `cpu` controller; a thread in that hierarchy's root is, where autogroup is
//! on, in the group of its session (`sched(7)`). So nice -20 in one session does not beat nice 0 in another.

use std::fmt;
use std::io;
use std::path::Path;

use crate::quota::{self, Cgroup};

/// The group that a process is scheduled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedGroup {
    /// The cgroup under the `cpu` controller, `/` for its root; `None` if no such controller is mounted.
    pub cgroup: Option<String>,
    /// The session's autogroup, by number; `None` if the kernel has none or has it turned off.
    pub autogroup: Option<Autogroup>,
}

/// A session's group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Autogroup {
    /// Its number, as in `/proc/PID/autogroup`.
    pub id: u64,
    /// The group's own nice value, which ranks it among the groups.
    pub nice: i32,
}

impl SchedGroup {
    /// Does the cgroup decide? Else the autogroup, if there is one.
    fn in_cgroup(&self) -> bool {
        self.cgroup.as_deref().is_some_and(|path| path != "/")
    }

    /// Do threads of both compete by nice value? (Same cgroup; and, in its root, the same session.)
    pub fn same_as(&self, other: &SchedGroup) -> bool {
        if self.in_cgroup() || other.in_cgroup() {
            return self.cgroup == other.cgroup;
        }
        self.autogroup.map(|a| a.id) == other.autogroup.map(|a| a.id)
    }
}

impl fmt::Display for SchedGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.cgroup, &self.autogroup) {
            (Some(path), _) if self.in_cgroup() => write!(f, "cgroup {path}"),
            (_, Some(group)) => write!(f, "autogroup {} (nice {})", group.id, group.nice),
            _ => write!(f, "root"),
        }
    }
}

/// The calling process's group.
pub fn sched_group() -> io::Result<SchedGroup> {
    sched_group_in(Path::new("/"))
}

/// As [`sched_group`], by the `proc` tree under `root`.
pub fn sched_group_in(root: &Path) -> io::Result<SchedGroup> {
    let optional = |path: &str| match std::fs::read_to_string(root.join(path)) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    };
    let enabled = optional("proc/sys/kernel/sched_autogroup_enabled")?.is_none_or(|v| v.trim() != "0");
    let autogroup = optional("proc/self/autogroup")?.as_deref().and_then(parse_autogroup).filter(|_| enabled);
    let cgroup = optional("proc/self/cgroup")?.and_then(|text| match quota::cpu_cgroup(&text) {
        Cgroup::V1(path) | Cgroup::V2(path) => Some(path),
        Cgroup::None => None,
    });
    Ok(SchedGroup { cgroup, autogroup })
}

/// Reads `/autogroup-10 nice 0`.
fn parse_autogroup(text: &str) -> Option<Autogroup> {
    let (id, nice) = text.trim().strip_prefix("/autogroup-")?.split_once(" nice ")?;
    Some(Autogroup { id: id.parse().ok()?, nice: nice.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_goes_before_the_session() {
        let group =
            |cgroup: &str, id| SchedGroup { cgroup: Some(cgroup.into()), autogroup: Some(Autogroup { id, nice: 0 }) };
        assert_eq!(parse_autogroup("/autogroup-10 nice -5\n"), Some(Autogroup { id: 10, nice: -5 }));
        assert_eq!(parse_autogroup("/\n"), None);
        assert_eq!(group("/", 3).to_string(), "autogroup 3 (nice 0)");
        assert_eq!(group("/a", 3).to_string(), "cgroup /a");
        assert!(group("/", 3).same_as(&group("/", 3)) && !group("/", 3).same_as(&group("/", 4)));
        assert!(group("/a", 3).same_as(&group("/a", 4)) && !group("/a", 3).same_as(&group("/", 3)));
    }
}
