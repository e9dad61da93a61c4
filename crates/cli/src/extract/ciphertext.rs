//! The layout of `extract --ciphertext`: encrypted files as they lie on disk, with what any key needs to restore them.
//!
//! `docs/ciphertext-layout.md` describes it; `postread_fscrypt::saved_manifest` has the manifest's lines.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use postread::image::{Image, ImageError};
use postread_fscrypt::saved_manifest::{Entry, Header, Kind, LINE_MAX, Trailer};
use postread_fsimage::ext4::{self, Extent, ExtentKind, FileType, Inode, Timestamp};
use rustix::fs::Mode;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::beneath::{self, Unfinished};
use crate::exit::{Failure, Outcome};
use crate::image::outcome_of;
use crate::progress::Progress;
use crate::text::{bytes_for_stderr, complain, name_for_stderr};
use postread::Progress as _;

/// The manifest's name.
pub(super) const MANIFEST: &str = "manifest.jsonl";
/// The directory of contents, a file an inode, named by its number.
pub(super) const DATA: &str = "data";
/// Bytes copied at once.
const STEP: u64 = 1 << 20;
/// What the umask leaves of this is the mode of what is saved.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);

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
    /// Nothing is opened or made but by a single name in it, without following links.
    data: BorrowedFd<'a>,
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
    fs::create_dir_all(dir).map_err(output)?;
    let top: OwnedFd = File::open(dir).map_err(output)?.into();
    // One run at a time, as long as this is open.
    beneath::lock(top.as_fd()).map_err(output)?;
    let of_data = |error: io::Error| Failure::environment(format!("{}: {error}", name_for_stderr(&dir.join(DATA))));
    match rustix::fs::mkdirat(&top, DATA, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(of_data(error.into())),
    }
    let data = beneath::open_dir(top.as_fd(), DATA.as_bytes()).map_err(of_data)?;
    let superblock = image.fs().superblock();
    let root_context = image.fs().fscrypt_context(root).map_err(|error| {
        let error = ImageError::from(error);
        Failure::new(outcome_of(&error), error)
    })?;
    let header = Header { fs_uuid: superblock.uuid, block_size: superblock.block_size, root: root.ino, root_context };
    refuse_another(dir, top.as_fd(), &header)?;
    let part = format!("{MANIFEST}.part");
    let (manifest, unfinished) = Unfinished::begin(top.as_fd(), &part, FILE_MODE).map_err(output)?;
    let manifest = BufWriter::new(manifest);
    let mut saver = Saver {
        image,
        data: data.as_fd(),
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
    unfinished.finish(top.as_fd(), MANIFEST.as_bytes()).map_err(output)?;
    saver.saved.exit_status = saver.outcome.code();
    Ok((saver.outcome, saver.saved))
}

/// Refuses a directory that holds another save, whose manifest would be lost: the nonces in it are all that makes its
/// contents readable. What an interrupted or earlier run saved of the same directory is gone on with.
fn refuse_another(dir: &Path, top: BorrowedFd<'_>, header: &Header) -> Result<(), Failure> {
    for (name, whole) in [(MANIFEST.to_owned(), true), (format!("{MANIFEST}.part"), false)] {
        let path = dir.join(&name);
        let mut line = Vec::new();
        match beneath::open_file(top, name.as_bytes()) {
            // No run left it: it gives way to a new file.
            Ok(None) if !whole => continue,
            Ok(None) => Err(io::Error::other("it is no regular file")),
            Ok(Some(file)) => io::BufReader::new(file).take(LINE_MAX as u64).read_until(b'\n', &mut line),
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

/// What a file's ciphertext is read for.
#[derive(Clone, Copy)]
enum Pass<'a> {
    Compare(&'a File),
    Write(&'a File),
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

    /// Saves a file's ciphertext, and tells which ranges hold any, and their digest: always the image's. A file
    /// that was there already and is not what the image has is replaced.
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
        let name = inode.ino.to_string();
        let time = std::time::UNIX_EPOCH.checked_add(std::time::Duration::new(
            inode.mtime.seconds.max(0) as u64,
            inode.mtime.nanoseconds.min(999_999_999),
        ));
        let found = beneath::open_file(self.data, name.as_bytes())
            .ok()
            .flatten()
            .filter(|file| file.metadata().is_ok_and(|found| found.len() == length && found.modified().ok() == time));
        let written: Vec<Extent> = written.copied().collect();
        let same = found.map(|file| self.pass(&written, Pass::Compare(&file))).transpose()?;
        if let Some(None) = same {
            complain(format_args!("{DATA}/{name}: what was there differs from the image: replaced"));
        }
        let sha256 = match same.flatten() {
            Some(sha256) => {
                self.saved.already_there += 1;
                sha256
            }
            None => {
                let (out, unfinished) = Unfinished::begin(self.data, &format!("{name}.part"), FILE_MODE)?;
                out.set_len(length)?;
                let sha256 = self.pass(&written, Pass::Write(&out))?;
                let sha256 = sha256.unwrap_or_else(|| unreachable!("only what is compared can differ"));
                self.saved.bytes += written.iter().map(|extent| extent.len).sum::<u64>();
                if let Some(time) = time {
                    out.set_modified(time)?;
                }
                unfinished.finish(self.data, name.as_bytes())?;
                sha256
            }
        };
        if inode.nlink > 1 {
            self.seen.insert(inode.ino, sha256);
        }
        self.progress.file_done();
        Ok((data, sha256))
    }

    /// Reads a file's ciphertext in the image once; its SHA-256, or none where the file compared with differs.
    fn pass(&self, written: &[Extent], pass: Pass<'_>) -> Result<Option<[u8; 32]>, SaveError> {
        let mut hash = Sha256::new();
        let longest = written.iter().map(|extent| extent.len).max().unwrap_or(0);
        let mut buf = vec![0; STEP.min(longest) as usize];
        let mut other = Vec::new();
        for extent in written {
            let mut at = 0;
            while at < extent.len {
                let n = STEP.min(extent.len - at) as usize;
                let from = extent.physical + at;
                self.image
                    .fs()
                    .device()
                    .read_exact_at(&mut buf[..n], from)
                    .map_err(|source| SaveError::Image(ext4::Error::Io { offset: from, len: n, source }.into()))?;
                hash.update(&buf[..n]);
                match pass {
                    Pass::Write(out) => out.write_all_at(&buf[..n], extent.logical + at)?,
                    Pass::Compare(file) => {
                        other.resize(n, 0);
                        // What can't be read any more is not what was saved.
                        if file.read_exact_at(&mut other, extent.logical + at).is_err() || other != buf[..n] {
                            return Ok(None);
                        }
                    }
                }
                at += n as u64;
                self.progress.advance(n as u64);
            }
        }
        Ok(Some(hash.finalize().into()))
    }
}

/// A line that is named in messages.
pub(super) fn line_name(path: &Path, number: u64) -> String {
    format!("{}: line {number}", bytes_for_stderr(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())))
}
