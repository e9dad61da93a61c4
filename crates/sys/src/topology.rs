//! Which CPUs share a core, a last-level cache, a NUMA node, and how fast each is: from `/sys`.
//!
//! Files read below the root, as Linux Documentation/ABI/stable/sysfs-devices-system-cpu and admin-guide/cputopology
//! describe them: `devices/system/cpu/{online,cpuN/topology/{thread_siblings_list,physical_package_id},
//! cpuN/cache/indexM/{level,type,shared_cpu_list,size},cpuN/cpu_capacity}` and
//! `devices/system/node/{online,nodeN/cpulist}`. Missing files get the values of a plain machine: a core of its own,
//! one package, one cache, one node, full capacity.

use std::fs;
use std::io;
use std::path::Path;
use std::str::FromStr;

use crate::CpuSet;

/// The capacity of the fastest kind of core: capacities are parts of it.
pub const FULL_CAPACITY: u32 = 1024;

/// A level of cache deeper than any machine has bounds the search for `indexM`.
const MAX_CACHES: u32 = 32;

/// The online CPUs of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Topology {
    /// Ascending by number.
    pub cpus: Vec<Cpu>,
}

/// One logical CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cpu {
    /// The kernel's number.
    pub id: u32,
    /// The socket.
    pub package: u32,
    /// The NUMA node.
    pub node: u32,
    /// The online CPUs on the same core, including this one.
    pub siblings: CpuSet,
    /// The online CPUs that share the deepest cache, including this one.
    pub llc: CpuSet,
    /// The size of that cache in bytes; `None` if it is not known.
    pub llc_size: Option<u64>,
    /// Speed against the fastest kind of core of the machine, of [`FULL_CAPACITY`]: below it for little cores.
    pub capacity: u32,
}

impl Topology {
    /// This machine's.
    pub fn current() -> io::Result<Topology> {
        Topology::read(Path::new("/sys"))
    }

    /// From the `sys` tree at `root`.
    ///
    /// # Errors
    /// Reading `devices/system/cpu/online`, or a file that does not hold what it should (`InvalidData`, naming it).
    pub fn read(root: &Path) -> io::Result<Topology> {
        let base = root.join("devices/system/cpu");
        let online: CpuSet = required(&base.join("online"))?;
        let nodes = nodes(&root.join("devices/system/node"))?;
        let cpus = online.iter().map(|id| Cpu::read(&base.join(format!("cpu{id}")), id, &online, &nodes));
        Ok(Topology { cpus: cpus.collect::<io::Result<_>>()? })
    }

    /// A CPU by its number.
    pub fn cpu(&self, id: u32) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&id, |c| c.id).ok().map(|i| &self.cpus[i])
    }

    /// All CPUs.
    pub fn online(&self) -> CpuSet {
        self.cpus.iter().map(|c| c.id).collect()
    }

    /// The groups that share a core, in the order of their first CPUs.
    pub fn cores(&self) -> Vec<CpuSet> {
        groups(self.cpus.iter().map(|c| c.siblings.clone()))
    }

    /// The groups that share a last-level cache, in the order of their first CPUs.
    pub fn llcs(&self) -> Vec<CpuSet> {
        groups(self.cpus.iter().map(|c| c.llc.clone()))
    }

    /// The NUMA nodes that have CPUs, as number and CPUs, ascending by number.
    pub fn nodes(&self) -> Vec<(u32, CpuSet)> {
        let mut ids: Vec<u32> = self.cpus.iter().map(|c| c.node).collect();
        ids.sort_unstable();
        ids.dedup();
        let cpus = |node| self.cpus.iter().filter(|c| c.node == node).map(|c| c.id).collect();
        ids.into_iter().map(|node| (node, cpus(node))).collect()
    }

    /// Are there cores of different capacity (big and little)?
    pub fn is_asymmetric(&self) -> bool {
        self.cpus.windows(2).any(|pair| pair[0].capacity != pair[1].capacity)
    }
}

impl Cpu {
    fn read(dir: &Path, id: u32, online: &CpuSet, nodes: &[(u32, CpuSet)]) -> io::Result<Cpu> {
        let only: CpuSet = [id].into_iter().collect();
        // A list without the CPU itself (seen in virtual machines) leaves it in a group of its own.
        let group = |set: CpuSet| if set.contains(id) { set.intersection(online) } else { only.clone() };
        let siblings = match optional(&dir.join("topology/thread_siblings_list"))? {
            Some(list) => Some(list),
            None => optional(&dir.join("topology/core_cpus_list"))?,
        };
        let mut cache: Option<(u32, CpuSet, Option<u64>)> = None;
        for index in 0..MAX_CACHES {
            let dir = dir.join(format!("cache/index{index}"));
            let Some(level) = optional::<u32>(&dir.join("level"))? else { break };
            let kind: Option<String> = optional(&dir.join("type"))?;
            let Some(shared) = optional(&dir.join("shared_cpu_list"))? else { continue };
            let data = kind.as_deref() != Some("Instruction");
            if data && cache.as_ref().is_none_or(|(deepest, ..)| level > *deepest) {
                let size = optional::<CacheSize>(&dir.join("size"))?.map(|s| s.0);
                cache = Some((level, shared, size));
            }
        }
        let (llc, llc_size) = match cache {
            Some((_, shared, size)) => (group(shared), size),
            None => (online.clone(), None),
        };
        Ok(Cpu {
            id,
            // -1 if the firmware does not report it.
            package: optional::<i64>(&dir.join("topology/physical_package_id"))?
                .and_then(|p| u32::try_from(p).ok())
                .unwrap_or(0),
            node: nodes.iter().find(|(_, cpus)| cpus.contains(id)).map_or(0, |(node, _)| *node),
            siblings: siblings.map_or(only.clone(), group),
            llc,
            llc_size,
            capacity: optional(&dir.join("cpu_capacity"))?.unwrap_or(FULL_CAPACITY),
        })
    }
}

fn nodes(dir: &Path) -> io::Result<Vec<(u32, CpuSet)>> {
    let Some(ids) = optional::<CpuSet>(&dir.join("online"))? else { return Ok(Vec::new()) };
    ids.iter().map(|id| Ok((id, required(&dir.join(format!("node{id}/cpulist")))?))).collect()
}

fn groups(sets: impl Iterator<Item = CpuSet>) -> Vec<CpuSet> {
    let mut groups: Vec<CpuSet> = Vec::new();
    for set in sets {
        if !groups.contains(&set) {
            groups.push(set);
        }
    }
    groups
}

/// A cache's size as in `32768K`.
struct CacheSize(u64);

impl FromStr for CacheSize {
    type Err = ();

    fn from_str(text: &str) -> Result<CacheSize, ()> {
        let (digits, unit) = match text.trim_end_matches(['K', 'M']) {
            digits if text.ends_with('K') => (digits, 1 << 10),
            digits if text.ends_with('M') => (digits, 1 << 20),
            digits => (digits, 1),
        };
        digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).map(CacheSize).ok_or(())
    }
}

fn required<T: FromStr>(path: &Path) -> io::Result<T> {
    optional(path)?.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{}: not there", path.display())))
}

fn optional<T: FromStr>(path: &Path) -> io::Result<Option<T>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io::Error::new(e.kind(), format!("{}: {e}", path.display()))),
    };
    let value = text.trim().parse();
    let malformed = |_| io::Error::new(io::ErrorKind::InvalidData, format!("{}: malformed: {text:?}", path.display()));
    value.map(Some).map_err(malformed)
}
