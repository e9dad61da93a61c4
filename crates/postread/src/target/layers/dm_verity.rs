//! Devices under dm-verity: every block read is verified against the root hash.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use postread_io::{Corruption, PreadPool, ReadAt};
use postread_verity::dm_verity::{BadBlock, SUPERBLOCK_SIZE, Superblock, Verifier};
use postread_volume::Magic;

use super::{Choice, Device, Format, Layer, Opened, device_of};
use crate::error::{Error, ErrorKind, Result};
use crate::target::builder::Warning;

/// Bytes of verified hash blocks that are kept, and blocks at least.
const CACHE_BYTES: usize = 4 << 20;
const CACHE_BLOCKS: usize = 32;
/// The most data blocks that are read at once.
const RUN: u64 = 256;

/// How a device is verified.
#[derive(Clone, Debug)]
pub struct DmVerity {
    root_hash: Vec<u8>,
    hash_device: Option<PathBuf>,
    hash_offset: u64,
    data_blocks: Option<u64>,
}

impl DmVerity {
    /// With this root hash. The tree and its superblock are on the device itself, at [`DmVerity::hash_offset`], unless
    /// there is a [`DmVerity::hash_device`].
    pub fn new(root_hash: &[u8]) -> Self {
        Self { root_hash: root_hash.to_vec(), hash_device: None, hash_offset: 0, data_blocks: None }
    }

    /// The file or block device with the tree.
    #[must_use]
    pub fn hash_device(mut self, path: impl Into<PathBuf>) -> Self {
        self.hash_device = Some(path.into());
        self
    }

    /// The byte offset of the superblock there; 0 by default.
    #[must_use]
    pub fn hash_offset(mut self, offset: u64) -> Self {
        self.hash_offset = offset;
        self
    }

    /// How many data blocks there are. Otherwise the number comes from the superblock, which the root hash does not
    /// cover.
    #[must_use]
    pub fn data_blocks(mut self, blocks: u64) -> Self {
        self.data_blocks = Some(blocks);
        self
    }

    pub(in crate::target) fn hash_path(&self) -> Option<&Path> {
        self.hash_device.as_deref()
    }
}

pub(super) struct Verity;

impl Format for Verity {
    /// Innermost: layers with a magic number come first.
    fn wants(&self, _magic: Option<Magic>, choice: &Choice) -> bool {
        choice.dm_verity.is_some() && choice.volume.is_none()
    }

    fn open(&self, device: &Device, pool: &PreadPool, choice: &mut Choice) -> Result<Opened> {
        let (options, hash) = choice.dm_verity.take().expect("this is what it wants");
        let own = hash.is_none();
        let hash = hash.unwrap_or_else(|| device.read_at());
        let superblock = superblock(&*hash, options.hash_offset)?;
        let area = superblock.hash_area_offset(options.hash_offset);
        let malformed = |what: String| Error::new(ErrorKind::Malformed, what);
        let area = area.ok_or_else(|| malformed("the hash area begins past the last possible byte".into()))?;
        let block_size = superblock.params.data_block_size() as u64;
        let there = if own { options.hash_offset.min(device.len()) } else { device.len() } / block_size;
        let data_blocks = options.data_blocks.unwrap_or(superblock.data_blocks);
        if data_blocks > there {
            let what =
                format!("dm-verity covers {data_blocks} blocks of {block_size} bytes, and the device has {there}");
            return Err(malformed(what));
        }
        if options.data_blocks.is_none() {
            choice.warnings.push(Warning::DmVeritySize { data_blocks, device_blocks: there });
        }
        let verifier = Verifier::new(&superblock.params, data_blocks, &options.root_hash)
            .map_err(|error| Error::caused_by(ErrorKind::InvalidInput, error))?;
        let layer = Layer::DmVerity {
            root_hash: hex(&options.root_hash),
            algorithm: superblock.params.alg().to_string(),
            data_blocks,
            block_size: block_size as u32,
        };
        let verified = Verified::new(device.read_at(), hash, area, verifier);
        // A wrong root hash is found here, not at the first read.
        verified.check_top().map_err(|error| match Corruption::of(&error) {
            Some(corruption) => Error::caused_by(ErrorKind::Corrupt, corruption.clone()),
            None => error.into(),
        })?;
        Ok(Opened::Device(vec![layer], device_of(Arc::new(verified), pool)?))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn superblock(hash: &dyn ReadAt, offset: u64) -> Result<Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    hash.read_exact_at(&mut bytes, offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::new(ErrorKind::Malformed, format!("no room for a dm-verity superblock at byte {offset}"))
        }
        _ => error.into(),
    })?;
    Superblock::parse(&bytes).map_err(|error| Error::caused_by(ErrorKind::Malformed, error))
}

/// A verified hash block: its level, its index there, its bytes.
type HashBlock = (usize, u64, Arc<[u8]>);

/// The data of a device, verified on every read.
struct Verified {
    data: Arc<dyn ReadAt>,
    hash: Arc<dyn ReadAt>,
    /// The first byte of the tree there.
    area: u64,
    verifier: Verifier,
    /// Each hash block has one place, where it replaces what was there.
    cache: Mutex<Vec<Option<HashBlock>>>,
}

impl fmt::Debug for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verified").field("verifier", &self.verifier).finish_non_exhaustive()
    }
}

impl Verified {
    fn new(data: Arc<dyn ReadAt>, hash: Arc<dyn ReadAt>, area: u64, verifier: Verifier) -> Self {
        let places = (CACHE_BYTES / verifier.params().hash_block_size()).max(CACHE_BLOCKS);
        Self { data, hash, area, verifier, cache: Mutex::new(vec![None; places]) }
    }

    fn block_size(&self) -> usize {
        self.verifier.params().data_block_size()
    }

    fn check_top(&self) -> io::Result<()> {
        match self.verifier.geometry().num_levels().checked_sub(1) {
            Some(top) => self.hash_block(top, 0).map(|_| ()),
            None => Ok(()),
        }
    }

    /// A verified hash block, whose ancestors were verified too.
    fn hash_block(&self, level: usize, index: u64) -> io::Result<Arc<[u8]>> {
        let geometry = self.verifier.geometry();
        let place = |cache: &[Option<HashBlock>]| {
            ((index.wrapping_mul(geometry.num_levels() as u64)).wrapping_add(level as u64) % cache.len() as u64)
                as usize
        };
        {
            let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((.., block)) = cache[place(&cache)].as_ref().filter(|(l, i, _)| (*l, *i) == (level, index)) {
                return Ok(block.clone());
            }
        }
        let parent = match level + 1 < geometry.num_levels() {
            true => Some(self.hash_block(level + 1, index / geometry.hashes_per_block())?),
            false => None,
        };
        let size = self.verifier.params().hash_block_size();
        let position = self.area.saturating_add(geometry.level_offset(level)).saturating_add(index * size as u64);
        let mut block = vec![0; size];
        self.hash.read_exact_at(&mut block, position)?;
        let mut bad = None;
        self.verifier.verify_hash_blocks(level, index, &block, parent.as_deref().unwrap_or_default(), &mut |found| {
            bad = Some(found);
        });
        if let Some(BadBlock { wanted, found, .. }) = bad {
            let (wanted, found) = (wanted.as_bytes(), found.as_bytes());
            return Err(Corruption::tree(position, size as u32, level as u32, wanted, found).into());
        }
        let block: Arc<[u8]> = block.into();
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let at = place(&cache);
        cache[at] = Some((level, index, block.clone()));
        Ok(block)
    }

    /// Reads whole blocks, as many as one hash block covers. Returns the bytes before the first bad block.
    fn blocks(&self, buf: &mut [u8], first: u64) -> io::Result<usize> {
        let size = self.block_size();
        let arity = self.verifier.geometry().hashes_per_block();
        let count = ((buf.len() / size) as u64).min(arity - first % arity).min(RUN);
        let buf = &mut buf[..count as usize * size];
        let leaf = match self.verifier.geometry().num_levels() {
            0 => Arc::default(),
            _ => self.hash_block(0, first / arity)?,
        };
        self.data.read_exact_at(buf, first * size as u64)?;
        let mut bad: Option<BadBlock> = None;
        self.verifier.verify_data(first, buf, &leaf, &mut |found| {
            bad.get_or_insert(found);
        });
        let Some(BadBlock { index, wanted, found, .. }) = bad else { return Ok(buf.len()) };
        let good = (index - first) as usize * size;
        buf[good..].fill(0);
        match good {
            0 => {
                let position = index * size as u64;
                Err(Corruption::data(position, size as u32, wanted.as_bytes(), found.as_bytes()).into())
            }
            good => Ok(good),
        }
    }
}

impl ReadAt for Verified {
    fn len(&self) -> io::Result<u64> {
        Ok(self.verifier.geometry().data_blocks() * self.block_size() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = usize::try_from(self.len()?.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        if n == 0 {
            return Ok(0);
        }
        let size = self.block_size();
        let (first, into) = (offset / size as u64, (offset % size as u64) as usize);
        if into == 0 && n >= size {
            return self.blocks(&mut buf[..n], first);
        }
        let mut block = vec![0; size];
        self.blocks(&mut block, first)?;
        let n = n.min(size - into);
        buf[..n].copy_from_slice(&block[into..into + n]);
        Ok(n)
    }
}
