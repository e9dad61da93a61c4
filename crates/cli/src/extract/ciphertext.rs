//! The layout of `extract --ciphertext`: encrypted files as they lie on disk, with what any key needs to restore them.
//!
//! `docs/ciphertext-layout.md` describes it. The manifest is a line of JSON an inode, so that it can be written and
//! read piece by piece.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use postread::image::{Image, ImageError};
use postread_fsimage::ext4::{self, ExtentKind, FileType, Inode, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::exit::{Failure, Outcome};
use crate::image::outcome_of;
use crate::progress::Progress;
use crate::text::{bytes_for_stderr, complain, name_for_stderr};

/// What the first line says it is.
pub(super) const FORMAT: &str = "postread-ciphertext-2";
/// The manifest's name.
pub(super) const MANIFEST: &str = "manifest.jsonl";
/// The directory of contents, a file an inode, named by its number.
pub(super) const DATA: &str = "data";
/// Bytes copied at once.
const STEP: u64 = 1 << 20;

/// Bytes, in hexadecimal.
pub(super) type Hex = String;

/// The manifest's first line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) format: String,
    /// The file system's UUID: keys may depend on it.
    pub(super) fs_uuid: Hex,
    /// Bytes of a block, which a data unit is where the context names no other size.
    pub(super) block_size: u32,
    /// The directory that the entries lie in.
    pub(super) root: u32,
    /// Its encryption context; its entries' names are plain where it has none.
    pub(super) root_context: Option<Hex>,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    File,
    Directory,
    Link,
}

/// Seconds since 1970, nanoseconds.
type Time = (i64, u32);

/// A line of the manifest: a name of an inode. A directory stands before what is in it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) inode: u32,
    #[serde(rename = "type")]
    pub(super) kind: Kind,
    /// The directory that it lies in.
    pub(super) directory: u32,
    /// Its name there, as stored: ciphertext where the directory has a context.
    pub(super) raw_name: Hex,
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Number of names.
    pub(super) links: u16,
    /// Length of the plaintext of a file in bytes.
    pub(super) size: u64,
    pub(super) atime: Time,
    pub(super) mtime: Time,
    /// The encryption context, as stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) context: Option<Hex>,
    /// A link's target, as stored: the ciphertext behind its 2-byte length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<Hex>,
    /// The ranges of a file that hold ciphertext, start and length in bytes; all else reads as zeros, undecrypted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) data: Vec<(u64, u64)>,
    /// Of a file: the SHA-256 of those ranges, one behind the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sha256: Option<Hex>,
    /// Extended attributes, name and value as Linux's calls take them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) xattrs: Vec<(Hex, Hex)>,
}

/// What was saved.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Saved {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) directories: u64,
    pub(crate) links: u64,
    pub(crate) already_there: u64,
    pub(crate) failed: u64,
    pub(crate) exit_status: u8,
}

struct Saver<'a> {
    image: &'a Image,
    data: PathBuf,
    manifest: BufWriter<File>,
    progress: &'a Progress,
    saved: Saved,
    outcome: Outcome,
    /// Inodes of several names whose contents are saved already, and their digests.
    seen: HashMap<u32, Hex>,
}

/// Saves every encrypted inode at and beneath a directory, and the directories that lead there.
pub(crate) fn save(image: &Image, root: &Inode, dir: &Path, progress: &Progress) -> Result<(Outcome, Saved), Failure> {
    let output = |error: io::Error| Failure::environment(format!("{}: {error}", name_for_stderr(dir)));
    let data = dir.join(DATA);
    fs::create_dir_all(&data).map_err(output)?;
    let unfinished = dir.join(format!("{MANIFEST}.part"));
    let manifest = BufWriter::new(File::create(&unfinished).map_err(output)?);
    let mut saver = Saver {
        image,
        data,
        manifest,
        progress,
        saved: Saved::default(),
        outcome: Outcome::Good,
        seen: HashMap::new(),
    };
    let superblock = image.fs().superblock();
    let root_context = image.fs().fscrypt_context(root).map_err(|error| {
        let error = ImageError::from(error);
        Failure::new(outcome_of(&error), error)
    })?;
    let header = Header {
        format: FORMAT.to_owned(),
        fs_uuid: hex::encode(superblock.uuid),
        block_size: superblock.block_size,
        root: root.ino,
        root_context: root_context.map(hex::encode),
    };
    saver.line(&header).map_err(output)?;
    for visit in image.fs().walk(root.ino) {
        let failed = |error: ext4::Error| ImageError::from(error);
        match (visit.entry, visit.inode) {
            (Some(entry), Ok(inode)) => match saver.entry(visit.dir, &entry.name, &inode) {
                Ok(()) => {}
                Err(SaveError::Image(error)) => saver.failed(inode.ino, &error),
                Err(SaveError::Output(error)) => return Err(output(error)),
            },
            (None, Ok(_)) => {}
            (entry, Err(error)) => saver.failed(entry.map_or(visit.dir, |entry| entry.ino), &failed(error)),
        }
    }
    saver.manifest.flush().map_err(output)?;
    fs::rename(&unfinished, dir.join(MANIFEST)).map_err(output)?;
    saver.saved.exit_status = saver.outcome.code();
    Ok((saver.outcome, saver.saved))
}

#[derive(Debug, thiserror::Error)]
enum SaveError {
    #[error(transparent)]
    Image(ImageError),
    #[error(transparent)]
    Output(#[from] io::Error),
}

impl Saver<'_> {
    fn line(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.manifest, value)?;
        self.manifest.write_all(b"\n")
    }

    fn failed(&mut self, ino: u32, error: &ImageError) {
        self.outcome = self.outcome.worst(outcome_of(error));
        self.saved.failed += 1;
        complain(format_args!("inode {ino}: {error}"));
    }

    fn entry(&mut self, dir: u32, raw_name: &[u8], inode: &Inode) -> Result<(), SaveError> {
        let image = |error: ext4::Error| SaveError::Image(error.into());
        let kind = match inode.file_type {
            FileType::Directory => Kind::Directory,
            FileType::Regular if inode.is_encrypted() => Kind::File,
            FileType::Symlink if inode.is_encrypted() => Kind::Link,
            _ => return Ok(()),
        };
        let fs = self.image.fs();
        let context = fs.fscrypt_context(inode).map_err(image)?;
        let target = match kind {
            Kind::Link => Some(fs.symlink_target(inode).map_err(image)?),
            _ => None,
        };
        let attributes = super::Attributes::of(inode, &fs.xattrs(inode).map_err(image)?);
        let (data, sha256) = match kind {
            Kind::File => self.contents(inode).map(|(data, sha256)| (data, Some(sha256)))?,
            _ => (Vec::new(), None),
        };
        let time = |time: Timestamp| (time.seconds, time.nanoseconds);
        let entry = Entry {
            inode: inode.ino,
            kind,
            directory: dir,
            raw_name: hex::encode(raw_name),
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            links: inode.nlink,
            size: inode.size,
            atime: time(inode.atime),
            mtime: time(inode.mtime),
            context: context.map(hex::encode),
            target: target.map(hex::encode),
            data,
            sha256,
            xattrs: attributes.xattrs.iter().map(|(name, value)| (hex::encode(name), hex::encode(value))).collect(),
        };
        self.line(&entry)?;
        match kind {
            Kind::File => self.saved.files += 1,
            Kind::Directory => self.saved.directories += 1,
            Kind::Link => self.saved.links += 1,
        }
        Ok(())
    }

    /// Saves a file's ciphertext, and tells which ranges hold any, and their digest: always the image's, so that a file
    /// that was there already and is not what it was is found on restoring.
    fn contents(&mut self, inode: &Inode) -> Result<(Vec<(u64, u64)>, Hex), SaveError> {
        let image = |error: ext4::Error| SaveError::Image(error.into());
        let fs = self.image.fs();
        let extents = fs.extents(inode).map_err(image)?;
        let written = extents.iter().filter(|extent| extent.kind == ExtentKind::Written);
        let data: Vec<(u64, u64)> = written.clone().map(|extent| (extent.logical, extent.len)).collect();
        if let Some(sha256) = self.seen.get(&inode.ino) {
            return Ok((data, sha256.clone()));
        }
        let length = data.last().map_or(0, |(start, length)| start + length);
        let path = self.data.join(inode.ino.to_string());
        let time = std::time::UNIX_EPOCH.checked_add(std::time::Duration::new(
            inode.mtime.seconds.max(0) as u64,
            inode.mtime.nanoseconds.min(999_999_999),
        ));
        let there = fs::symlink_metadata(&path).ok().filter(|found| found.is_file() && found.len() == length);
        let there = there.is_some_and(|found| found.modified().ok() == time);
        let unfinished = self.data.join(format!("{}.part", inode.ino));
        let out = if there { None } else { Some(File::create(&unfinished)?) };
        if let Some(out) = &out {
            out.set_len(length)?;
        }
        let mut hash = Sha256::new();
        let mut buf = vec![0; STEP.min(length) as usize];
        for extent in written {
            let mut at = 0;
            while at < extent.len {
                let n = STEP.min(extent.len - at) as usize;
                let from = extent.physical + at;
                fs.device()
                    .read_exact_at(&mut buf[..n], from)
                    .map_err(|source| SaveError::Image(ext4::Error::Io { offset: from, len: n, source }.into()))?;
                hash.update(&buf[..n]);
                if let Some(out) = &out {
                    out.write_all_at(&buf[..n], extent.logical + at)?;
                }
                at += n as u64;
                self.progress.advance(n as u64);
            }
            self.saved.bytes += if there { 0 } else { extent.len };
        }
        let sha256 = hex::encode(hash.finalize());
        if inode.nlink > 1 {
            self.seen.insert(inode.ino, sha256.clone());
        }
        match out {
            Some(out) => {
                if let Some(time) = time {
                    out.set_modified(time)?;
                }
                fs::rename(&unfinished, &path)?;
            }
            None => self.saved.already_there += 1,
        }
        self.progress.file_done();
        Ok((data, sha256))
    }
}

/// A line that is named in messages.
pub(super) fn line_name(path: &Path, number: u64) -> String {
    format!("{}: line {number}", bytes_for_stderr(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())))
}
