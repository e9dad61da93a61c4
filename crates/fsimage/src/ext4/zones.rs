//! The blocks that hold the file system's own metadata. No file may have any of them: Linux refuses such a file, since
//! its bytes were never written as file contents.

use super::error::{Error, Fault, Result, Structure, Warning};
use super::group_descriptor::GroupDescriptor;
use super::superblock::Superblock;

/// Runs of blocks in order, apart from one another.
#[derive(Debug, Default)]
pub(crate) struct Blocks(Vec<(u64, u64)>);

impl Blocks {
    /// From runs (first block, number) in any order.
    pub(crate) fn new(mut runs: Vec<(u64, u64)>) -> Self {
        runs.sort_unstable();
        let mut out: Vec<(u64, u64)> = Vec::new();
        for (first, count) in runs {
            let end = first.saturating_add(count);
            match out.last_mut() {
                Some((_, last)) if first <= *last => *last = end.max(*last),
                _ => out.push((first, end)),
            }
        }
        out.shrink_to_fit();
        Self(out)
    }

    /// Whether any of the blocks is in one of the runs.
    pub(crate) fn meet(&self, first: u64, count: u64) -> bool {
        let after = self.0.partition_point(|&(_, end)| end <= first);
        self.0.get(after).is_some_and(|&(start, _)| start < first.saturating_add(count))
    }
}

/// All metadata of a file system, and what was noticed when it was surveyed.
#[derive(Debug, Default)]
pub(crate) struct Zones {
    /// Superblocks, group descriptors, bitmaps and inode tables.
    groups: Blocks,
    /// The journal: its inode, which may have these blocks, and the blocks.
    journal: Option<(u32, Blocks)>,
    pub(crate) warnings: Vec<Warning>,
}

/// More block groups than this are not surveyed: 256 TiB of blocks of 4 KiB.
const GROUPS_MAX: u64 = 1 << 21;

/// Warnings of one kind that are kept.
const WARNINGS_MAX: usize = 16;

impl Zones {
    /// Reads all group descriptors. `descriptor` gives the one of a group, and whether its checksum is wrong.
    pub(crate) fn survey(
        superblock: &Superblock,
        descriptor: impl Fn(u64) -> Result<(GroupDescriptor, bool)>,
    ) -> Result<Self> {
        let groups = superblock.groups_count();
        if groups > GROUPS_MAX {
            let fault = Fault::Limit { field: "the number of block groups", value: groups, limit: GROUPS_MAX };
            return Err(fault.of(Structure::Superblock).into());
        }
        let (mut runs, mut warnings) = (Vec::new(), Vec::new());
        let mut unusable: Option<(u64, u64, Error)> = None;
        let table = superblock.inode_table_blocks();
        for group in 0..groups {
            add(&mut runs, superblock.group_start(group), superblock.base_metadata_blocks(group));
            match descriptor(group) {
                Ok((found, wrong)) => {
                    if wrong && warnings.len() < WARNINGS_MAX {
                        warnings.push(Warning::GroupChecksum { group });
                    }
                    for (first, count) in [(found.block_bitmap, 1), (found.inode_bitmap, 1), (found.inode_table, table)]
                    {
                        if superblock.has_blocks(first, count) {
                            add(&mut runs, first, count);
                        }
                    }
                }
                Err(error) => match &mut unusable {
                    Some((count, ..)) => *count = count.saturating_add(1),
                    None => unusable = Some((1, group, error)),
                },
            }
        }
        if let Some((count, group, error)) = unusable {
            warnings.push(Warning::Groups { count, group, error: error.to_string() });
        }
        Ok(Self { groups: Blocks::new(runs), journal: None, warnings })
    }

    /// Adds the journal: its inode and its runs of blocks.
    pub(crate) fn with_journal(self, ino: u32, runs: Vec<(u64, u64)>) -> Self {
        Self { journal: Some((ino, Blocks::new(runs))), ..self }
    }

    /// Whether inode `ino` may have these blocks.
    pub(crate) fn allow(&self, ino: u32, first: u64, count: u64) -> bool {
        let journal = self.journal.as_ref().filter(|(owner, _)| *owner != ino);
        !self.groups.meet(first, count) && journal.is_none_or(|(_, blocks)| !blocks.meet(first, count))
    }
}

/// Adds a run, merging it into the last one if it continues that.
fn add(runs: &mut Vec<(u64, u64)>, first: u64, count: u64) {
    match runs.last_mut() {
        Some((start, len)) if start.saturating_add(*len) == first => *len = len.saturating_add(count),
        _ if count > 0 => runs.push((first, count)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_meet_where_they_share_a_block() {
        let blocks = Blocks::new(vec![(20, 5), (10, 2), (12, 3), (40, 1), (21, 1)]);
        assert_eq!(blocks.0, [(10, 15), (20, 25), (40, 41)]);
        for (first, count, meets) in [
            (0, 10, false),
            (0, 11, true),
            (14, 1, true),
            (15, 5, false),
            (15, 6, true),
            (25, 15, false),
            (41, 9, false),
        ] {
            assert_eq!(blocks.meet(first, count), meets, "{first} {count}");
        }
    }

    #[test]
    fn the_journal_has_its_own_blocks() {
        let zones = Zones::default().with_journal(8, vec![(5, 5)]);
        assert!(zones.allow(8, 5, 5) && !zones.allow(12, 9, 1) && zones.allow(12, 10, 1));
    }
}
