//! Parity of whole devices.

use std::io;

use postread_io::ReadAt;
use postread_verity::fec::{Encoder, Layout};

use super::{BlockVerityError, Device, Threads, parallel};

/// Columns that a thread processes at a time (at least a block's).
const WIDTH: u64 = 64 << 10;

/// The message that parity covers: the data blocks, then the hash device from its tree on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Message<'a> {
    device: Device<'a>,
    data_size: u64,
    layout: Layout,
}

impl<'a> Message<'a> {
    /// The message of `data_blocks` blocks, then `hash_size` bytes of the hash device: to its end, or to the parity where
    /// that is on the same device.
    ///
    /// # Errors
    /// If there is no such code.
    pub fn new(
        device: Device<'a>,
        data_blocks: u64,
        hash_size: u64,
        block_size: usize,
        roots: u32,
    ) -> Result<Self, BlockVerityError> {
        let blocks = data_blocks.saturating_add(hash_size / block_size as u64);
        let layout = Layout::new(roots, block_size, blocks)?;
        Ok(Self { device, data_size: data_blocks * block_size as u64, layout })
    }

    /// The same message on a device that is seen differently.
    pub(super) fn over<'b>(&self, device: Device<'b>) -> Message<'b> {
        Message { device, data_size: self.data_size, layout: self.layout }
    }

    /// How it is laid out.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where a block of it is: the source, and the byte offset in it.
    pub(super) fn place(&self, block: u64) -> (&'a dyn ReadAt, u64) {
        let offset = block * self.layout.block_size() as u64;
        match offset.checked_sub(self.data_size) {
            None => (self.device.data, offset),
            Some(offset) => (self.device.hash, self.device.hash_area + offset),
        }
    }

    /// Reads neighbouring blocks from `block` on; zeros past the message's end.
    fn read(&self, block: u64, buf: &mut [u8]) -> Result<(), BlockVerityError> {
        let size = self.layout.block_size() as u64;
        let data_blocks = self.data_size / size;
        let mut at = block;
        let mut rest = buf;
        while !rest.is_empty() {
            let wanted = rest.len() as u64 / size;
            let until = if at < data_blocks { data_blocks } else { self.layout.blocks() };
            let count = wanted.min(until.saturating_sub(at));
            if count == 0 {
                rest.fill(0);
                return Ok(());
            }
            let (now, next) = rest.split_at_mut((count * size) as usize);
            let (source, offset) = self.place(at);
            let len = now.len();
            let read = source.read_exact_at(now, offset);
            read.map_err(|source| BlockVerityError::Read { offset, len, source })?;
            rest = next;
            at += count;
        }
        Ok(())
    }
}

/// Existing parity, for repairs.
#[derive(Clone, Copy)]
pub struct Fec<'a> {
    /// What it covers.
    pub message: Message<'a>,
    /// What holds it.
    pub parity: &'a dyn ReadAt,
    /// Where it begins there, in bytes.
    pub offset: u64,
}

impl std::fmt::Debug for Fec<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fec").field("message", &self.message).field("offset", &self.offset).finish_non_exhaustive()
    }
}

/// Computes the parity of a message. `write` stores it at a byte offset from the start of the parity, on any thread.
///
/// # Errors
/// If the message cannot be read, or `write` fails.
pub fn encode_fec(
    message: &Message<'_>,
    threads: Threads,
    write: &(dyn Fn(u64, &[u8]) -> io::Result<()> + Sync),
) -> Result<(), BlockVerityError> {
    let layout = message.layout();
    let size = layout.block_size();
    let groups = (WIDTH / size as u64).max(1);
    let jobs = layout.row_blocks().div_ceil(groups);
    let width = groups as usize * size;
    let state = || (Encoder::new(layout.roots(), width), vec![0; width]);
    let done = parallel(threads, jobs, state, |(encoder, row), job| {
        let first = job * groups;
        let count = groups.min(layout.row_blocks() - first);
        let row = &mut row[..count as usize * size];
        encoder.reset();
        for number in 0..layout.rows() as u64 {
            message.read(number * layout.row_blocks() + first, row)?;
            encoder.push_row(row);
        }
        let parity = encoder.parity();
        let len = count as usize * size * layout.roots();
        write(layout.parity_offset(first), &parity[..len]).map_err(BlockVerityError::Write)
    });
    done.into_iter().collect()
}
