//! Which CPUs share a pool of an unbound queue, and how `max_active` is split over NUMA nodes: the kernel's rules, as
//! functions of a machine's topology.

use postread_sys::CpuSet;
use postread_sys::topology::Topology;

use crate::error::WQ_DFL_MIN_ACTIVE;

/// The cores of a cache shard, at most: the kernel's `workqueue.cache_shard_size`.
const CACHE_SHARD_CORES: usize = 8;

/// How far from the CPU that queues it an unbound item may start, with the kernel's names.
///
/// Each scope groups the CPUs into *pods*, and each pod has a worker pool of its own. An item goes to the pod of the CPU
/// that queues it. Non-strict (the default), its worker is brought back into the pod when it wakes, and the scheduler may
/// move it afterwards; idle workers of other pods help a pod whose own workers are all busy. Strict, it never leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum AffnScope {
    /// Each CPU is a pod.
    Cpu,
    /// The hardware threads of a core.
    Smt,
    /// The CPUs that share a last-level cache.
    Cache,
    /// At most 8 cores of a last-level cache, never half a core: the kernel's default since 7.1.
    #[default]
    CacheShard,
    /// A NUMA node.
    Numa,
    /// All CPUs.
    System,
}

impl AffnScope {
    /// All scopes, from the narrowest.
    pub const ALL: [AffnScope; 6] =
        [AffnScope::Cpu, AffnScope::Smt, AffnScope::Cache, AffnScope::CacheShard, AffnScope::Numa, AffnScope::System];

    /// The kernel's name, as in `/sys/devices/virtual/workqueue/*/affinity_scope`.
    pub fn name(self) -> &'static str {
        match self {
            AffnScope::Cpu => "cpu",
            AffnScope::Smt => "smt",
            AffnScope::Cache => "cache",
            AffnScope::CacheShard => "cache_shard",
            AffnScope::Numa => "numa",
            AffnScope::System => "system",
        }
    }
}

impl std::fmt::Display for AffnScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The pods of a scope among `cpus`, in the order of their first CPUs. A CPU that the topology does not know is a pod of
/// its own, except under [`AffnScope::System`].
pub fn pods(topology: &Topology, cpus: &CpuSet, scope: AffnScope) -> Vec<CpuSet> {
    let groups = match scope {
        AffnScope::System => vec![cpus.clone()],
        AffnScope::Cpu => Vec::new(),
        AffnScope::Smt => topology.cores(),
        AffnScope::Cache => topology.llcs(),
        AffnScope::Numa => topology.nodes().into_iter().map(|(_, cpus)| cpus).collect(),
        AffnScope::CacheShard => topology.llcs().iter().flat_map(|llc| shards(topology, llc)).collect(),
    };
    let mut pods: Vec<CpuSet> =
        groups.iter().map(|group| group.intersection(cpus)).filter(|pod| !pod.is_empty()).collect();
    let grouped = pods.iter().fold(CpuSet::new(), |all, pod| all.union(pod));
    pods.extend(cpus.iter().filter(|&cpu| !grouped.contains(cpu)).map(|cpu| CpuSet::from_iter([cpu])));
    pods.sort_by_key(CpuSet::first);
    pods
}

/// A cache's cores in as few groups of at most [`CACHE_SHARD_CORES`] as possible, as even as possible.
fn shards(topology: &Topology, llc: &CpuSet) -> Vec<CpuSet> {
    let cores: Vec<CpuSet> =
        topology.cores().iter().map(|core| core.intersection(llc)).filter(|core| !core.is_empty()).collect();
    let count = cores.len().div_ceil(CACHE_SHARD_CORES).max(1);
    let (each, larger) = (cores.len() / count, cores.len() % count);
    let mut rest = cores.iter();
    (0..count)
        .map(|shard| {
            let size = each + usize::from(shard < larger);
            rest.by_ref().take(size).fold(CpuSet::new(), |all, core| all.union(core))
        })
        .collect()
}

/// The CPUs by NUMA node: node number and CPUs. CPUs that the topology does not know belong to the first node.
pub(crate) fn nodes(topology: &Topology, cpus: &CpuSet) -> Vec<(u32, CpuSet)> {
    let mut nodes: Vec<(u32, CpuSet)> = topology
        .nodes()
        .into_iter()
        .map(|(node, members)| (node, members.intersection(cpus)))
        .filter(|(_, members)| !members.is_empty())
        .collect();
    let known = nodes.iter().fold(CpuSet::new(), |all, (_, members)| all.union(members));
    let strays: CpuSet = cpus.iter().filter(|&cpu| !known.contains(cpu)).collect();
    match nodes.first_mut() {
        Some((_, first)) => *first = first.union(&strays),
        None => nodes.push((0, strays)),
    }
    nodes
}

/// The share of a node in an unbound queue's `max_active`: by its CPUs, rounded up, at least `min_active`. So the shares
/// may add up to more than `max_active`, as in the kernel.
pub(crate) fn node_max_active(max_active: u64, min_active: u64, node_cpus: usize, all_cpus: usize) -> u64 {
    let share = (max_active * node_cpus as u64).div_ceil(all_cpus.max(1) as u64);
    share.clamp(min_active.min(max_active), max_active)
}

/// The `min_active` that a queue begins with.
pub(crate) fn default_min_active(max_active: u64) -> u64 {
    max_active.min(WQ_DFL_MIN_ACTIVE as u64)
}

/// How many workers of a pool may run at once: the pod's part of `concurrency`, rounded up, at least one.
pub(crate) fn pod_concurrency(concurrency: usize, pod_cpus: usize, all_cpus: usize) -> usize {
    (concurrency * pod_cpus).div_ceil(all_cpus.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn topology(recording: &str) -> Topology {
        let dir = tempfile::tempdir().unwrap();
        for line in recording.lines().filter(|l| !l.starts_with('#') && !l.is_empty()) {
            let (path, value) = line.split_once(": ").unwrap();
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        Topology::read(dir.path()).unwrap()
    }

    /// A server: `sockets` of `llcs` caches of `cores` cores of two hardware threads, with one NUMA node per socket.
    /// CPUs are numbered as Linux numbers such machines: the second threads follow from `second` on.
    fn server(sockets: usize, llcs: usize, cores: usize, second: usize) -> Topology {
        let all = sockets * llcs * cores;
        let list =
            |first: usize, n: usize| format!("{first}-{},{}-{}", first + n - 1, second + first, second + first + n - 1);
        let mut lines = vec![
            format!("devices/system/cpu/online: {}", list(0, all)),
            format!("devices/system/node/online: 0-{}", sockets - 1),
        ];
        for socket in 0..sockets {
            let cpus = list(socket * llcs * cores, llcs * cores);
            lines.push(format!("devices/system/node/node{socket}/cpulist: {cpus}"));
        }
        for core in 0..all {
            for cpu in [core, core + second] {
                let dir = format!("devices/system/cpu/cpu{cpu}");
                let llc = list(core / cores * cores, cores);
                lines.push(format!("{dir}/topology/thread_siblings_list: {core},{}", core + second));
                lines.push(format!("{dir}/topology/physical_package_id: {}", core / (llcs * cores)));
                lines.push(format!("{dir}/cache/index0/level: 2"));
                lines.push(format!("{dir}/cache/index0/type: Unified"));
                lines.push(format!("{dir}/cache/index0/shared_cpu_list: {core},{}", core + second));
                lines.push(format!("{dir}/cache/index1/level: 3"));
                lines.push(format!("{dir}/cache/index1/type: Unified"));
                lines.push(format!("{dir}/cache/index1/shared_cpu_list: {llc}"));
            }
        }
        topology(&lines.join("\n"))
    }

    fn two_sockets() -> Topology {
        server(2, 1, 12, 24)
    }

    fn lists(topology: &Topology, scope: AffnScope) -> Vec<String> {
        pods(topology, &topology.online(), scope).iter().map(CpuSet::to_string).collect()
    }

    fn limits(topology: &Topology, max_active: u64) -> Vec<u64> {
        let cpus = topology.online();
        let share = |(_, node): (u32, CpuSet)| {
            node_max_active(max_active, default_min_active(max_active), node.len(), cpus.len())
        };
        nodes(topology, &cpus).into_iter().map(share).collect()
    }

    #[test]
    fn a_phone_with_little_big_and_prime_cores_is_one_cache_shard() {
        let phone = topology(include_str!("../tests/topologies/phone.txt"));
        assert!(phone.is_asymmetric());
        assert_eq!(lists(&phone, AffnScope::CacheShard), ["0-7"]);
        assert_eq!(lists(&phone, AffnScope::Cache), ["0-7"]);
        assert_eq!(lists(&phone, AffnScope::Smt).len(), 8);
        assert_eq!(lists(&phone, AffnScope::Cpu), ["0", "1", "2", "3", "4", "5", "6", "7"]);
        assert_eq!(lists(&phone, AffnScope::Numa), ["0-7"]);
        assert_eq!(limits(&phone, 1024), [1024]);
    }

    #[test]
    fn a_server_with_two_sockets_splits_its_limit() {
        let server = two_sockets();
        assert_eq!(lists(&server, AffnScope::Numa), ["0-11,24-35", "12-23,36-47"]);
        assert_eq!(lists(&server, AffnScope::Cache), lists(&server, AffnScope::Numa));
        // 12 cores of a cache: two shards of six, both hardware threads of each core together.
        assert_eq!(lists(&server, AffnScope::CacheShard), ["0-5,24-29", "6-11,30-35", "12-17,36-41", "18-23,42-47"]);
        assert_eq!(lists(&server, AffnScope::Smt).len(), 24);
        assert_eq!(limits(&server, 1024), [512, 512]);
        // Each node has at least min_active, so the sum exceeds max_active.
        assert_eq!(limits(&server, 10), [8, 8]);
        assert_eq!(limits(&server, 3), [3, 3]);
        assert_eq!(limits(&server, 1), [1, 1]);
        // A set of CPUs that leaves out most of one socket.
        let few: CpuSet = "0-5,12".parse().unwrap();
        let shares: Vec<u64> =
            nodes(&server, &few).iter().map(|(_, n)| node_max_active(700, 8, n.len(), few.len())).collect();
        assert_eq!(shares, [600, 100]);
    }

    #[test]
    fn eleven_caches_are_eleven_shards() {
        let epyc = server(1, 11, 8, 88);
        assert_eq!(epyc.llcs().len(), 11);
        assert_eq!(lists(&epyc, AffnScope::CacheShard), lists(&epyc, AffnScope::Cache));
        assert_eq!(lists(&epyc, AffnScope::CacheShard)[1], "8-15,96-103");
        assert_eq!(limits(&epyc, 256), [256]);
    }

    #[test]
    fn a_container_with_half_a_cpu_runs_one_worker() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/self/cgroup", "0::/docker/abc\n"),
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/docker/abc/cpu.max", "50000 100000\n"),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let quota = postread_sys::quota::cpu_quota_in(root.path()).unwrap();
        assert_eq!(quota, Some(0.5));
        let one = topology("devices/system/cpu/online: 0");
        assert_eq!(lists(&one, AffnScope::CacheShard), ["0"]);
        assert_eq!(crate::config::concurrency(1, quota), 1);
        assert_eq!(crate::config::concurrency(16, quota), 1);
        assert_eq!(crate::config::concurrency(16, Some(3.5)), 4);
        assert_eq!(limits(&one, 1024), [1024]);
    }

    #[test]
    fn a_shard_has_at_most_eight_cores_and_none_is_split() {
        for (cores, sizes) in [(8, vec![8]), (9, vec![5, 4]), (16, vec![8, 8]), (17, vec![6, 6, 5]), (72, vec![8; 9])] {
            let lines: Vec<String> = (0..cores)
                .flat_map(|core| {
                    let pair = format!("{core},{}", core + cores);
                    [core, core + cores]
                        .map(|cpu| format!("devices/system/cpu/cpu{cpu}/topology/thread_siblings_list: {pair}"))
                })
                .chain([format!("devices/system/cpu/online: 0-{}", 2 * cores - 1)])
                .collect();
            let topology = topology(&lines.join("\n"));
            let shards = pods(&topology, &topology.online(), AffnScope::CacheShard);
            assert_eq!(shards.iter().map(|s| s.len() / 2).collect::<Vec<_>>(), sizes, "{cores} cores");
            for core in topology.cores() {
                assert!(shards.iter().any(|shard| core.is_subset(shard)), "{core} is split");
            }
        }
    }

    #[test]
    fn every_cpu_is_in_exactly_one_pod() {
        let server = two_sockets();
        for cpus in ["0-47", "1,5,30", "47", "0-11", "3,60"] {
            let cpus: CpuSet = cpus.parse().unwrap();
            for scope in AffnScope::ALL {
                let pods = pods(&server, &cpus, scope);
                assert_eq!(pods.iter().map(CpuSet::len).sum::<usize>(), cpus.len(), "{scope}, {cpus}");
                assert_eq!(pods.iter().fold(CpuSet::new(), |all, p| all.union(p)), cpus);
            }
        }
    }

    #[test]
    fn the_parts_of_pods_round_up() {
        assert_eq!(
            [(4, 4, 8), (4, 8, 64), (64, 8, 64), (1, 8, 64), (4, 2, 2)].map(|(c, p, a)| pod_concurrency(c, p, a)),
            [2, 1, 8, 1, 4]
        );
    }
}
