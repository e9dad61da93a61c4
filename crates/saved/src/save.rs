//! Saves encrypted files as they are on disk, with everything but the key that is needed to restore them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use postread::image::{Image, ImageError};
use postread::{Error, ErrorKind, Result};
use postread_extract::{Attributes, Events, Failure, Note, WholeFiles, lock, open_dir, open_file};
use postread_fsimage::ext4::{self, Extent, ExtentKind, FileType, Inode, Timestamp};
use rustix::fs::Mode;
use sha2::{Digest, Sha256};

use crate::manifest::{Entry, Header, Kind, LINE_MAX, Trailer};
use crate::{DATA, MANIFEST, STEP};

/// The mode of saved files, before the umask.
const FILE_MODE: u32 = 0o666;

/// What was saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedCounts {
    /// Names of encrypted files.
    pub files: u64,
    /// Bytes of ciphertext that were written.
    pub bytes: u64,
    /// Directories, encrypted or not.
    pub directories: u64,
    /// Encrypted symbolic links.
    pub links: u64,
    /// Pipes, sockets and device nodes of encrypted directories.
    pub others: u64,
    /// Files whose ciphertext an earlier run had saved.
    pub already_there: u64,
    /// Files, links and others that were left out because they are not encrypted.
    pub not_encrypted: u64,
    /// Entries that could not be saved.
    pub failed: u64,
}

/// A file's ciphertext.
#[derive(Clone, Default)]
struct Contents {
    /// The ranges that hold ciphertext, start and length.
    data: Vec<(u64, u64)>,
    /// Those that can't be read, or whose place is unknown.
    lost: Vec<(u64, u64)>,
    /// Digest of the ranges in `data`.
    sha256: [u8; 32],
}

/// Adds a range after the others.
fn add(ranges: &mut Vec<(u64, u64)>, start: u64, len: u64) {
    match ranges.last_mut() {
        _ if len == 0 => {}
        Some((last, length)) if *last + *length == start => *length += len,
        _ => ranges.push((start, len)),
    }
}

/// The most ranges of a file whose loss is reported one by one.
const REPORTED_MAX: usize = 10;

struct Saver<'a, W: Write> {
    image: &'a Image,
    /// Files are only opened or created by a single name in it, without following links.
    data: WholeFiles,
    manifest: BufWriter<W>,
    /// Of the lines that were written.
    hash: Sha256,
    lines: u64,
    /// The last directory, and whether its names are encrypted.
    encrypted: Option<(u32, bool)>,
    events: &'a dyn Events,
    counts: SavedCounts,
    /// Inodes with several names whose contents have already been saved.
    seen: HashMap<u32, Contents>,
}

/// Saves every encrypted inode at and below the directory `root` into the directory `dir`, with the directories that
/// lead there. Contents that an earlier run saved are kept if they still match the image.
///
/// # Errors
/// If `dir` can't be written, or holds another save.
pub fn save(image: &Image, root: &Inode, dir: &Path, events: &dyn Events) -> Result<SavedCounts> {
    if !root.is_dir() {
        return Err(ImageError::WrongKind { ino: root.ino, wanted: "directory" }.into());
    }
    let output = |error: io::Error| Error::caused_by(ErrorKind::Io, error).about(dir);
    fs::create_dir_all(dir).map_err(output)?;
    let top: OwnedFd = File::open(dir).map_err(output)?.into();
    // One run at a time, as long as this is open.
    lock(top.as_fd()).map_err(output)?;
    let of_data = |error: io::Error| Error::caused_by(ErrorKind::Io, error).about(dir.join(DATA));
    match rustix::fs::mkdirat(&top, DATA, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(of_data(error.into())),
    }
    let data = open_dir(top.as_fd(), DATA.as_bytes()).and_then(WholeFiles::new).map_err(of_data)?;
    let superblock = image.fs().superblock();
    let root_context = image.fs().fscrypt_context(root).map_err(ImageError::from)?;
    let header = Header { fs_uuid: superblock.uuid, block_size: superblock.block_size, root: root.ino, root_context };
    refuse_another(dir, top.as_fd(), &header)?;
    let top = WholeFiles::new(top).map_err(output)?;
    let manifest = top.begin(FILE_MODE).map_err(output)?;
    let mut saver = Saver {
        image,
        data,
        manifest: BufWriter::new(manifest.file()),
        hash: Sha256::new(),
        lines: 0,
        encrypted: None,
        events,
        counts: SavedCounts::default(),
        seen: HashMap::new(),
    };
    saver.line(&header.to_line()).map_err(output)?;
    for visit in image.fs().walk(root.ino) {
        match (visit.entry, visit.inode) {
            (Some(entry), Ok(inode)) => match saver.entry(visit.dir, &entry.name, &inode) {
                Ok(()) => {}
                Err(SaveError::Output(error)) => return Err(output(error)),
                Err(SaveError::Entry(error)) => saver.failed(inode.ino, &error),
            },
            (None, Ok(_)) => {}
            (entry, Err(error)) => {
                let error = Error::from(ImageError::from(error));
                saver.failed(entry.map_or(visit.dir, |entry| entry.ino), &error);
            }
        }
    }
    let trailer = Trailer { lines: saver.lines, sha256: saver.hash.clone().finalize().into() };
    saver.line(&trailer.to_line()).map_err(output)?;
    saver.manifest.flush().map_err(output)?;
    let counts = saver.counts;
    drop(saver);
    manifest.finish(MANIFEST.as_bytes()).map_err(output)?;
    Ok(counts)
}

/// Refuses a directory that holds another save, whose manifest would be lost: without the nonces in it, its contents
/// can never be decrypted. An earlier save of the same directory is continued.
fn refuse_another(dir: &Path, top: BorrowedFd<'_>, header: &Header) -> Result<()> {
    let path = dir.join(MANIFEST);
    let mut line = Vec::new();
    match open_file(top, MANIFEST.as_bytes()) {
        Ok(None) => Err(io::Error::other("not a regular file")),
        Ok(Some(file)) => io::BufReader::new(file).take(LINE_MAX as u64).read_until(b'\n', &mut line),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
    }
    .map_err(|error| Error::caused_by(ErrorKind::Io, error).about(&path))?;
    let what = match Header::parse(&line) {
        Ok(found) if found == *header => return Ok(()),
        Ok(found) if found.fs_uuid != header.fs_uuid => "is of another file system",
        Ok(found) if found.root != header.root => "is of another directory of this file system",
        Ok(_) => "is of a directory with another encryption context",
        Err(_) => "is not one of this version",
    };
    let what = format!("this manifest {what}, and would be replaced: save into another directory");
    Err(Error::new(ErrorKind::InvalidInput, what).about(path))
}

/// A range that can't be saved, start and length in bytes, and why.
type Lost = ((u64, u64), Error);

enum SaveError {
    /// This entry can't be saved; the others can.
    Entry(Error),
    /// Nothing can be written any more.
    Output(io::Error),
}

impl From<io::Error> for SaveError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<ext4::Error> for SaveError {
    fn from(error: ext4::Error) -> Self {
        Self::Entry(ImageError::from(error).into())
    }
}

impl<W: Write> Saver<'_, W> {
    fn failed(&mut self, ino: u32, error: &Error) {
        self.counts.failed += 1;
        self.events.failed(&Failure::new(format!("inode {ino}").as_bytes(), error));
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

    /// An inode's kind in the manifest; `None` if it is left out.
    fn kind(&mut self, dir: u32, inode: &Inode) -> ext4::Result<Option<Kind>> {
        let kind = match inode.file_type {
            FileType::Directory => return Ok(Some(Kind::Directory)),
            FileType::Regular => return Ok(inode.is_encrypted().then_some(Kind::File)),
            FileType::Symlink => return Ok(inode.is_encrypted().then_some(Kind::Link)),
            FileType::Fifo => Kind::Pipe,
            FileType::Socket => Kind::Socket,
            FileType::CharDevice => Kind::CharacterDevice,
            FileType::BlockDevice => Kind::BlockDevice,
            _ => return Ok(None),
        };
        // They have no contents and no context, but the directory's context encrypts their names.
        Ok(self.is_encrypted(dir)?.then_some(kind))
    }

    fn entry(&mut self, dir: u32, raw_name: &[u8], inode: &Inode) -> Result<(), SaveError> {
        let Some(kind) = self.kind(dir, inode)? else {
            self.counts.not_encrypted += 1;
            return Ok(());
        };
        let fs = self.image.fs().clone();
        let context = fs.fscrypt_context(inode)?;
        let target = match kind {
            Kind::Link => Some(fs.symlink_target(inode)?),
            _ => None,
        };
        let mut unreadable = Vec::new();
        let attributes = Attributes::read(self.image, inode, &mut |error| unreadable.push(error));
        unreadable.iter().for_each(|error| self.failed(inode.ino, error));
        let contents = match kind {
            Kind::File => Some(self.contents(inode)?),
            _ => None,
        };
        let sha256 = contents.as_ref().map(|contents| contents.sha256);
        let Contents { data, lost, .. } = contents.unwrap_or_default();
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
            lost,
            sha256,
            xattrs: attributes.xattrs,
        };
        let line = entry.to_line();
        if line.len() > LINE_MAX {
            let what =
                format!("its line of the manifest has {} bytes, more than {LINE_MAX}: too many pieces", line.len());
            return Err(SaveError::Entry(Error::new(ErrorKind::Malformed, what)));
        }
        self.line(&line)?;
        match kind {
            Kind::File => self.counts.files += 1,
            Kind::Directory => self.counts.directories += 1,
            Kind::Link => self.counts.links += 1,
            _ => self.counts.others += 1,
        }
        Ok(())
    }

    /// Saves a file's ciphertext as far as it can be read, and reports the rest. An existing file that differs from the
    /// image is replaced.
    fn contents(&mut self, inode: &Inode) -> Result<Contents, SaveError> {
        if let Some(contents) = self.seen.get(&inode.ino) {
            return Ok(contents.clone());
        }
        let (written, mut failures) = self.map(inode)?;
        let length = written.last().map_or(0, |extent| extent.logical + extent.len);
        let name = inode.ino.to_string();
        let time = std::time::UNIX_EPOCH.checked_add(std::time::Duration::new(
            inode.mtime.seconds.max(0) as u64,
            inode.mtime.nanoseconds.min(999_999_999),
        ));
        let found = open_file(self.data.dir(), name.as_bytes())
            .ok()
            .flatten()
            .filter(|file| file.metadata().is_ok_and(|found| found.len() == length && found.modified().ok() == time));
        let same = found.map(|file| self.compare(&written, &file)).transpose()?;
        if let Some(None) = same {
            let what = format!("{DATA}/{name}: the existing file differs from the image: replaced");
            self.events.note(&Note::Other(&what));
        }
        let mut contents = match same.flatten() {
            Some(contents) => {
                self.counts.already_there += 1;
                contents
            }
            None => {
                let whole = self.data.begin(FILE_MODE)?;
                let contents = self.copy(&written, whole.file(), &mut failures)?;
                // Where its last range ends: a loss at the end leaves nothing there.
                whole.file().set_len(contents.data.last().map_or(0, |(start, len)| start + len))?;
                self.counts.bytes += contents.data.iter().map(|(_, len)| len).sum::<u64>();
                if let Some(time) = time {
                    whole.file().set_modified(time)?;
                }
                match whole.finish(name.as_bytes()) {
                    // An inode with two names that claims to have one, and whose bytes differ the second time.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        return Err(SaveError::Entry(Error::caused_by(ErrorKind::Io, error)));
                    }
                    other => other?,
                }
                contents
            }
        };
        failures.sort_by_key(|(range, _)| range.0);
        for ((start, len), _) in &failures {
            add(&mut contents.lost, *start, *len);
        }
        self.report_lost(inode, failures);
        if inode.nlink > 1 {
            self.seen.insert(inode.ino, contents.clone());
        }
        self.events.file_done();
        Ok(contents)
    }

    /// The extents that hold ciphertext, and the ranges covered by damaged parts of the map: whole blocks, up to the
    /// end of the file's contents.
    fn map(&self, inode: &Inode) -> Result<(Vec<Extent>, Vec<Lost>), SaveError> {
        let block_size = u64::from(self.image.fs().superblock().block_size);
        let end = inode.size.checked_next_multiple_of(block_size).unwrap_or(inode.size);
        let (mut written, mut failures): (Vec<Extent>, Vec<Lost>) = (Vec::new(), Vec::new());
        let mut walk = self.image.fs().extents_from(inode, 0);
        while let Some(extent) = walk.next() {
            match extent {
                Ok(extent) if extent.kind == ExtentKind::Written => written.push(extent),
                Ok(_) => {}
                Err(error) => {
                    let Some(range) = walk.skip_broken() else { return Err(error.into()) };
                    match failures.last_mut() {
                        // A hostile map has many neighbours.
                        Some(((start, len), _)) if *start + *len >= range.start.min(end) => {
                            *len = range.end.min(end).saturating_sub(*start).max(*len);
                        }
                        _ => {
                            let start = range.start.min(end);
                            failures.push(((start, range.end.min(end) - start), ImageError::from(error).into()));
                        }
                    }
                }
            }
        }
        Ok((written, failures))
    }

    fn report_lost(&mut self, inode: &Inode, failures: Vec<Lost>) {
        let more = failures.len().saturating_sub(REPORTED_MAX);
        if !failures.is_empty() {
            self.counts.failed += 1;
        }
        let name = format!("inode {}", inode.ino);
        let mut kind = ErrorKind::Io;
        for ((start, len), error) in failures.into_iter().take(REPORTED_MAX) {
            kind = error.kind();
            let what = match len {
                // Past the end of the contents.
                0 => error.message().to_string(),
                _ => format!("bytes {start} to {} are not saved: {}", start + len - 1, error.message()),
            };
            self.events.failed(&Failure::new(name.as_bytes(), &Error::new(kind, what)));
        }
        if more > 0 {
            let error = Error::new(kind, format!("{more} more ranges are not saved"));
            self.events.failed(&Failure::new(name.as_bytes(), &error));
        }
    }

    fn read(&self, buf: &mut [u8], from: u64) -> ext4::Result<()> {
        let read = self.image.fs().device().read_exact_at(buf, from);
        read.map_err(|source| ext4::Error::Io { offset: from, len: buf.len(), source })
    }

    /// Calls `each` with the file's ciphertext: the offset, and the bytes or why they can't be read. If a longer run
    /// can't be read, its blocks are read one by one.
    fn each_run(
        &self,
        written: &[Extent],
        mut each: impl FnMut(u64, Result<&[u8], (u64, ext4::Error)>) -> Result<bool, SaveError>,
    ) -> Result<bool, SaveError> {
        let longest = written.iter().map(|extent| extent.len).max().unwrap_or(0);
        let mut buf = vec![0; STEP.min(longest) as usize];
        let block_size = u64::from(self.image.fs().superblock().block_size);
        let device = self.image.fs().device().len().unwrap_or(u64::MAX);
        for extent in written {
            let (mut at, mut by_block) = (0, 0);
            while at < extent.len {
                // By blocks up to the end of a run in which one could not be read.
                let n = if at < by_block { block_size } else { STEP }.min(extent.len - at);
                let (to, from) = (extent.logical + at, extent.physical.saturating_add(at));
                let (n, goes_on) = match self.read(&mut buf[..n as usize], from) {
                    Ok(()) => (n, each(to, Ok(&buf[..n as usize]))?),
                    Err(_) if n > block_size && from < device => {
                        by_block = at + n;
                        continue;
                    }
                    Err(error) => {
                        // Don't try to read past the end of the device.
                        let n = if from < device { n } else { extent.len - at };
                        (n, each(to, Err((n, error)))?)
                    }
                };
                if !goes_on {
                    return Ok(false);
                }
                at += n;
                self.events.read(n);
            }
        }
        Ok(true)
    }

    /// Copies the readable parts of a file's ciphertext, and adds the others to `failures`.
    fn copy(&self, written: &[Extent], out: &File, failures: &mut Vec<Lost>) -> Result<Contents, SaveError> {
        let mut contents = Contents::default();
        let mut hash = Sha256::new();
        self.each_run(written, |to, run| {
            match run {
                Ok(bytes) => {
                    out.write_all_at(bytes, to)?;
                    hash.update(bytes);
                    add(&mut contents.data, to, bytes.len() as u64);
                }
                Err((len, error)) => match failures.last_mut() {
                    Some(((start, length), _)) if *start + *length == to => *length += len,
                    _ => failures.push(((to, len), ImageError::from(error).into())),
                },
            }
            Ok(true)
        })?;
        contents.sha256 = hash.finalize().into();
        Ok(contents)
    }

    /// Reads a file's ciphertext in the image. `None` if `file` differs, or if something can't be read.
    fn compare(&self, written: &[Extent], file: &File) -> Result<Option<Contents>, SaveError> {
        let mut contents = Contents::default();
        let mut hash = Sha256::new();
        let mut other = Vec::new();
        let same = self.each_run(written, |to, run| {
            let Ok(bytes) = run else { return Ok(false) };
            hash.update(bytes);
            add(&mut contents.data, to, bytes.len() as u64);
            other.resize(bytes.len(), 0);
            // Bytes that can no longer be read do not count as equal.
            Ok(file.read_exact_at(&mut other, to).is_ok() && other == bytes)
        })?;
        contents.sha256 = hash.finalize().into();
        Ok(same.then_some(contents))
    }
}
