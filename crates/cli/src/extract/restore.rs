//! `extract --from-ciphertext`: files out of what `--ciphertext` saved, without the image.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use postread::image::DecryptStep;
use postread::{ExtentMap, MappedExtent, Plan};
use postread_fscrypt::saved_manifest::{Entry, Header, Kind, LINE_MAX, Trailer, inode_of};
use postread_fscrypt::{ContentsKey, Context, InodeFacts, Keyring, MasterKey, NameKey};
use postread_fsimage::ext4::Timestamp;
use postread_io::{PreadConfig, PreadOptions, PreadPool};

use super::ciphertext::{DATA, MANIFEST, line_name};
use super::directories::{DirId, TOP};
use super::saved_file::SavedFile;
use super::survey::{Broken, Survey};
use super::{At, Attributes, Feed, file_job};
use crate::exit::{Failure, Outcome};
use crate::text::name_for_stderr;
use postread::{FileError, open_regular};

/// A directory that was met.
struct Directory {
    /// None where it could not be made.
    made: Option<DirId>,
    ino: u32,
    context: Option<Context>,
}

/// What was saved, opened.
pub(crate) struct Saved<'a> {
    dir: &'a Path,
    keys: &'a Keyring,
    manifest: BufReader<File>,
    number: u64,
    facts: InodeFacts,
    directories: HashMap<u32, Directory>,
    /// The name key of the directory met last.
    names: Option<(u32, NameKey)>,
    pool: PreadPool,
    survey: Survey,
}

/// A directory, a path from the top, and its last name.
type Place = (DirId, Vec<u8>, Vec<u8>);

/// Why an entry is not restored.
#[derive(Debug)]
struct Trouble(Outcome, String);

fn malformed(what: impl std::fmt::Display) -> Trouble {
    Trouble(Outcome::Usage, what.to_string())
}

fn context_of(stored: Option<&Vec<u8>>) -> Result<Option<Context>, Trouble> {
    stored.map(|stored| Context::parse(stored)).transpose().map_err(malformed)
}

impl<'a> Saved<'a> {
    /// Opens what `--ciphertext` saved in `dir`.
    pub(crate) fn open(dir: &'a Path, keys: &'a Keyring, keep_going: bool) -> Result<Self, Failure> {
        let path = dir.join(MANIFEST);
        let io = |error: io::Error| Failure::environment(format!("{}: {error}", name_for_stderr(&path)));
        let open =
            |error: FileError| Failure::new(Outcome::of_file(&error), format!("{}: {error}", name_for_stderr(&path)));
        let mut manifest = BufReader::new(open_regular(&path).map_err(open)?.0);
        let mut line = Vec::new();
        (&mut manifest).take(LINE_MAX as u64 + 1).read_until(b'\n', &mut line).map_err(io)?;
        let wrong = |what: String| Failure::usage(format!("{}: {what}", line_name(&path, 1)));
        let header = Header::parse(&line).map_err(|error| wrong(error.to_string()))?;
        let context = context_of(header.root_context.as_ref()).map_err(|trouble| wrong(trouble.1))?;
        let survey = Survey::make(&path, &header, context, keys).map_err(io)?;
        if let Some(Broken { outcome, what }) = survey.broken.as_ref().filter(|_| !keep_going) {
            let path = name_for_stderr(&path);
            return Err(Failure::new(*outcome, format!("{path}: {what}; --keep-going restores what is there")));
        }
        let root = Directory { made: Some(TOP), ino: header.root, context };
        Ok(Self {
            dir,
            keys,
            manifest,
            number: 1,
            facts: InodeFacts { ino: 0, fs_uuid: header.fs_uuid, block_size: header.block_size as usize },
            directories: HashMap::from([(header.root, root)]),
            names: None,
            pool: PreadPool::new(PreadConfig::new()).map_err(Failure::environment)?,
            survey,
        })
    }

    /// Restores all that the keys open.
    pub(crate) fn walk(mut self, feed: &mut Feed<'_>) {
        let manifest = self.dir.join(MANIFEST);
        if let Some(Broken { outcome, what }) = self.survey.broken.take() {
            let name = std::os::unix::ffi::OsStrExt::as_bytes(manifest.as_os_str());
            feed.failed(name, &what, outcome);
        }
        self.survey.tell_unnamed(&self.dir.join(DATA));
        loop {
            let mut line = Vec::new();
            let read = (&mut self.manifest).take(LINE_MAX as u64 + 1).read_until(b'\n', &mut line);
            self.number += 1;
            let name = line_name(&manifest, self.number);
            match read {
                Ok(0) => return,
                Ok(n) if n > LINE_MAX => {
                    return feed.failed(name.as_bytes(), &"the line is too long", Outcome::Usage);
                }
                Ok(_) if Trailer::parse(&line).is_ok() => continue,
                Ok(_) => {}
                Err(error) => return feed.failed(name.as_bytes(), &error, Outcome::Environment),
            }
            let block_size = self.facts.block_size as u32; // It was one.
            let done = Entry::parse(&line, block_size).map_err(malformed).and_then(|entry| self.entry(feed, entry));
            if let Err(Trouble(outcome, mut what)) = done {
                if let Some(ino) = inode_of(&line).filter(|ino| !what.contains(&format!("inode {ino}"))) {
                    what = format!("inode {ino}: {what}");
                }
                feed.failed(name.as_bytes(), &what, outcome);
            }
        }
    }

    fn facts(&self, ino: u32) -> InodeFacts {
        InodeFacts { ino: ino.into(), ..self.facts }
    }

    fn master(&self, ino: u32, context: &Context) -> Result<&'a MasterKey, Trouble> {
        let missing = |missing| Trouble(Outcome::Key, format!("inode {ino}: {missing}"));
        let master = self.keys.find(&context.policy).map_err(missing)?;
        if self.survey.is_unfit(&context.policy) {
            return Err(missing(self.keys.missing(&context.policy, true)));
        }
        Ok(master)
    }

    fn name_key(&self, ino: u32, context: &Context) -> Result<NameKey, Trouble> {
        NameKey::derive(self.master(ino, context)?, context, &self.facts(ino))
            .map_err(|error| Trouble(Outcome::Key, format!("inode {ino}: {error}")))
    }

    /// A name in a directory, decrypted; its path from the top. None where the directory itself was not restored.
    fn path(&mut self, feed: &Feed<'_>, entry: &Entry) -> Result<Option<Place>, Trouble> {
        let what = || malformed(format!("inode {} lies in a directory that was not before", entry.inode));
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
                        Err(trouble) => {
                            // Told once: all that is in there lacks the same key.
                            self.directories.entry(ino).and_modify(|dir| dir.made = None);
                            return Err(trouble);
                        }
                    }
                }
                let (_, key) = self.names.as_ref().expect("just put there");
                key.decrypt_name(raw).map_err(malformed)?
            }
        };
        Ok(Some((above, feed.directories.path(above, &name), name)))
    }

    fn entry(&mut self, feed: &mut Feed<'_>, entry: Entry) -> Result<(), Trouble> {
        let ino = entry.inode;
        let context = context_of(entry.context.as_ref())?;
        let found = self.path(feed, &entry);
        if entry.kind == Kind::Directory {
            if self.directories.contains_key(&ino) {
                return Err(malformed(format!("directory {ino} is there twice")));
            }
            let place = Directory { made: None, ino, context };
            self.directories.insert(ino, place);
        }
        let Some((dir, path, name)) = found? else { return Ok(()) };
        let at = At { dir, path: &path };
        if !feed.name_is_fine(at, &name) {
            return Ok(());
        }
        let attributes = attributes(&entry);
        match entry.kind {
            Kind::Directory => {
                // What the directory holds needs its key: one message for all of it.
                if let Some(context) = &context {
                    self.master(ino, context)?;
                }
                let made = feed.directory(at, attributes);
                if let Some(place) = self.directories.get_mut(&ino) {
                    place.made = made;
                }
            }
            _ if feed.is_another_name(at, ino, entry.links) => {}
            Kind::Pipe | Kind::Socket | Kind::CharacterDevice | Kind::BlockDevice => {
                let mode = entry.mode & 0o7777 | entry.kind.file_type();
                feed.special(at, mode, entry.device.unwrap_or((0, 0)), &attributes);
            }
            Kind::Link => {
                let context = context.ok_or_else(|| malformed("a link without a context"))?;
                let stored = entry.target.as_deref().ok_or_else(|| malformed("a link without a target"))?;
                let key = self.name_key(ino, &context)?;
                let target = key.decrypt_symlink(stored).map_err(malformed)?;
                feed.symlink(at, &target, &attributes);
            }
            Kind::File => {
                let context = context.ok_or_else(|| malformed("a file without a context"))?;
                let key = ContentsKey::derive(self.master(ino, &context)?, &context, &self.facts(ino))
                    .map_err(|error| Trouble(Outcome::Key, format!("inode {ino}: {error}")))?;
                let from = self.contents(&entry, key)?;
                feed.file(at, ino, entry.size, from, attributes);
            }
        }
        Ok(())
    }

    fn contents(&self, entry: &Entry, key: ContentsKey) -> Result<file_job::From, Trouble> {
        let block_size = self.facts.block_size as u64;
        let path = self.dir.join(DATA).join(entry.inode.to_string());
        let sha256 = entry.sha256.ok_or_else(|| malformed("a file without a sha256"))?;
        let saved = SavedFile::open(&path, entry.data.clone(), sha256)
            .map_err(|error| Trouble(error.outcome(), error.to_string()))?;
        let file = saved
            .file()
            .map_err(|error| Trouble(Outcome::Environment, format!("{}: {error}", name_for_stderr(&path))))?;
        let source = Arc::new(self.pool.file(file, PreadOptions::default()));
        let extents = entry.data.iter().map(|&(start, len)| MappedExtent { logical: start, len, physical: start });
        // Ranges ascend and their ends do not overflow: the line was parsed.
        let within = entry.data.iter().map(|&(start, len)| start..(start + len).min(entry.size));
        let data = within.filter(|range| !range.is_empty()).collect();
        let map = ExtentMap::new(source, extents.collect()).map_err(malformed)?;
        let plan = Plan::new(Arc::new(map), entry.size).step(Arc::new(DecryptStep::new(Arc::new(key), 0)));
        Ok(file_job::From::Saved { saved, plan, data, block_size })
    }
}

fn attributes(entry: &Entry) -> Attributes {
    let time = |(seconds, nanoseconds)| Timestamp { seconds, nanoseconds };
    Attributes {
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        atime: time(entry.atime),
        mtime: time(entry.mtime),
        xattrs: entry.xattrs.clone(),
        frozen: false,
    }
}
