//! A set of CPU numbers, and the kernel's list format for it.

use std::fmt;
use std::str::FromStr;

/// Highest CPU number that a list may name, exclusive. The kernel's own limit (`CONFIG_NR_CPUS`) is 8192 on the
/// largest configurations; the bound keeps a hostile list from making a huge set.
pub(crate) const MAX_CPUS: u32 = 1 << 16;

const BITS: u32 = u64::BITS;

/// A set of CPUs, by the kernel's numbers. Not limited to 1024 as C's `cpu_set_t` is.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    /// Bit `c % 64` of word `c / 64` is CPU `c`; the last word is never zero, so that equal sets are equal vectors.
    words: Vec<u64>,
}

/// A CPU list in the kernel's format that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a CPU list: {text:?}")]
#[non_exhaustive]
pub struct CpuListError {
    /// The part that is not a number or range, at most the first 64 characters.
    pub text: String,
}

impl CpuSet {
    /// The empty set.
    pub fn new() -> CpuSet {
        CpuSet::default()
    }

    /// Adds a CPU; true if it was not there.
    ///
    /// # Panics
    /// For numbers of 65536 and above, which no kernel uses.
    pub fn insert(&mut self, cpu: u32) -> bool {
        assert!(cpu < MAX_CPUS, "CPU {cpu} is beyond what any kernel has");
        let (word, bit) = ((cpu / BITS) as usize, 1u64 << (cpu % BITS));
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        new
    }

    /// Takes a CPU out; true if it was there.
    pub fn remove(&mut self, cpu: u32) -> bool {
        let there = self.contains(cpu);
        if there {
            self.words[(cpu / BITS) as usize] &= !(1u64 << (cpu % BITS));
            self.trim();
        }
        there
    }

    /// Is this CPU in the set?
    pub fn contains(&self, cpu: u32) -> bool {
        self.words.get((cpu / BITS) as usize).is_some_and(|w| w >> (cpu % BITS) & 1 == 1)
    }

    /// How many CPUs.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// No CPU at all?
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The lowest CPU.
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// The highest CPU.
    pub fn last(&self) -> Option<u32> {
        let word = self.words.last()?;
        Some((self.words.len() as u32 - 1) * BITS + (BITS - 1 - word.leading_zeros()))
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words
            .iter()
            .enumerate()
            .flat_map(|(i, &w)| (0..BITS).filter(move |b| w >> b & 1 == 1).map(move |b| i as u32 * BITS + b))
    }

    /// The CPUs in both sets.
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        CpuSet::from_words(self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect())
    }

    /// The CPUs in either set.
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        let word = |s: &CpuSet, i: usize| s.words.get(i).copied().unwrap_or(0);
        let len = self.words.len().max(other.words.len());
        CpuSet::from_words((0..len).map(|i| word(self, i) | word(other, i)).collect())
    }

    /// Is every CPU of this set in the other?
    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.intersection(other) == *self
    }

    pub(crate) fn from_words(words: Vec<u64>) -> CpuSet {
        let mut set = CpuSet { words };
        set.trim();
        set
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> CpuSet {
        let mut set = CpuSet::new();
        set.extend(cpus);
        set
    }
}

impl Extend<u32> for CpuSet {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, cpus: I) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

/// Reads the kernel's list format, as in `/sys/devices/system/cpu/online`: `0-3,8`; empty for no CPU.
impl FromStr for CpuSet {
    type Err = CpuListError;

    fn from_str(list: &str) -> Result<CpuSet, CpuListError> {
        let mut set = CpuSet::new();
        for part in list.trim().split(',').filter(|p| !p.is_empty()) {
            let error = || CpuListError { text: part.chars().take(64).collect() };
            let number = |s: &str| s.parse::<u32>().ok().filter(|&c| c < MAX_CPUS).ok_or_else(error);
            let (from, to) = match part.split_once('-') {
                Some((from, to)) => (number(from)?, number(to)?),
                None => (number(part)?, number(part)?),
            };
            if from > to {
                return Err(error());
            }
            set.extend(from..=to);
        }
        Ok(set)
    }
}

/// Writes the kernel's list format.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut comma = "";
        while let Some(from) = cpus.next() {
            let mut to = from;
            while cpus.next_if_eq(&(to + 1)).is_some() {
                to += 1;
            }
            write!(f, "{comma}{from}")?;
            if to > from {
                write!(f, "-{to}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_format_both_ways() {
        for (list, cpus) in [
            ("", vec![]),
            ("0", vec![0]),
            ("0-3,8", vec![0, 1, 2, 3, 8]),
            ("63-64,127-128,1030", vec![63, 64, 127, 128, 1030]),
        ] {
            let set: CpuSet = list.parse().unwrap();
            assert_eq!(set.iter().collect::<Vec<_>>(), cpus, "{list}");
            assert_eq!(set.to_string(), list);
            assert_eq!(set.len(), cpus.len());
            assert_eq!(set.first(), cpus.first().copied());
            assert_eq!(set.last(), cpus.last().copied());
        }
        assert_eq!("0-3\n".parse::<CpuSet>().unwrap().len(), 4);
    }

    #[test]
    fn bad_lists_are_errors() {
        for list in ["x", "3-1", "-", "1-", "-1", "4294967296", "0-4294967295", "65536", "0,,x", "0x3"] {
            assert!(list.parse::<CpuSet>().is_err(), "{list}");
        }
    }

    #[test]
    fn set_operations() {
        let a: CpuSet = [0, 1, 70].into_iter().collect();
        let b: CpuSet = [1, 2].into_iter().collect();
        assert_eq!(a.intersection(&b).to_string(), "1");
        assert_eq!(a.union(&b).to_string(), "0-2,70");
        assert!(a.intersection(&b).is_subset(&b) && !a.is_subset(&b));
        let mut c = a.clone();
        assert!(c.remove(70) && !c.remove(70) && !c.contains(70));
        assert_eq!(c, [1, 0].into_iter().collect());
        assert!(c.insert(5) && !c.insert(5));
    }
}
