//! Loading a file system: the superblock or a backup of it, the journal, and a survey of the metadata.

use std::fmt;
use std::io;
use std::sync::Arc;

use postread_io::ReadAt;

use super::cache::Cache;
use super::changes::Changes;
use super::error::{Error, Result, Warning};
use super::filesystem::{Ext4, Inner, default_superblock_block};
use super::journal;
use super::map::ExtentKind;
use super::replay::Replay;
use super::superblock::{SUPERBLOCK_LEN, SUPERBLOCK_OFFSET, Superblock};
use super::zones::Zones;

/// What to do with the journal of a file system that was not unmounted cleanly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JournalPolicy {
    /// Read what the file system would hold after mounting: the contents of the journal over what is on disk.
    #[default]
    Replay,
    /// Read what is on disk, as a mount with `ro,noload` does.
    Ignore,
}

/// How to load a file system.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// What to do with a journal that was not replayed.
    pub journal: JournalPolicy,
    /// The device that the journal is on, of a file system that has it elsewhere.
    pub external_journal: Option<Arc<dyn ReadAt>>,
    /// The block with the superblock to use instead of the first one: a backup, as `dumpe2fs` lists them. A number in
    /// units of 1 KiB, as mount's option `sb=` takes it, works too.
    pub superblock: Option<u64>,
    /// Verify the checksums of metadata, if there are any.
    pub checksums: bool,
    /// Bytes of metadata kept in memory.
    pub cache: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            journal: JournalPolicy::Replay,
            external_journal: None,
            superblock: None,
            checksums: true,
            cache: 8 << 20,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("journal", &self.journal)
            .field("external_journal", &self.external_journal.is_some())
            .field("superblock", &self.superblock)
            .field("checksums", &self.checksums)
            .field("cache", &self.cache)
            .finish()
    }
}

impl Ext4 {
    /// Loads the file system that starts at byte 0 of `source`.
    pub fn load(source: Arc<dyn ReadAt>) -> Result<Self> {
        Self::load_with(source, Options::default())
    }

    /// Loads the file system that starts at byte 0 of `source`.
    pub fn load_with(source: Arc<dyn ReadAt>, options: Options) -> Result<Self> {
        let on_disk = open(source, &options, None, None)?;
        if let Some(device) = &options.external_journal {
            journal::check_device(&on_disk, &**device)?;
        }
        // A backup superblock does not record that the journal needs replaying: the journal itself does.
        let dirty = on_disk.superblock().needs_recovery() || options.superblock.is_some();
        if options.journal == JournalPolicy::Ignore || !dirty {
            return Ok(on_disk);
        }
        let Some(replayed) = journal::replay(&on_disk, options.external_journal.as_ref())? else {
            return Ok(on_disk);
        };
        // The superblock itself may be among what the journal holds.
        let fs = open(replayed.device.clone(), &options, Some(replayed.replay), None)
            .map_err(|error| Error::AfterReplay(Box::new(error)))?;
        match replayed.changes(&fs)? {
            Some(changes) => fs.with_changes(changes, &options),
            None => Ok(fs),
        }
    }

    /// The same file system with `changes` laid over it.
    pub(super) fn with_changes(&self, changes: Changes, options: &Options) -> Result<Self> {
        open(self.device().clone(), options, self.replay().copied(), Some(changes))
    }
}

fn open(source: Arc<dyn ReadAt>, options: &Options, replay: Option<Replay>, changes: Option<Changes>) -> Result<Ext4> {
    let (superblock, superblock_block) = match options.superblock {
        Some(block) => backup(&*source, block, options.checksums)?,
        None => {
            let superblock = first_superblock(&*source, options.checksums)?;
            let block = default_superblock_block(&superblock);
            (superblock, block)
        }
    };
    let mut warnings = Vec::new();
    if let Some(block) = options.superblock {
        warnings.push(Warning::BackupSuperblock { block });
    }
    if options.journal == JournalPolicy::Ignore && superblock.needs_recovery() {
        warnings.push(Warning::JournalIgnored);
    }
    let checksums = options.checksums;
    let cache = Cache::new(source, options.cache);
    let zones = Zones::default();
    let inner = Inner { superblock, superblock_block, cache, checksums, replay, changes, zones, warnings };
    let fs = Ext4::from_inner(inner);
    let zones = Zones::survey(fs.superblock(), |group| fs.checked_group_descriptor(group))?;
    let fs = with_zones(fs, |_| zones);
    // The journal's own blocks are checked against the zones of the groups.
    let ino = fs.superblock().journal_inode;
    if ino == 0 {
        return Ok(fs);
    }
    let runs = journal_blocks(&fs, ino);
    Ok(with_zones(fs, |zones| zones.with_journal(ino, runs)))
}

fn with_zones(fs: Ext4, change: impl FnOnce(Zones) -> Zones) -> Ext4 {
    match fs.into_inner() {
        Some(inner) => Ext4::from_inner(Inner { zones: change(inner.zones), ..inner }),
        None => unreachable!("nobody else has this file system yet"),
    }
}

/// The blocks of a journal that can be read; whoever replays it gets the error of one that cannot.
fn journal_blocks(fs: &Ext4, ino: u32) -> Vec<(u64, u64)> {
    let Ok(inode) = fs.any_inode(ino) else { return Vec::new() };
    let in_blocks = |bytes: u64| bytes.checked_div(fs.block_size()).unwrap_or(0);
    let extents = fs.extents_from(&inode, 0).map_while(Result::ok).filter(|extent| extent.kind != ExtentKind::Hole);
    extents.map(|extent| (in_blocks(extent.physical), in_blocks(extent.len))).collect()
}

/// Where `mke2fs` puts the first backup of the superblock, by the size of a block.
const BACKUPS: [(u64, u64); 3] = [(1024, 8193), (2048, 16384), (4096, 32768)];

/// The superblock at the start. Where there is none, the error says whether there is a backup.
fn first_superblock(source: &dyn ReadAt, verify: bool) -> Result<Superblock> {
    let bytes = match (read_superblock(source, SUPERBLOCK_OFFSET), source.len()) {
        (Err(Error::Io { source: error, .. }), Ok(found)) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(Error::TooShort { found });
        }
        (read, _) => read?,
    };
    Superblock::parse(&bytes, verify).map_err(|error| {
        let is_backup = |&(size, block): &(u64, u64)| {
            let found = read_superblock(source, block.saturating_mul(size)).and_then(|b| Superblock::parse(&b, true));
            found.is_ok_and(|found| u64::from(found.block_size) == size)
        };
        match (&error, BACKUPS.into_iter().find(is_backup)) {
            (Error::NotExt4 { .. } | Error::Corrupt(_), Some((_, backup))) => {
                Error::DamagedSuperblock { error: Box::new(error), backup }
            }
            _ => error,
        }
    })
}

fn read_superblock(source: &dyn ReadAt, offset: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    match source.read_exact_at(&mut bytes, offset) {
        Ok(()) => Ok(bytes),
        Err(source) => Err(Error::Io { offset, len: SUPERBLOCK_LEN, source }),
    }
}

/// The superblock in `block`, and the block of the file system that it is in. The number is one of the file system's
/// blocks, whose size only the superblock tells, or else in units of 1 KiB.
fn backup(source: &dyn ReadAt, block: u64, verify: bool) -> Result<(Superblock, u64)> {
    let mut failed = Error::NoBackup { block };
    for as_blocks in [true, false] {
        for log in 0..=6 {
            let size = 1024u64 << log;
            let offset = block.saturating_mul(if as_blocks { size } else { 1024 });
            // The first superblock is not at the start of a block larger than 1 KiB.
            let offset = if block == 0 { SUPERBLOCK_OFFSET } else { offset };
            let Ok(bytes) = read_superblock(source, offset) else { continue };
            match Superblock::parse(&bytes, verify) {
                Ok(found) if u64::from(found.block_size) == size => {
                    return Ok((found, offset >> (10u32.saturating_add(log))));
                }
                Ok(_) | Err(Error::NotExt4 { .. }) => {}
                Err(error) => failed = error,
            }
        }
    }
    Err(failed)
}
