//! Repair in place. Repaired blocks are written to a journal first, so that a killed run can be continued even if a block
//! was half written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use postread_blockcrypt::hash::{HashAlg, digest};
use postread_io::ReadAt;
use postread_verity::dm_verity::Verifier;

use super::repair::{Patched, offset_of, repair};
use super::{Area, Device, Fec, RepairReport, Threads};

/// How a journal begins.
const MAGIC: &[u8; 16] = b"postread repair1";
/// The most bytes of a journal that are read: as much as is repaired in memory, and no more than memory may take.
const JOURNAL_MAX: u64 = 4 << 30;

/// Why nothing was repaired in place, or not all of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InPlaceError {
    /// The journal's file holds something else.
    #[error("it is not a repair journal, and would be overwritten")]
    NotAJournal,
    /// It is the journal of another device.
    #[error("it is the repair journal of a device with another root hash: finish that repair first")]
    OtherDevice,
    /// The journal could not be read or written.
    #[error("the journal: {0}")]
    Journal(#[source] io::Error),
    /// A repaired block could not be written. The journal has them all.
    #[error("writing a repaired block: {0}")]
    Write(#[source] io::Error),
}

/// Blocks by their byte offset on either device.
#[derive(Debug, Default, PartialEq, Eq)]
struct Journal {
    data: BTreeMap<u64, Vec<u8>>,
    hash: BTreeMap<u64, Vec<u8>>,
}

/// No bytes at all.
struct Nothing;

impl ReadAt for Nothing {
    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn read_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }
}

impl Journal {
    fn of(report: &RepairReport, device: &Device<'_>, verifier: &Verifier) -> Self {
        let mut journal = Self::default();
        for block in &report.repaired {
            let offset = offset_of(device, verifier, block.area, block.index);
            let blocks = if block.area == Area::Data { &mut journal.data } else { &mut journal.hash };
            blocks.insert(offset, block.bytes.clone());
        }
        journal
    }

    fn to_bytes(&self, root_hash: &[u8]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let sum = digest(HashAlg::Sha256, root_hash);
        out.extend(sum.as_bytes());
        for (device, blocks) in [(0u8, &self.data), (1, &self.hash)] {
            for (offset, bytes) in blocks {
                out.push(device);
                out.extend(offset.to_le_bytes());
                out.extend((bytes.len() as u64).to_le_bytes());
                out.extend(bytes);
            }
        }
        let sum = digest(HashAlg::Sha256, &out);
        out.extend(sum.as_bytes());
        out
    }

    /// Parses a journal; none where it was not whole when a run was killed: then nothing was written in place.
    fn parse(bytes: &[u8], root_hash: &[u8]) -> Result<Option<Self>, InPlaceError> {
        let known = MAGIC.len().min(bytes.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(InPlaceError::NotAJournal);
        }
        let Some((body, sum)) = bytes.split_last_chunk::<32>() else { return Ok(None) };
        if digest(HashAlg::Sha256, body).as_bytes() != sum {
            return Ok(None);
        }
        let Some((of, mut rest)) = body[known..].split_first_chunk::<32>() else { return Ok(None) };
        if digest(HashAlg::Sha256, root_hash).as_bytes() != of {
            return Err(InPlaceError::OtherDevice);
        }
        let mut journal = Self::default();
        while let Some((device, after)) = rest.split_first() {
            let Some((offset, after)) = after.split_first_chunk::<8>() else { return Ok(None) };
            let Some((len, after)) = after.split_first_chunk::<8>() else { return Ok(None) };
            let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
            let Some((block, after)) = after.split_at_checked(len) else { return Ok(None) };
            let blocks = if *device == 0 { &mut journal.data } else { &mut journal.hash };
            blocks.insert(u64::from_le_bytes(*offset), block.to_vec());
            rest = after;
        }
        Ok(Some(journal))
    }

    fn read(path: &Path, root_hash: &[u8]) -> Result<Option<Self>, InPlaceError> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(InPlaceError::Journal(error)),
        };
        let regular = file.metadata().map_err(InPlaceError::Journal)?;
        if !regular.is_file() || regular.len() > JOURNAL_MAX {
            return Err(InPlaceError::NotAJournal);
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(InPlaceError::Journal)?;
        Self::parse(&bytes, root_hash)
    }

    /// Writes it under a temporary name and renames it, so that an older journal stays intact until this one is complete.
    /// Returns once the file and its name are on disk.
    fn write(&self, path: &Path, root_hash: &[u8]) -> Result<(), InPlaceError> {
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        // What a run that was killed has left there.
        if Self::read(Path::new(&new), root_hash)?.is_some() || Path::new(&new).exists() {
            std::fs::remove_file(&new).map_err(InPlaceError::Journal)?;
        }
        let written = File::create_new(&new).and_then(|mut file| {
            file.write_all(&self.to_bytes(root_hash))?;
            file.sync_all()?;
            std::fs::rename(&new, path)?;
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(dir)?.sync_all()
        });
        written.map_err(InPlaceError::Journal)
    }

    fn apply(&self, data: &File, hash: &File) -> io::Result<()> {
        for (file, blocks) in [(data, &self.data), (hash, &self.hash)] {
            for (offset, bytes) in blocks {
                file.write_all_at(bytes, *offset)?;
            }
            if !blocks.is_empty() {
                file.sync_all()?;
            }
        }
        Ok(())
    }
}

/// Repairs a device in place. Only bad blocks are written, each with bytes whose digest the root hash leads to.
///
/// Repaired blocks are first written to the file `journal`, which is removed once they are all in place. A run that was
/// killed is continued by the next one with the same journal: what is in it is used like another copy of the device, so
/// that a block that was half written is not lost.
///
/// # Errors
/// If the journal is not one, or of another device, and where it or a block can't be written.
pub fn repair_in_place(
    (data, hash): (&File, &File),
    hash_area: u64,
    verifier: &Verifier,
    fec: Option<&Fec<'_>>,
    copies: &[Device<'_>],
    journal: &Path,
    threads: Threads,
) -> Result<RepairReport, InPlaceError> {
    let root_hash = verifier.root_hash().as_bytes();
    let before = Journal::read(journal, root_hash)?;
    let device = Device { data, hash, hash_area };
    let report = {
        let saved = before.as_ref().map(|journal| {
            let of = |blocks| Patched { source: &Nothing as &dyn ReadAt, blocks };
            (of(&journal.data), of(&journal.hash))
        });
        let mut copies = copies.to_vec();
        copies.extend(saved.as_ref().map(|(data, hash)| Device { data, hash, hash_area }));
        repair(&device, verifier, fec, &copies, threads)
    };
    let repaired = Journal::of(&report, &device, verifier);
    if !report.repaired.is_empty() {
        repaired.write(journal, root_hash)?;
        repaired.apply(data, hash).map_err(InPlaceError::Write)?;
    }
    match std::fs::remove_file(journal) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(InPlaceError::Journal(error)),
        _ => Ok(report),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_whole_or_none() {
        let journal = Journal {
            data: BTreeMap::from([(0, vec![1; 4096]), (8192, vec![2; 4096])]),
            hash: BTreeMap::from([(4096, vec![3; 512])]),
        };
        let bytes = journal.to_bytes(b"root");
        assert_eq!(Journal::parse(&bytes, b"root").unwrap(), Some(journal));
        assert!(matches!(Journal::parse(&bytes, b"other"), Err(InPlaceError::OtherDevice)));
        for len in 0..bytes.len() {
            assert_eq!(Journal::parse(&bytes[..len], b"root").unwrap(), None, "{len}");
        }
        for at in MAGIC.len()..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(Journal::parse(&changed, b"root").unwrap(), None, "{at}");
        }
        for other in [&b"something else entirely"[..], b"postread", b"P"] {
            let wanted = MAGIC.starts_with(other);
            assert_eq!(matches!(Journal::parse(other, b"root"), Err(InPlaceError::NotAJournal)), !wanted, "{other:?}");
        }
    }
}
