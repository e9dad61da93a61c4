//! Encrypted files saved as they lie on disk, with what any key needs to restore them.

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

/// What the umask leaves of this is the mode of what is saved.
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
    /// Files, links and others that are left out, because they are not encrypted.
    pub not_encrypted: u64,
    /// What could not be saved.
    pub failed: u64,
}

/// Which ranges of a file hold ciphertext, and its SHA-256.
type Contents = (Vec<(u64, u64)>, [u8; 32]);

struct Saver<'a, W: Write> {
    image: &'a Image,
    /// Nothing is opened or created but by a single name in it, without following links.
    data: WholeFiles,
    manifest: BufWriter<W>,
    /// Of the lines that were written.
    hash: Sha256,
    lines: u64,
    /// The directory met last, and whether its names are encrypted.
    encrypted: Option<(u32, bool)>,
    events: &'a dyn Events,
    counts: SavedCounts,
    /// Inodes of several names whose contents are saved already, and their digests.
    seen: HashMap<u32, [u8; 32]>,
}

/// Saves every encrypted inode at and beneath the directory `root` into the directory `dir`, with the directories that
/// lead there. What an earlier run saved of the same directory is kept where it is still what the image has.
///
/// # Errors
/// Where `dir` can't be written, or holds another save.
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

/// Refuses a directory that holds another save, whose manifest would be lost: the nonces in it are all that makes its
/// contents readable. An earlier save of the same directory is continued.
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

/// What a file's ciphertext is read for.
#[derive(Clone, Copy)]
enum Pass<'a> {
    Compare(&'a File),
    Write(&'a File),
}

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

    /// What an inode is in the manifest; none where it is left out.
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
        // They have no contents and no context; that of their directory hides their names.
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

    /// Saves a file's ciphertext. Returns which ranges hold any, and their digest: always the image's. A file that was
    /// there already and is not what the image has is replaced.
    fn contents(&mut self, inode: &Inode) -> Result<Contents, SaveError> {
        let mut data: Vec<(u64, u64)> = Vec::new();
        let mut written: Vec<Extent> = Vec::new();
        for extent in self.image.fs().extents_from(inode, 0) {
            let extent = extent?;
            if extent.kind != ExtentKind::Written {
                continue;
            }
            match data.last_mut() {
                // Pieces on disk, and one range of the file.
                Some((start, len)) if *start + *len == extent.logical => *len += extent.len,
                _ => data.push((extent.logical, extent.len)),
            }
            written.push(extent);
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
        let found = open_file(self.data.dir(), name.as_bytes())
            .ok()
            .flatten()
            .filter(|file| file.metadata().is_ok_and(|found| found.len() == length && found.modified().ok() == time));
        let same = found.map(|file| self.pass(&written, Pass::Compare(&file))).transpose()?;
        if let Some(None) = same {
            let what = format!("{DATA}/{name}: the existing file differs from the image: replaced");
            self.events.note(&Note::Other(&what));
        }
        let sha256 = match same.flatten() {
            Some(sha256) => {
                self.counts.already_there += 1;
                sha256
            }
            None => {
                let whole = self.data.begin(FILE_MODE)?;
                whole.file().set_len(length)?;
                let sha256 = self.pass(&written, Pass::Write(whole.file()))?;
                let sha256 = sha256.unwrap_or_else(|| unreachable!("only what is compared can differ"));
                self.counts.bytes += written.iter().map(|extent| extent.len).sum::<u64>();
                if let Some(time) = time {
                    whole.file().set_modified(time)?;
                }
                match whole.finish(name.as_bytes()) {
                    // Two names of an inode that says it has one, and other bytes the second time.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        return Err(SaveError::Entry(Error::caused_by(ErrorKind::Io, error)));
                    }
                    other => other?,
                }
                sha256
            }
        };
        if inode.nlink > 1 {
            self.seen.insert(inode.ino, sha256);
        }
        self.events.file_done();
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
                self.image.fs().device().read_exact_at(&mut buf[..n], from).map_err(|source| ext4::Error::Io {
                    offset: from,
                    len: n,
                    source,
                })?;
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
                self.events.read(n as u64);
            }
        }
        Ok(Some(hash.finalize().into()))
    }
}
