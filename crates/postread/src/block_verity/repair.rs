//! Repairs damaged blocks from a second copy or from parity. A block counts as repaired only if its digest matches.

use std::collections::BTreeMap;

use postread_io::ReadAt;
use postread_verity::Digest;
use postread_verity::dm_verity::Verifier;
use postread_verity::fec::Decoder;

use super::fec::Fec;
use super::verify::{Area, BadRun, Cause, verify};
use super::{Device, Threads, parallel};

/// A repaired block, with its correct bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repaired {
    /// What it belongs to.
    pub area: Area,
    /// Its number: counted in its level, or on the data device.
    pub index: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// The repaired blocks: hash blocks and data.
    pub repaired: Vec<Repaired>,
    /// The blocks that could not be repaired.
    pub left: Vec<BadRun>,
}

/// A device seen through the repairs so far.
pub(super) struct Patched<'a> {
    pub(super) source: &'a dyn ReadAt,
    /// By byte offset.
    pub(super) blocks: &'a BTreeMap<u64, Vec<u8>>,
}

impl ReadAt for Patched<'_> {
    fn len(&self) -> std::io::Result<u64> {
        self.source.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        // Blocks of one device have one size, so a block that covers `offset` is the last that begins at or before it.
        let end = offset.saturating_add(buf.len() as u64);
        if let Some((at, block)) = self.blocks.range(..=offset).next_back()
            && let Some(rest) = block.get((offset - at) as usize..).filter(|rest| !rest.is_empty())
        {
            let n = rest.len().min(buf.len());
            buf[..n].copy_from_slice(&rest[..n]);
            return Ok(n);
        }
        let until = self.blocks.range(offset..end).next().map_or(end, |(at, _)| *at);
        self.source.read_at(&mut buf[..(until - offset) as usize], offset)
    }
}

/// Repaired blocks, by byte offset on either device.
#[derive(Default)]
struct Patches {
    data: BTreeMap<u64, Vec<u8>>,
    hash: BTreeMap<u64, Vec<u8>>,
}

/// Where a block is on its device, in bytes.
pub(super) fn offset_of(device: &Device<'_>, verifier: &Verifier, area: Area, index: u64) -> u64 {
    match area {
        Area::Data => index << verifier.params().log_data_block_size(),
        Area::Hash { level } => {
            let in_level = index << verifier.params().log_hash_block_size();
            device.hash_area + verifier.geometry().level_offset(level) + in_level
        }
    }
}

/// The digest that a block must have, through the hash blocks above it, each of which is checked.
fn wanted(device: &Device<'_>, verifier: &Verifier, area: Area, index: u64) -> Option<Digest> {
    let above = match area {
        Area::Data => 0,
        Area::Hash { level } => level + 1,
    };
    let g = verifier.geometry();
    if above == g.num_levels() {
        return Some(*verifier.root_hash());
    }
    let size = verifier.params().hash_block_size();
    let (parent, slot) = (index / g.hashes_per_block(), (index % g.hashes_per_block()) as usize);
    let mut block = vec![0; size];
    device.hash.read_exact_at(&mut block, offset_of(device, verifier, Area::Hash { level: above }, parent)).ok()?;
    if digest(verifier, &block, size) != wanted(device, verifier, Area::Hash { level: above }, parent)? {
        return None;
    }
    let at = slot * verifier.params().digest_stride();
    Digest::new(verifier.params().alg(), &block[at..at + verifier.params().digest_size()])
}

fn digest(verifier: &Verifier, block: &[u8], size: usize) -> Digest {
    let mut out = vec![0; verifier.params().digest_size()];
    verifier.params().block_hasher().hash_blocks(block, size, &mut out);
    Digest::new(verifier.params().alg(), &out).expect("the digest has its algorithm's size")
}

fn block_size(verifier: &Verifier, area: Area) -> usize {
    match area {
        Area::Data => verifier.params().data_block_size(),
        Area::Hash { .. } => verifier.params().hash_block_size(),
    }
}

/// Finds all bad blocks and their original contents: from `copies` of data and tree that may be damaged elsewhere, then
/// from parity. Nothing is written. `repaired` is in memory, so it is as large as the repairable damage.
///
/// Good blocks are never touched, and no block is returned whose digest is not the one that the root hash leads to.
pub fn repair(
    device: &Device<'_>,
    verifier: &Verifier,
    fec: Option<&Fec<'_>>,
    copies: &[Device<'_>],
    threads: Threads,
) -> RepairReport {
    let mut patches = Patches::default();
    let mut repaired: Vec<Repaired> = Vec::new();
    loop {
        let data = Patched { source: device.data, blocks: &patches.data };
        let hash = Patched { source: device.hash, blocks: &patches.hash };
        let seen = Device { data: &data, hash: &hash, hash_area: device.hash_area };
        let report = verify(&seen, verifier, threads);
        let mut bad: BTreeMap<(Area, u64), Digest> = BTreeMap::new();
        for run in report.bad.iter().filter(|run| run.cause != Cause::Unverifiable) {
            for index in run.first..run.first + run.count {
                let digest = wanted(&seen, verifier, run.area, index);
                bad.extend(digest.map(|digest| ((run.area, index), digest)));
            }
        }
        let mut found = Vec::new();
        for copy in copies {
            let there = from_copy(copy, verifier, &bad);
            for one in &there {
                bad.remove(&(one.area, one.index));
            }
            found.extend(there);
        }
        if let Some(fec) = fec {
            // Blocks repaired from the copies help their neighbours in the next round.
            if found.is_empty() {
                let unknown: Vec<_> = report.bad.iter().filter(|run| run.cause == Cause::Unverifiable).collect();
                found = from_fec(&seen, verifier, fec, &bad, &unknown, threads);
            }
        }
        if found.is_empty() {
            return RepairReport { repaired, left: report.bad };
        }
        for one in &found {
            let offset = offset_of(device, verifier, one.area, one.index);
            let map = if one.area == Area::Data { &mut patches.data } else { &mut patches.hash };
            map.insert(offset, one.bytes.clone());
        }
        repaired.extend(found);
    }
}

/// Bad blocks that are good in another copy.
fn from_copy(copy: &Device<'_>, verifier: &Verifier, bad: &BTreeMap<(Area, u64), Digest>) -> Vec<Repaired> {
    let mut found = Vec::new();
    for (&(area, index), wanted) in bad {
        let size = block_size(verifier, area);
        let source = if area == Area::Data { copy.data } else { copy.hash };
        let mut bytes = vec![0; size];
        let read = source.read_exact_at(&mut bytes, offset_of(copy, verifier, area, index));
        if read.is_ok() && digest(verifier, &bytes, size) == *wanted {
            found.push(Repaired { area, index, bytes });
        }
    }
    found
}

/// The block of the message that corresponds to a block of the device.
fn message_block(verifier: &Verifier, area: Area, index: u64) -> u64 {
    match area {
        Area::Data => index,
        Area::Hash { level } => {
            let g = verifier.geometry();
            g.data_blocks() + g.level(level).start + index
        }
    }
}

/// Blocks recovered from parity.
fn from_fec(
    device: &Device<'_>,
    verifier: &Verifier,
    fec: &Fec<'_>,
    bad: &BTreeMap<(Area, u64), Digest>,
    unknown: &[&BadRun],
    threads: Threads,
) -> Vec<Repaired> {
    // Runs of the message whose state is unknown, in order: data first, then hash blocks as they are stored.
    let mut unknown: Vec<(u64, u64)> =
        unknown.iter().map(|run| (message_block(verifier, run.area, run.first), run.count)).collect();
    unknown.sort_unstable();
    let layout = *fec.message.layout();
    let message = fec.message.over(*device);
    let mut by_group: BTreeMap<u64, Vec<_>> = BTreeMap::new();
    for (&(area, index), &digest) in bad {
        let (row, group) = layout.place_of(message_block(verifier, area, index));
        by_group.entry(group).or_default().push((row, (area, index), digest));
    }
    let groups: Vec<_> = by_group.into_iter().collect();
    let size = layout.block_size();
    let found = parallel(
        threads,
        groups.len() as u64,
        || (Decoder::new(layout.roots(), size), Vec::new()),
        |(decoder, rows), job| {
            let (group, bad) = &groups[job as usize];
            if !read_group(&message, fec, *group, decoder, rows) {
                return None;
            }
            let is_unknown = |row: &usize| {
                let block = layout.block_at(*row, *group)?;
                let at = unknown.partition_point(|&(first, _)| first <= block).checked_sub(1)?;
                (block - unknown[at].0 < unknown[at].1).then_some(())
            };
            let suspects: Vec<usize> = (0..layout.rows()).filter(|row| is_unknown(row).is_some()).collect();
            Some(decode(verifier, decoder, rows, bad, &suspects, size))
        },
    );
    found.into_iter().flatten().flatten().collect()
}

/// Reads one group of columns into the decoder. Rows that cannot be read are zeros.
fn read_group(
    message: &super::Message<'_>,
    fec: &Fec<'_>,
    group: u64,
    decoder: &mut Decoder,
    rows: &mut Vec<Vec<u8>>,
) -> bool {
    let layout = message.layout();
    let size = layout.block_size();
    let mut parity = vec![0; size * layout.roots()];
    let offset = fec.offset.saturating_add(layout.parity_offset(group));
    if fec.parity.read_exact_at(&mut parity, offset).is_err() {
        return false;
    }
    decoder.reset();
    rows.clear();
    for row in 0..layout.rows() {
        let mut block = vec![0; size];
        if let Some(number) = layout.block_at(row, group) {
            let (source, offset) = message.place(number);
            if source.read_exact_at(&mut block, offset).is_err() {
                block.fill(0);
            }
        }
        decoder.push_row(&block);
        rows.push(block);
    }
    decoder.set_parity(&parity);
    true
}

/// Tries to bring back the bad blocks of one group of columns: as erasures, if there are few enough of them; with
/// `suspects`, blocks whose state is unknown, as erasures too; as errors in unknown places.
fn decode(
    verifier: &Verifier,
    decoder: &Decoder,
    rows: &[Vec<u8>],
    bad: &[(usize, (Area, u64), Digest)],
    suspects: &[usize],
    size: usize,
) -> Vec<Repaired> {
    let known: Vec<usize> = bad.iter().map(|(row, ..)| *row).collect();
    let mut with_suspects = [&known[..], suspects].concat();
    with_suspects.sort_unstable();
    with_suspects.dedup();
    let mut found: BTreeMap<usize, Repaired> = BTreeMap::new();
    for erasures in [&known, &with_suspects, &Vec::new()] {
        let candidates = candidates(decoder, rows, &known, erasures);
        for (row, (area, index), wanted) in bad {
            if let Some(bytes) = candidates.get(row)
                && digest(verifier, bytes, size) == *wanted
            {
                found.insert(*row, Repaired { area: *area, index: *index, bytes: bytes.clone() });
            }
        }
        if found.len() == bad.len() {
            break;
        }
    }
    found.into_values().collect()
}

/// What the rows `known` are if only `erasures` and few other bytes are wrong.
fn candidates(decoder: &Decoder, rows: &[Vec<u8>], known: &[usize], erasures: &[usize]) -> BTreeMap<usize, Vec<u8>> {
    let Some(repair) = decoder.erasures(erasures) else { return BTreeMap::new() };
    let mut candidates = BTreeMap::new();
    for &row in known {
        let mut block = rows[row].clone();
        for (byte, correction) in block.iter_mut().zip(repair.correction(row).unwrap_or_default()) {
            *byte ^= correction;
        }
        candidates.insert(row, block);
    }
    // Something else is wrong in these columns.
    for column in repair.inconsistent() {
        let corrections = decoder.correct_column(column, erasures).unwrap_or_default();
        for (&row, block) in &mut candidates {
            let value = corrections.iter().find(|(at, _)| *at == row).map_or(0, |(_, value)| *value);
            block[column] = rows[row][column] ^ value;
        }
    }
    candidates
}
