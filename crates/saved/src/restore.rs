//! Restores files from a save, without the image.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use postread::image::DecryptStep;
use postread::{Error, ErrorKind, ExtentMap, MappedExtent, Plan, Result};
use postread_extract::{
    At, AttributeSource, Attributes, Contents, Counts, DirId, Events, Extraction, Meta, TreeWriter,
};
use postread_fscrypt::{ContentsKey, Context, InodeFacts, Keyring, MasterKey, NameKey};
use postread_fsimage::ext4::Timestamp;
use postread_io::{BlockStatus, PreadConfig, PreadOptions, PreadPool};

use crate::contents::SavedContents;
use crate::manifest::{Entry, Header, Kind, LINE_MAX, Trailer, inode_of};
use crate::survey::Survey;
use crate::{DATA, MANIFEST, open_regular};

/// How to restore.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RestoreOptions {
    /// Restore from an incomplete manifest whatever it contains.
    pub keep_going: bool,
}

impl RestoreOptions {
    /// Refuses an incomplete manifest.
    pub fn new() -> Self {
        Self::default()
    }
}

/// A directory seen so far.
struct Directory {
    /// `None` if it could not be created.
    made: Option<DirId>,
    ino: u32,
    context: Option<Context>,
}

/// An opened save.
pub struct Saved<'a> {
    dir: PathBuf,
    keys: &'a Keyring,
    manifest: BufReader<File>,
    header: Header,
    root: Option<Context>,
    pool: PreadPool,
    survey: Survey,
}

impl std::fmt::Debug for Saved<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saved").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// Attributes by where a line of the manifest begins.
struct Lines {
    manifest: Mutex<BufReader<File>>,
    block_size: u32,
}

impl AttributeSource for Lines {
    fn attributes(&self, key: u64, failed: &mut dyn FnMut(Error)) -> Option<Attributes> {
        let mut line = Vec::new();
        let mut manifest = self.manifest.lock().unwrap_or_else(PoisonError::into_inner);
        let read = manifest
            .seek(SeekFrom::Start(key))
            .and_then(|_| (&mut *manifest).take(LINE_MAX as u64).read_until(b'\n', &mut line));
        drop(manifest);
        let entry = read.map_err(Error::from).and_then(|_| Entry::parse(&line, self.block_size).map_err(malformed));
        entry.map(attributes).map_err(failed).ok()
    }
}

/// A directory, a path from the top, and its last name.
type Place = (DirId, Vec<u8>, Vec<u8>);

fn malformed(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Malformed, what.to_string())
}

fn context_of(stored: Option<&Vec<u8>>) -> Result<Option<Context>> {
    stored.map(|stored| Context::parse(stored)).transpose().map_err(malformed)
}

/// A line's name in messages.
fn line_name(path: &Path, number: u64) -> String {
    format!("{}: line {number}", path.display())
}

impl<'a> Saved<'a> {
    /// Opens the save in `dir`, to be restored with these keys.
    ///
    /// # Errors
    /// If the manifest can't be read, or is not complete (with `keep_going` that is reported later).
    pub fn open(dir: &Path, keys: &'a Keyring, options: RestoreOptions) -> Result<Self> {
        let path = dir.join(MANIFEST);
        let mut manifest = BufReader::new(open_regular(&path)?.0);
        let mut line = Vec::new();
        let read = (&mut manifest).take(LINE_MAX as u64 + 1).read_until(b'\n', &mut line);
        read.map_err(|error| Error::caused_by(ErrorKind::Io, error).about(&path))?;
        let first = |error: Error| malformed(error.message()).about(line_name(&path, 1));
        let header = Header::parse(&line).map_err(|error| first(malformed(error)))?;
        let root = context_of(header.root_context.as_ref()).map_err(first)?;
        let survey = Survey::make(&path, &header, root, keys)?;
        if let Some(broken) = survey.broken.as_ref().filter(|_| !options.keep_going) {
            let what = format!("{}; --keep-going restores what is there", broken.message());
            return Err(Error::new(broken.kind(), what).about(path));
        }
        let pool = PreadPool::new(PreadConfig::new())?;
        Ok(Self { dir: dir.to_owned(), keys, manifest, header, root, pool, survey })
    }

    /// Restores everything that the keys unlock.
    ///
    /// # Errors
    /// If the manifest can't be opened again.
    pub fn restore(mut self, extraction: Extraction<'_>, events: &dyn Events) -> Result<Counts> {
        let manifest = Mutex::new(BufReader::new(open_regular(&self.dir.join(MANIFEST))?.0));
        let lines = Lines { manifest, block_size: self.header.block_size };
        let broken = self.survey.broken.take();
        self.survey.report_unnamed(&self.dir.join(DATA), events);
        Ok(extraction.tree(&lines, |writer| {
            if let Some(broken) = broken {
                let path = self.dir.join(MANIFEST);
                writer.failed(path.as_os_str().as_bytes(), &Error::new(broken.kind(), broken.message().to_string()));
            }
            let root = Directory { made: Some(writer.top_dir()), ino: self.header.root, context: self.root };
            let directories = HashMap::from([(self.header.root, root)]);
            Walk { saved: &mut self, directories, names: None }.run(writer);
        }))
    }
}

/// The manifest, line by line.
struct Walk<'s, 'a> {
    saved: &'s mut Saved<'a>,
    directories: HashMap<u32, Directory>,
    /// The name key of the last directory.
    names: Option<(u32, NameKey)>,
}

impl Walk<'_, '_> {
    fn run(mut self, writer: &mut TreeWriter<'_>) {
        let path = self.saved.dir.join(MANIFEST);
        let block_size = self.saved.header.block_size;
        for number in 2.. {
            let mut line = Vec::new();
            let manifest = &mut self.saved.manifest;
            let start = manifest.stream_position();
            let read = manifest.take(LINE_MAX as u64 + 1).read_until(b'\n', &mut line);
            let name = line_name(&path, number);
            let start = match start.and_then(|start| Ok((start, read?))) {
                Ok((_, 0)) => return,
                Ok((_, n)) if n > LINE_MAX => {
                    return writer.failed(name.as_bytes(), &malformed("the line is too long"));
                }
                Ok((start, _)) => start,
                Err(error) => return writer.failed(name.as_bytes(), &error.into()),
            };
            if Trailer::parse(&line).is_ok() {
                continue;
            }
            let entry = Entry::parse(&line, block_size).map_err(malformed);
            let ino = entry.as_ref().map_or_else(|_| inode_of(&line), |entry| Some(entry.inode));
            drop(line);
            if let Err(error) = entry.and_then(|entry| self.entry(writer, entry, start)) {
                let mut what = error.to_string();
                if let Some(ino) = ino.filter(|ino| !what.contains(&format!("inode {ino}"))) {
                    what = format!("inode {ino}: {what}");
                }
                writer.failed(name.as_bytes(), &Error::new(error.kind(), what));
            }
        }
    }

    fn facts(&self, ino: u32) -> InodeFacts {
        let Header { fs_uuid, block_size, .. } = self.saved.header;
        InodeFacts { ino: ino.into(), fs_uuid, block_size: block_size as usize }
    }

    fn master(&self, ino: u32, context: &Context) -> Result<&MasterKey> {
        let keys = self.saved.keys;
        let missing = |missing| Error::new(ErrorKind::Key, format!("inode {ino}: {missing}"));
        let master = keys.find(&context.policy).map_err(missing)?;
        if self.saved.survey.is_unfit(&context.policy) {
            return Err(missing(keys.missing(&context.policy, true)));
        }
        Ok(master)
    }

    fn name_key(&self, ino: u32, context: &Context) -> Result<NameKey> {
        NameKey::derive(self.master(ino, context)?, context, &self.facts(ino))
            .map_err(|error| Error::new(ErrorKind::Key, format!("inode {ino}: {error}")))
    }

    /// A name in a directory, decrypted; its path from the top. None where the directory itself was not restored.
    fn path(&mut self, writer: &TreeWriter<'_>, entry: &Entry) -> Result<Option<Place>> {
        let what = || malformed(format!("inode {} precedes its directory in the manifest", entry.inode));
        let dir = self.directories.get(&entry.directory).ok_or_else(what)?;
        let Some(above) = dir.made else { return Ok(None) };
        let raw = &entry.raw_name;
        let (ino, context) = (dir.ino, dir.context);
        let name = match context {
            None => raw.clone(),
            Some(context) => {
                if self.names.as_ref().is_none_or(|(of, _)| *of != ino) {
                    match self.name_key(ino, &context) {
                        Ok(key) => self.names = Some((ino, key)),
                        Err(error) => {
                            // Reported once: everything in it lacks the same key.
                            self.directories.entry(ino).and_modify(|dir| dir.made = None);
                            return Err(error);
                        }
                    }
                }
                let (_, key) = self.names.as_ref().expect("just put there");
                key.decrypt_name(raw).map_err(malformed)?
            }
        };
        Ok(Some((above, writer.path(above, &name), name)))
    }

    fn entry(&mut self, writer: &mut TreeWriter<'_>, entry: Entry, key: u64) -> Result<()> {
        let ino = entry.inode;
        let context = context_of(entry.context.as_ref())?;
        let found = self.path(writer, &entry);
        if entry.kind == Kind::Directory {
            if self.directories.contains_key(&ino) {
                return Err(malformed(format!("directory {ino} comes twice")));
            }
            self.directories.insert(ino, Directory { made: None, ino, context });
        }
        let Some((dir, path, name)) = found? else { return Ok(()) };
        let at = At { dir, path: &path };
        if !writer.accepts(at, &name) {
            return Ok(());
        }
        let meta = Meta { ino, links: entry.links, key };
        match entry.kind {
            Kind::Directory => {
                // Everything in the directory needs its key: report it once.
                if let Some(context) = &context {
                    self.master(ino, context)?;
                }
                let made = writer.directory(at, key);
                if let Some(place) = self.directories.get_mut(&ino) {
                    place.made = made;
                }
            }
            Kind::Pipe | Kind::Socket | Kind::CharacterDevice | Kind::BlockDevice => {
                let mode = entry.mode & 0o7777 | entry.kind.file_type();
                writer.special(at, meta, mode, entry.device.unwrap_or((0, 0)));
            }
            Kind::Link => {
                let context = context.ok_or_else(|| malformed("a link without a context"))?;
                let stored = entry.target.as_deref().ok_or_else(|| malformed("a link without a target"))?;
                let key = self.name_key(ino, &context)?;
                let target = key.decrypt_symlink(stored).map_err(malformed)?;
                writer.symlink(at, meta, &target);
            }
            Kind::File => {
                let context = context.ok_or_else(|| malformed("a file without a context"))?;
                let key = ContentsKey::derive(self.master(ino, &context)?, &context, &self.facts(ino))
                    .map_err(|error| Error::new(ErrorKind::Key, format!("inode {ino}: {error}")))?;
                let size = entry.size;
                let contents = self.contents(entry, key)?;
                writer.file(at, meta, size, contents);
            }
        }
        Ok(())
    }

    fn contents(&self, entry: Entry, key: ContentsKey) -> Result<Contents> {
        let Entry { inode, size, data, lost, sha256, .. } = entry;
        let path = self.saved.dir.join(DATA).join(inode.to_string());
        let sha256 = sha256.ok_or_else(|| malformed("a file without a sha256"))?;
        let extents = data.iter().map(|&(start, len)| MappedExtent { logical: start, len, physical: start }).collect();
        // Ranges ascend and their ends do not overflow: the line was parsed.
        let within = |ranges: &[(u64, u64)]| {
            let within = ranges.iter().map(|&(start, len)| start..(start + len).min(size));
            within.filter(|range| !range.is_empty()).collect()
        };
        let read: Vec<Range<u64>> = within(&data);
        let saved = SavedContents::open(&path, data, sha256)?;
        let source = Arc::new(self.saved.pool.file(saved.file()?, PreadOptions::default()));
        let mut map = ExtentMap::new(source, extents).map_err(malformed)?;
        let broken: Vec<Range<u64>> = within(&lost);
        for range in &broken {
            let message = "it could not be read when the rest of the file was saved".into();
            map.add_broken(range.clone(), BlockStatus::Unmapped { message, checksum: true });
        }
        let plan = Plan::new(Arc::new(map), size).step(Arc::new(DecryptStep::new(Arc::new(key), 0)));
        Ok(Contents::plan(plan, read, broken, self.saved.header.block_size, move || saved.check()))
    }
}

fn attributes(entry: Entry) -> Attributes {
    let time = |(seconds, nanoseconds)| Timestamp { seconds, nanoseconds };
    Attributes {
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        atime: time(entry.atime),
        mtime: time(entry.mtime),
        xattrs: entry.xattrs,
        frozen: false,
    }
}
