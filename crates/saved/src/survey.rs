//! Reads the manifest before anything is restored, to find out whether it is complete, which contents it names, and
//! which keys of v1 policies are wrong.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use postread::{Error, ErrorKind, Result};
use postread_extract::{Events, Note};
use postread_fscrypt::{Context, InodeFacts, KeySpecifier, Keyring, NameEvidence, NameKey, Policy};
use sha2::{Digest, Sha256};

use crate::manifest::{Entry, Header, Kind, LINE_MAX, Trailer};
use crate::open_regular;

/// The most files, unknown to the manifest, that are reported by name.
const NAMED_MAX: usize = 10;

/// The result.
pub(crate) struct Survey {
    /// Why the manifest is incomplete or modified.
    pub(crate) broken: Option<Error>,
    /// Files that have contents.
    files: HashSet<u32>,
    /// Key descriptors for which the wrong key was given.
    unfit: HashSet<KeySpecifier>,
}

/// Judges each key by the names that it decrypts.
struct KeyTests<'a> {
    keys: &'a Keyring,
    facts: InodeFacts,
    contexts: HashMap<u32, Context>,
    /// The last directory, and its key if there is one.
    last: Option<(u32, Option<NameKey>)>,
    evidence: HashMap<KeySpecifier, NameEvidence>,
}

impl Survey {
    /// Reads all of the manifest, whose first line was parsed.
    pub(crate) fn make(path: &Path, header: &Header, root: Option<Context>, keys: &Keyring) -> Result<Self> {
        let mut file = BufReader::new(open_regular(path)?.0);
        let facts = InodeFacts { ino: 0, fs_uuid: header.fs_uuid, block_size: header.block_size as usize };
        let contexts = root.into_iter().map(|context| (header.root, context)).collect();
        let mut tests = KeyTests { keys, facts, contexts, last: None, evidence: HashMap::new() };
        let mut files = HashSet::new();
        let (mut hash, mut lines) = (Sha256::new(), 0u64);
        let mut line = Vec::new();
        let malformed = |what: String| Some(Error::new(ErrorKind::Malformed, what).about(path));
        let broken = loop {
            line.clear();
            let read = (&mut file).take(LINE_MAX as u64 + 1).read_until(b'\n', &mut line);
            let read = read.map_err(|error| Error::caused_by(ErrorKind::Io, error).about(path))?;
            if read == 0 {
                break malformed(format!("cut off after line {lines}: the last line, with the count, is missing"));
            }
            if read > LINE_MAX {
                break malformed(format!("line {} is too long: at most {LINE_MAX} bytes", lines + 1));
            }
            if let Ok(trailer) = Trailer::parse(&line) {
                let found: [u8; 32] = hash.finalize().into();
                break match trailer {
                    Trailer { lines: wanted, .. } if wanted != lines => {
                        malformed(format!("expected {wanted} lines, found {lines}"))
                    }
                    Trailer { sha256, .. } if sha256 != found => {
                        let what = format!("expected SHA-256 {}, found {}", hex::encode(sha256), hex::encode(found));
                        Some(Error::new(ErrorKind::Corrupt, what).about(path))
                    }
                    _ if !file.fill_buf().is_ok_and(<[u8]>::is_empty) => {
                        malformed(format!("there is more after its last line, {}", lines + 1))
                    }
                    _ => None,
                };
            }
            hash.update(&line);
            lines += 1;
            if lines > 1
                && let Ok(entry) = Entry::parse(&line, header.block_size)
            {
                tests.add(&entry);
                if entry.kind == Kind::File {
                    files.insert(entry.inode);
                }
            }
        };
        let unfit = tests.evidence.into_iter().filter(|(_, evidence)| evidence.verdict() == Some(false));
        Ok(Self { broken, files, unfit: unfit.map(|(key, _)| key).collect() })
    }

    /// Whether the names that a policy's key decrypts are garbage.
    pub(crate) fn is_unfit(&self, policy: &Policy) -> bool {
        self.unfit.contains(&policy.key)
    }

    /// Reports saved contents that the manifest does not name, since their file is unknown.
    pub(crate) fn report_unnamed(&self, data: &Path, events: &dyn Events) {
        // If it can't be read, that is reported for each file that needs it.
        let Ok(entries) = fs::read_dir(data) else { return };
        let named = |name: &std::ffi::OsStr| {
            name.to_str().and_then(|name| name.parse().ok()).is_some_and(|ino: u32| self.files.contains(&ino))
        };
        let mut unnamed = 0;
        for entry in entries.flatten().filter(|entry| !named(&entry.file_name())) {
            unnamed += 1;
            if unnamed <= NAMED_MAX {
                let what = format!("warning: {}: not named in the manifest", entry.path().display());
                events.note(&Note::Other(&what));
            }
        }
        if unnamed > NAMED_MAX {
            let what = format!("warning: {} more files are not named in the manifest", unnamed - NAMED_MAX);
            events.note(&Note::Other(&what));
        }
    }
}

impl KeyTests<'_> {
    /// Counts the evidence of a name for or against its directory's key.
    fn add(&mut self, entry: &Entry) {
        let context = entry.context.as_ref().and_then(|context| Context::parse(context).ok());
        if let (Kind::Directory, Some(context)) = (entry.kind, context) {
            self.contexts.insert(entry.inode, context);
        }
        let Some(context) = self.contexts.get(&entry.directory) else { return };
        // An identifier is derived from the key itself.
        let KeySpecifier::Descriptor(_) = context.policy.key else { return };
        let evidence = self.evidence.entry(context.policy.key).or_default();
        if evidence.is_enough() {
            return;
        }
        if self.last.as_ref().is_none_or(|(ino, _)| *ino != entry.directory) {
            let facts = InodeFacts { ino: entry.directory.into(), ..self.facts };
            let master = self.keys.find(&context.policy).ok();
            let key = master.and_then(|master| NameKey::derive(master, context, &facts).ok());
            self.last = Some((entry.directory, key));
        }
        if let Some((_, Some(key))) = &self.last {
            evidence.add(key, &entry.raw_name);
        }
    }
}
