//! What SHA-256 and SHA-512 share: padding and batching of many messages `prefix || block || suffix` of equal length.
//!
//! The messages differ only in their blocks. So the prefix's whole compression blocks become a midstate, computed once;
//! the rest of the prefix is copied before the start of each block in a small buffer; the middle of each block is
//! compressed in place; and what follows (suffix, padding, length) is laid out once for all messages.

use alloc::vec::Vec;
use core::fmt::Debug;

use crate::Platform;

/// The differences between SHA-256 and SHA-512.
pub(crate) trait Sha2: Sized {
    /// A word of the state.
    type Word: Copy + Default + Debug;
    /// The ways to compress on this architecture: one CPU level and number of lanes each.
    type Kernel: Copy + Debug;
    /// The compression block's size in bytes.
    const BLOCK: usize;
    /// The size in bytes of the message length that ends the padding.
    const LENGTH: usize;
    /// The state before the first block.
    const START: [Self::Word; 8];

    /// Writes a word of the digest.
    fn write_word(word: Self::Word, out: &mut [u8]);

    /// The kernel that does best on the first of `remaining` messages.
    fn choose(platform: Platform, remaining: usize) -> Self::Kernel;

    /// Hashes as many of the job's remaining messages as the kernel has lanes.
    fn step(kernel: Self::Kernel, job: &mut Job<'_, '_, Self>);
}

/// The compression block of SHA-512, the larger one.
const MAX_BLOCK: usize = 128;

/// The common part of all messages.
#[derive(Clone)]
pub(crate) struct Common<A: Sha2> {
    midstate: [A::Word; 8],
    prefix_len: usize,
    /// The end of the prefix that is no whole compression block.
    pending: Vec<u8>,
    suffix: Vec<u8>,
}

impl<A: Sha2> Common<A> {
    pub(crate) fn new() -> Self {
        Self { midstate: A::START, prefix_len: 0, pending: Vec::new(), suffix: Vec::new() }
    }

    pub(crate) fn set_prefix(&mut self, platform: Platform, prefix: &[u8]) {
        let (whole, pending) = prefix.split_at(prefix.len() / A::BLOCK * A::BLOCK);
        self.midstate = A::START;
        self.prefix_len = prefix.len();
        self.pending = pending.to_vec();
        if !whole.is_empty() {
            // A message of whole blocks without padding: the state after it is the midstate.
            let mut job = Job {
                common: &Common::<A>::new(),
                tail: &[],
                lead: 0,
                block: &|_| whole,
                block_len: whole.len(),
                next: 0,
                end: 1,
                sink: Sink::State(&mut self.midstate),
            };
            A::step(A::choose(platform, 1), &mut job);
        }
    }

    pub(crate) fn set_suffix(&mut self, suffix: &[u8]) {
        self.suffix = suffix.to_vec();
    }

    /// Hashes `count` messages whose blocks are `block_len` bytes long; `out` has room for their digests.
    pub(crate) fn hash<'a>(
        &self,
        kernel: impl Fn(usize) -> A::Kernel,
        count: usize,
        block_len: usize,
        block: &dyn Fn(usize) -> &'a [u8],
        out: &mut [u8],
    ) {
        if count == 0 {
            return;
        }
        let lead = (self.pending.len() + block_len) % A::BLOCK;
        let tail = self.tail(lead, block_len);
        let mut job =
            Job { common: self, tail: &tail, lead, block, block_len, next: 0, end: count, sink: Sink::Digests(out) };
        while job.next < job.end {
            A::step(kernel(job.end - job.next), &mut job);
        }
    }

    /// What follows the last whole compression block: `lead` bytes of the message's own, then the suffix, a one bit,
    /// zeros, and the length in bits (FIPS 180-4, 5.1).
    fn tail(&self, lead: usize, block_len: usize) -> Vec<u8> {
        let len = (lead + self.suffix.len() + 1 + A::LENGTH).next_multiple_of(A::BLOCK);
        let mut tail = Vec::with_capacity(len);
        tail.resize(lead, 0);
        tail.extend_from_slice(&self.suffix);
        tail.push(0x80);
        tail.resize(len, 0);
        let bytes = self.prefix_len as u128 + block_len as u128 + self.suffix.len() as u128;
        // Memory cannot hold 2^61 bytes, so that SHA-256's 64 bits are enough.
        tail[len - A::LENGTH..].copy_from_slice(&(bytes * 8).to_be_bytes()[16 - A::LENGTH..]);
        tail
    }
}

/// Where the states of finished messages go.
enum Sink<'a, A: Sha2> {
    Digests(&'a mut [u8]),
    State(&'a mut [A::Word; 8]),
}

/// Messages to hash.
pub(crate) struct Job<'a, 'b, A: Sha2> {
    common: &'a Common<A>,
    tail: &'a [u8],
    /// How many bytes at the tail's start are the message's own.
    lead: usize,
    block: &'a dyn Fn(usize) -> &'b [u8],
    block_len: usize,
    next: usize,
    end: usize,
    sink: Sink<'a, A>,
}

impl<A: Sha2> Job<'_, '_, A> {
    /// Hashes the next `N` messages, or those that remain: lanes beyond them repeat the last one.
    ///
    /// `compress` advances a word-major state (`state[word][lane]`) over inputs of whole compression blocks.
    #[inline(always)]
    pub(crate) fn run<const N: usize>(&mut self, compress: impl Fn(&mut [[A::Word; N]; 8], &[&[u8]; N])) {
        self.run_with_tail(|state, inputs, tail| {
            if !inputs[0].is_empty() {
                compress(state, inputs);
            }
            if !tail.is_empty() {
                compress(state, &[tail; N]);
            }
        });
    }

    /// [`Job::run`] for a `compress` that continues with the tail that all inputs share.
    #[inline(always)]
    pub(crate) fn run_with_tail<const N: usize>(
        &mut self,
        compress: impl Fn(&mut [[A::Word; N]; 8], &[&[u8]; N], &[u8]),
    ) {
        let used = N.min(self.end - self.next);
        let blocks: [&[u8]; N] = core::array::from_fn(|lane| {
            let block = (self.block)(self.next + lane.min(used - 1));
            assert_eq!(block.len(), self.block_len);
            block
        });
        let mut state = self.common.midstate.map(|word| [word; N]);
        let pending = &self.common.pending[..];
        let mut buffer = [[0_u8; MAX_BLOCK]; N];
        let mut at = 0;
        // Whole blocks that begin with the prefix's rest: at most one, as the rest is shorter than a block.
        if !pending.is_empty() && pending.len() + self.block_len >= A::BLOCK {
            at = A::BLOCK - pending.len();
            for (buffer, block) in buffer.iter_mut().zip(&blocks) {
                buffer[..pending.len()].copy_from_slice(pending);
                buffer[pending.len()..A::BLOCK].copy_from_slice(&block[..at]);
            }
            compress(&mut state, &buffer.each_ref().map(|b| &b[..A::BLOCK]), &[]);
        }
        let whole = (self.block_len - at) / A::BLOCK * A::BLOCK;
        let middle = if pending.is_empty() || at > 0 { at..at + whole } else { 0..0 };
        at = middle.end;
        let middle = blocks.map(|block| &block[middle.clone()]);
        if self.lead == 0 {
            compress(&mut state, &middle, self.tail);
        } else {
            compress(&mut state, &middle, &[]);
            let (first, tail) = self.tail.split_at(A::BLOCK);
            // Only a message shorter than a block still has the prefix's rest in front.
            let rest = if at == 0 { pending } else { &[] };
            for (buffer, block) in buffer.iter_mut().zip(&blocks) {
                buffer[..A::BLOCK].copy_from_slice(first);
                buffer[..rest.len()].copy_from_slice(rest);
                buffer[rest.len()..self.lead].copy_from_slice(&block[at..]);
            }
            compress(&mut state, &buffer.each_ref().map(|b| &b[..A::BLOCK]), tail);
        }
        match &mut self.sink {
            Sink::State(out) => **out = state.map(|word| word[0]),
            Sink::Digests(out) => {
                let word_size = size_of::<A::Word>();
                let digests = out[self.next * 8 * word_size..].chunks_exact_mut(8 * word_size);
                for (lane, digest) in digests.take(used).enumerate() {
                    for (word, out) in state.iter().zip(digest.chunks_exact_mut(word_size)) {
                        A::write_word(word[lane], out);
                    }
                }
            }
        }
        self.next += used;
    }
}
