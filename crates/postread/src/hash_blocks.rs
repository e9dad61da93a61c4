//! The hash blocks of one tree: their own plan, a bounded cache of checked blocks, and those in flight.
//!
//! Only blocks that were checked enter the cache, each as an immutable value that holds the bytes that were hashed;
//! evicting it drops both together. Failed blocks are not cached: the next read goes to the source again. Looking up a
//! block takes no lock.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use postread_io::{BlockStatus, Buf, Statuses};

use crate::engine::OpenCount;
use crate::inputs::{HashBio, InputBlocks, InputTimes, InputValue, LaunchesHashBios, WaitsForInputs, WantedBlock};
use crate::plan::{Mapping, Plan, StepInputs};
use crate::step::{Step, VerifiedBlock};

const WAYS: usize = 4;
/// Most hash blocks in one bio.
const MAX_RUN: u64 = 32;

struct Set {
    /// Which block a way holds, so that a look-up checks only one. A hint: the block's own index decides.
    tags: [AtomicU64; WAYS],
    ways: [ArcSwapOption<VerifiedBlock>; WAYS],
    used: [AtomicBool; WAYS],
    hand: AtomicUsize,
}

impl Set {
    fn new() -> Self {
        Self {
            tags: [const { AtomicU64::new(u64::MAX) }; WAYS],
            ways: [const { ArcSwapOption::const_empty() }; WAYS],
            used: [const { AtomicBool::new(false) }; WAYS],
            hand: AtomicUsize::new(0),
        }
    }
}

/// A slot among the inputs of a bio in flight that waits for a hash block.
struct Waiter {
    flight: Arc<dyn WaitsForInputs>,
    slot: u32,
}

/// The hash blocks of one tree, for the steps that need them.
pub struct HashBlocks {
    plan: Arc<Plan>,
    block_size: u32,
    blocks: u64,
    /// The ranges of blocks that one bio may cover: one per level, so that no bio waits for itself.
    levels: Vec<Range<u64>>,
    sets: Vec<Set>,
    in_flight: Mutex<HashMap<u64, Vec<Waiter>>>,
    misses: AtomicU64,
}

impl HashBlocks {
    /// The hash blocks of a tree whose place `map` describes. `before` are the steps that a tree block goes through
    /// first (the tree of an encrypted file is encrypted); `check` is the step that checks tree blocks against their
    /// parents, whose inputs are hash blocks of this same tree. `levels` are the levels' ranges of blocks, in any
    /// order, from 0 to the number of blocks. At most `cache_bytes` of checked blocks are kept (0: none).
    pub fn new(
        map: Arc<dyn Mapping>,
        before: Vec<Arc<dyn Step>>,
        check: Arc<dyn Step>,
        levels: Vec<Range<u64>>,
        cache_bytes: usize,
    ) -> Arc<Self> {
        let block_size = check.block_size();
        let blocks = levels.iter().map(|l| l.end).max().unwrap_or(0);
        let mut plan = Plan::new(map, blocks.saturating_mul(u64::from(block_size)));
        for step in before {
            plan = plan.step(step);
        }
        plan = plan.step_with(check, StepInputs::Own);
        let wanted = (cache_bytes / block_size.max(1) as usize).min(usize::try_from(blocks).unwrap_or(usize::MAX));
        let sets = if wanted == 0 { 0 } else { wanted.div_ceil(WAYS).next_power_of_two() };
        Arc::new(Self {
            plan: Arc::new(plan),
            block_size,
            blocks,
            levels,
            sets: (0..sets).map(|_| Set::new()).collect(),
            in_flight: Mutex::new(HashMap::new()),
            misses: AtomicU64::new(0),
        })
    }

    /// The number of hash blocks.
    pub fn len(&self) -> u64 {
        self.blocks
    }

    /// True for the tree of a file of one block or none.
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// The size of a hash block, in bytes.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// How many hash blocks had to be read because they were not in the cache.
    pub fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    /// Drops every checked block from the cache, as an eviction does. Bios in flight keep theirs.
    pub fn evict_all(&self) {
        for way in self.sets.iter().flat_map(|s| &s.ways) {
            way.store(None);
        }
    }

    fn set_of(&self, index: u64) -> Option<&Set> {
        let mask = self.sets.len().checked_sub(1)?;
        self.sets.get((index as usize) & mask)
    }

    /// A checked block, if it is in the cache.
    fn find(&self, index: u64) -> Option<Arc<VerifiedBlock>> {
        let set = self.set_of(index)?;
        set.tags.iter().enumerate().filter(|(_, tag)| tag.load(Ordering::Relaxed) == index).find_map(|(way, _)| {
            let block = set.ways[way].load_full().filter(|b| b.index == index)?;
            if !set.used[way].load(Ordering::Relaxed) {
                set.used[way].store(true, Ordering::Relaxed);
            }
            Some(block)
        })
    }

    /// Stores a checked block, replacing the least recently used one.
    fn insert(&self, block: &Arc<VerifiedBlock>) {
        let Some(set) = self.set_of(block.index) else { return };
        let empty = set.ways.iter().position(|way| way.load().as_ref().is_none_or(|b| b.index == block.index));
        let victim = empty.unwrap_or_else(|| {
            for _ in 0..WAYS {
                let at = set.hand.fetch_add(1, Ordering::Relaxed) % WAYS;
                if !set.used[at].swap(false, Ordering::Relaxed) {
                    return at;
                }
            }
            set.hand.load(Ordering::Relaxed) % WAYS
        });
        set.ways[victim].store(Some(block.clone()));
        set.tags[victim].store(block.index, Ordering::Relaxed);
    }

    fn add_to_runs(&self, runs: &mut Vec<Range<u64>>, index: u64) {
        if let Some(last) = runs.last_mut()
            && last.end == index
            && last.end - last.start < MAX_RUN
            && self.levels.iter().any(|l| l.contains(&last.start) && l.contains(&index))
        {
            last.end += 1;
        } else {
            runs.push(index..index + 1);
        }
    }

    fn as_input_status(&self, index: u64, status: &BlockStatus) -> BlockStatus {
        match status {
            BlockStatus::Corrupt(_) | BlockStatus::Input { .. } | BlockStatus::MissingKey { .. } => status.clone(),
            other => BlockStatus::Input {
                position: index.saturating_mul(u64::from(self.block_size)),
                cause: Box::new(other.clone()),
            },
        }
    }
}

impl InputBlocks for HashBlocks {
    fn block_size(&self) -> u32 {
        self.block_size
    }

    fn len(&self) -> u64 {
        self.blocks
    }

    fn cached(&self, index: u64) -> Option<Arc<VerifiedBlock>> {
        self.find(index)
    }

    fn request(
        self: Arc<Self>,
        launcher: &Arc<dyn LaunchesHashBios>,
        open: &Arc<OpenCount>,
        flight: &Arc<dyn WaitsForInputs>,
        wanted: &[WantedBlock],
        ahead: u64,
    ) {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut there = Vec::new();
        {
            let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
            for &(index, slot) in wanted {
                let waiter = Waiter { flight: flight.clone(), slot };
                if let Some(waiters) = in_flight.get_mut(&index) {
                    waiters.push(waiter);
                } else if let Some(block) = self.find(index) {
                    there.push((waiter, block));
                } else {
                    in_flight.insert(index, vec![waiter]);
                    self.add_to_runs(&mut runs, index);
                }
            }
            if let Some(last) = runs.last_mut() {
                let level_end = self.levels.iter().find(|l| l.contains(&last.start)).map_or(last.end, |l| l.end);
                let until = last.end.saturating_add(ahead).min(level_end).min(last.start + MAX_RUN);
                while last.end < until && !in_flight.contains_key(&last.end) && self.find(last.end).is_none() {
                    in_flight.insert(last.end, Vec::new());
                    last.end += 1;
                }
            }
        }
        self.misses.fetch_add(runs.iter().map(|r| r.end - r.start).sum(), Ordering::Relaxed);
        for run in runs {
            let block_size = u64::from(self.block_size);
            launcher.clone().launch_hash_bio(HashBio {
                plan: self.plan.clone(),
                open: open.clone(),
                blocks: self.clone(),
                offset: run.start * block_size,
                len: (run.end - run.start) * block_size,
            });
        }
        for (waiter, block) in there {
            waiter.flight.input_arrived(waiter.slot, Ok(block), InputTimes::default());
        }
    }

    fn ended(&self, first: u64, buf: Buf, statuses: &Statuses, times: InputTimes) {
        let size = self.block_size as usize;
        let count = buf.len() / size;
        // A single block keeps the buffer that was checked; several are copied one by one, so that evicting one frees
        // its memory independently of the others.
        let (whole, several) = if count == 1 { (Some(buf), None) } else { (None, Some(buf)) };
        let mut whole = whole;
        let results: Vec<InputValue> = (0..count)
            .map(|n| {
                let range = n * size..(n + 1) * size;
                let index = first + n as u64;
                if let Some(bad) = statuses.first_bad(range.clone()) {
                    return Err(self.as_input_status(index, &bad.status));
                }
                let mut bytes = whole.take().unwrap_or_else(|| Buf::new(size));
                bytes.uncharge();
                if let Some(several) = &several {
                    bytes.copy_from_slice(&several[range]);
                }
                Ok(Arc::new(VerifiedBlock { index, bytes }))
            })
            .collect();
        // Into the cache before they leave the table: a thread that finds neither would read them again.
        results.iter().flatten().for_each(|block| self.insert(block));
        let mut arrivals = Vec::with_capacity(count);
        {
            let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
            for (n, value) in results.into_iter().enumerate() {
                let waiters = in_flight.remove(&(first + n as u64)).unwrap_or_default();
                arrivals.extend(waiters.into_iter().map(|w| (w, value.clone())));
            }
        }
        for (waiter, value) in arrivals {
            waiter.flight.input_arrived(waiter.slot, value, times);
        }
    }
}

impl Plan {
    /// Adds a step whose inputs are hash blocks of `blocks`, such as a verification.
    #[must_use]
    pub fn verified_step(self, step: Arc<dyn Step>, blocks: Arc<HashBlocks>) -> Self {
        self.step_with(step, StepInputs::Blocks(blocks))
    }
}

impl fmt::Debug for HashBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashBlocks")
            .field("blocks", &self.blocks)
            .field("block_size", &self.block_size)
            .field("cache_blocks", &(self.sets.len() * WAYS))
            .finish_non_exhaustive()
    }
}
