//! The layout of `extract --ciphertext`: encrypted files as they lie on disk, with what any key needs to restore them.
//!
//! `docs/ciphertext-layout.md` describes it; `postread_fscrypt::saved_manifest` has the manifest's lines.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use postread::image::{Image, ImageError};
use postread_fscrypt::saved_manifest::{Entry, Header, Kind, LINE_MAX, Trailer};
use postread_fsimage::ext4::{self, ExtentKind, FileType, Inode, Timestamp};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::exit::{Failure, Outcome};
use crate::image::outcome_of;
use crate::output_file::Temporary;
use crate::progress::Progress;
use crate::text::{bytes_for_stderr, complain, name_for_stderr};

/// The manifest's name.
pub(super) const MANIFEST: &str = "manifest.jsonl";
/// The directory of contents, a file an inode, named by its number.
pub(super) const DATA: &str = "data";
/// Bytes copied at once.
const STEP: u64 = 1 << 20;

/// What was saved.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Saved {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) directories: u64,
    pub(crate) links: u64,
    /// Pipes, sockets and device nodes of encrypted directories.
    pub(crate) others: u64,
    pub(crate) already_there: u64,
    /// Files, links and others that are not encrypted, and so are left out.
    pub(crate) not_encrypted: u64,
    pub(crate) failed: u64,
    pub(crate) exit_status: u8,
}

/// Which ranges of a file hold ciphertext, and its SHA-256.
type Contents = (Vec<(u64, u64)>, [u8; 32]);

struct Saver<'a> {
    image: &'a Image,
    data: PathBuf,
    manifest: BufWriter<File>,
    /// Of the lines that were written.
    hash: Sha256,
    lines: u64,
    /// The directory met last, and whether its names are encrypted.
    encrypted: Option<(u32, bool)>,
    progress: &'a Progress,
    saved: Saved,
    outcome: Outcome,
    /// Inodes of several names whose contents are saved already, and their digests.
    seen: HashMap<u32, [u8; 32]>,
}

/// Saves every encrypted inode at and beneath a directory, and the directories that lead there.
pub(crate) fn save(image: &Image, root: &Inode, dir: &Path, progress: &Progress) -> Result<(Outcome, Saved), Failure> {
    let output = |error: io::Error| Failure::environment(format!("{}: {error}", name_for_stderr(dir)));
    let data = dir.join(DATA);
    fs::create_dir_all(dir).map_err(output)?;
    // One run at a time, as long as this is open.
    let locked = File::open(dir).map_err(output)?;
    super::beneath::lock(std::os::fd::AsFd::as_fd(&locked)).map_err(output)?;
    fs::create_dir_all(&data).map_err(output)?;
    let superblock = image.fs().superblock();
    let root_context = image.fs().fscrypt_context(root).map_err(|error| {
        let error = ImageError::from(error);
        Failure::new(outcome_of(&error), error)
    })?;
    let header = Header { fs_uuid: superblock.uuid, block_size: superblock.block_size, root: root.ino, root_context };
    refuse_another(dir, &header)?;
    let unfinished = Temporary::new(dir.join(format!("{MANIFEST}.part")));
    let manifest = BufWriter::new(File::create(unfinished.path()).map_err(output)?);
    let mut saver = Saver {
        image,
        data,
        manifest,
        hash: Sha256::new(),
        lines: 0,
        encrypted: None,
        progress,
        saved: Saved::default(),
        outcome: Outcome::Good,
        seen: HashMap::new(),
    };
    saver.line(&header.to_line()).map_err(output)?;
    // From now on it can be seen whose contents lie here.
    saver.manifest.flush().map_err(output)?;
    for visit in image.fs().walk(root.ino) {
        let failed = |error: ext4::Error| ImageError::from(error);
        match (visit.entry, visit.inode) {
            (Some(entry), Ok(inode)) => match saver.entry(visit.dir, &entry.name, &inode) {
                Ok(()) => {}
                Err(SaveError::Image(error)) => saver.failed(inode.ino, outcome_of(&error), &error),
                Err(SaveError::Output(error)) => return Err(output(error)),
                Err(error @ SaveError::Long { .. }) => saver.failed(inode.ino, Outcome::Usage, &error),
            },
            (None, Ok(_)) => {}
            (entry, Err(error)) => {
                let error = failed(error);
                saver.failed(entry.map_or(visit.dir, |entry| entry.ino), outcome_of(&error), &error);
            }
        }
    }
    let trailer = Trailer { lines: saver.lines, sha256: saver.hash.clone().finalize().into() };
    saver.line(&trailer.to_line()).map_err(output)?;
    saver.manifest.flush().map_err(output)?;
    unfinished.rename(&dir.join(MANIFEST)).map_err(output)?;
    saver.saved.exit_status = saver.outcome.code();
    Ok((saver.outcome, saver.saved))
}

/// Refuses a directory that holds another save, whose manifest would be lost: the nonces in it are all that makes its
/// contents readable. What an interrupted or earlier run saved of the same directory is gone on with.
fn refuse_another(dir: &Path, header: &Header) -> Result<(), Failure> {
    for (name, whole) in [(MANIFEST.to_owned(), true), (format!("{MANIFEST}.part"), false)] {
        let path = dir.join(name);
        let mut line = Vec::new();
        match File::open(&path) {
            Ok(file) => io::BufReader::new(file).take(LINE_MAX as u64).read_until(b'\n', &mut line),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => Err(error),
        }
        .map_err(|error| Failure::environment(format!("{}: {error}", name_for_stderr(&path))))?;
        let what = match Header::parse(&line) {
            Ok(found) if found == *header => continue,
            Ok(found) if found.fs_uuid != header.fs_uuid => "is of another file system",
            Ok(found) if found.root != header.root => "is of another directory of this file system",
            Ok(_) => "is of a directory with another encryption context",
            // Nothing of it was written yet.
            Err(_) if !whole && !line.ends_with(b"\n") => continue,
            Err(_) => "is none of this version",
        };
        let path = name_for_stderr(&path);
        return Err(Failure::usage(format!(
            "{path}: this manifest {what}, and would be replaced: save into another directory"
        )));
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
enum SaveError {
    #[error(transparent)]
    Image(ImageError),
    /// Restoring would not take it.
    #[error("its line of the manifest has {len} bytes, more than {LINE_MAX}: too many pieces")]
    Long { len: usize },
    #[error(transparent)]
    Output(#[from] io::Error),
}

impl Saver<'_> {
    fn failed(&mut self, ino: u32, outcome: Outcome, error: &dyn std::fmt::Display) {
        self.outcome = self.outcome.worst(outcome);
        self.saved.failed += 1;
        complain(format_args!("inode {ino}: {error}"));
    }

    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        self.hash.update(line);
        self.lines += 1;
        self.manifest.write_all(line)
    }

    /// Whether a directory's names are encrypted.
    fn is_encrypted(&mut self, dir: u32) -> ext4::Result<bool> {
        if let Some((_, encrypted)) = self.encrypted.filter(|(ino, _)| *ino == dir) {
            return Ok(encrypted);
        }
        let encrypted = self.image.fs().inode(dir)?.is_encrypted();
        self.encrypted = Some((dir, encrypted));
        Ok(encrypted)
    }

    fn entry(&mut self, dir: u32, raw_name: &[u8], inode: &Inode) -> Result<(), SaveError> {
        let image = |error: ext4::Error| SaveError::Image(error.into());
        let kind = match inode.file_type {
            FileType::Directory => Kind::Directory,
            FileType::Regular if inode.is_encrypted() => Kind::File,
            FileType::Symlink if inode.is_encrypted() => Kind::Link,
            // They have no contents and no context; that of their directory hides their names.
            FileType::Fifo if self.is_encrypted(dir).map_err(image)? => Kind::Pipe,
            FileType::Socket if self.is_encrypted(dir).map_err(image)? => Kind::Socket,
            FileType::CharDevice if self.is_encrypted(dir).map_err(image)? => Kind::CharacterDevice,
            FileType::BlockDevice if self.is_encrypted(dir).map_err(image)? => Kind::BlockDevice,
            _ => {
                self.saved.not_encrypted += 1;
                return Ok(());
            }
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
            raw_name: raw_name.to_vec(),
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            links: inode.nlink,
            size: inode.size,
            atime: time(inode.atime),
            mtime: time(inode.mtime),
            context,
            target,
            device: kind.is_device().then(|| inode.device().unwrap_or((0, 0))),
            data,
            sha256,
            xattrs: attributes.xattrs,
        };
        let line = entry.to_line();
        if line.len() > LINE_MAX {
            return Err(SaveError::Long { len: line.len() });
        }
        self.line(&line)?;
        match kind {
            Kind::File => self.saved.files += 1,
            Kind::Directory => self.saved.directories += 1,
            Kind::Link => self.saved.links += 1,
            _ => self.saved.others += 1,
        }
        Ok(())
    }

    /// Saves a file's ciphertext, and tells which ranges hold any, and their digest: always the image's, so that a file
    /// that was there already and is not what it was is found on restoring.
    fn contents(&mut self, inode: &Inode) -> Result<Contents, SaveError> {
        let image = |error: ext4::Error| SaveError::Image(error.into());
        let fs = self.image.fs();
        let extents = fs.extents(inode).map_err(image)?;
        let written = extents.iter().filter(|extent| extent.kind == ExtentKind::Written);
        let mut data: Vec<(u64, u64)> = Vec::new();
        for extent in written.clone() {
            match data.last_mut() {
                // Pieces of a disk, and one range of the file.
                Some((start, len)) if *start + *len == extent.logical => *len += extent.len,
                _ => data.push((extent.logical, extent.len)),
            }
        }
        if let Some(sha256) = self.seen.get(&inode.ino) {
            return Ok((data, *sha256));
        }
        let length = data.last().map_or(0, |(start, length)| start + length);
        let path = self.data.join(inode.ino.to_string());
        let time = std::time::UNIX_EPOCH.checked_add(std::time::Duration::new(
            inode.mtime.seconds.max(0) as u64,
            inode.mtime.nanoseconds.min(999_999_999),
        ));
        let there = fs::symlink_metadata(&path).ok().filter(|found| found.is_file() && found.len() == length);
        let there = there.is_some_and(|found| found.modified().ok() == time);
        let out = if there {
            None
        } else {
            let unfinished = Temporary::new(self.data.join(format!("{}.part", inode.ino)));
            let out = File::create(unfinished.path())?;
            out.set_len(length)?;
            Some((out, unfinished))
        };
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
                if let Some((out, _)) = &out {
                    out.write_all_at(&buf[..n], extent.logical + at)?;
                }
                at += n as u64;
                self.progress.advance(n as u64);
            }
            self.saved.bytes += if there { 0 } else { extent.len };
        }
        let sha256: [u8; 32] = hash.finalize().into();
        if inode.nlink > 1 {
            self.seen.insert(inode.ino, sha256);
        }
        match out {
            Some((out, unfinished)) => {
                if let Some(time) = time {
                    out.set_modified(time)?;
                }
                unfinished.rename(&path)?;
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
