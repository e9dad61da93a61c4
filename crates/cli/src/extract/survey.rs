//! A saved manifest gone through before anything is restored: whether it is whole, which contents it names, and which
//! keys of v1 policies are not the right ones.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use postread_fscrypt::saved_manifest::{Entry, Header, Kind, LINE_MAX, Trailer};
use postread_fscrypt::{Context, InodeFacts, KeySpecifier, Keyring, NameEvidence, NameKey, Policy};
use sha2::{Digest, Sha256};

use crate::exit::Outcome;
use crate::text::{complain, name_for_stderr};
use postread::{FileError, open_regular};

/// The most files that are named of those that the manifest does not name.
const TOLD_MAX: usize = 10;

/// Why a manifest is not what was saved.
#[derive(Clone, Debug)]
pub(super) struct Broken {
    pub(super) outcome: Outcome,
    pub(super) what: String,
}

/// What was found.
pub(super) struct Survey {
    pub(super) broken: Option<Broken>,
    /// Files that have contents.
    files: HashSet<u32>,
    /// The names of keys that others were given under.
    unfit: HashSet<KeySpecifier>,
}

/// What the names that each key decrypts look like.
struct Judges<'a> {
    keys: &'a Keyring,
    facts: InodeFacts,
    contexts: HashMap<u32, Context>,
    /// The directory met last, and its key where there is one.
    last: Option<(u32, Option<NameKey>)>,
    evidence: HashMap<KeySpecifier, NameEvidence>,
}

impl Survey {
    /// Reads all of the manifest, whose first line was parsed.
    pub(super) fn make(path: &Path, header: &Header, root: Option<Context>, keys: &Keyring) -> io::Result<Self> {
        let mut file = BufReader::new(open_regular(path).map_err(io_error)?.0);
        let facts = InodeFacts { ino: 0, fs_uuid: header.fs_uuid, block_size: header.block_size as usize };
        let contexts = root.into_iter().map(|context| (header.root, context)).collect();
        let mut judges = Judges { keys, facts, contexts, last: None, evidence: HashMap::new() };
        let mut files = HashSet::new();
        let (mut hash, mut lines) = (Sha256::new(), 0u64);
        let mut line = Vec::new();
        let malformed = |what: String| Some(Broken { outcome: Outcome::Usage, what });
        let broken = loop {
            line.clear();
            let read = (&mut file).take(LINE_MAX as u64 + 1).read_until(b'\n', &mut line)?;
            if read == 0 {
                break malformed(format!(
                    "it was cut off behind line {lines}: the last line, with the count, is missing"
                ));
            }
            if read > LINE_MAX {
                break malformed(format!("line {} is too long", lines + 1));
            }
            if let Ok(trailer) = Trailer::parse(&line) {
                let found: [u8; 32] = hash.finalize().into();
                break match trailer {
                    Trailer { lines: wanted, .. } if wanted != lines => {
                        malformed(format!("{lines} lines, and {wanted} were written"))
                    }
                    Trailer { sha256, .. } if sha256 != found => Some(Broken {
                        outcome: Outcome::Integrity,
                        what: format!("its SHA-256 is {}, and not {}", hex::encode(found), hex::encode(sha256)),
                    }),
                    _ if !file.fill_buf()?.is_empty() => {
                        malformed(format!("something stands behind its last line, {}", lines + 1))
                    }
                    _ => None,
                };
            }
            hash.update(&line);
            lines += 1;
            if lines > 1
                && let Ok(entry) = Entry::parse(&line, header.block_size)
            {
                judges.hear(&entry);
                if entry.kind == Kind::File {
                    files.insert(entry.inode);
                }
            }
        };
        let unfit = judges.evidence.into_iter().filter(|(_, evidence)| evidence.verdict() == Some(false));
        Ok(Self { broken, files, unfit: unfit.map(|(key, _)| key).collect() })
    }

    /// Whether the names that a policy's key decrypts are garbage.
    pub(super) fn is_unfit(&self, policy: &Policy) -> bool {
        self.unfit.contains(&policy.key)
    }

    /// Tells which saved contents the manifest does not name: what they are of is not known.
    pub(super) fn tell_unnamed(&self, data: &Path) {
        // Where it can't be read, that is told of each file that is wanted.
        let Ok(entries) = fs::read_dir(data) else { return };
        let named = |name: &std::ffi::OsStr| {
            name.to_str().and_then(|name| name.parse().ok()).is_some_and(|ino: u32| self.files.contains(&ino))
        };
        let mut unnamed = 0;
        for entry in entries.flatten().filter(|entry| !named(&entry.file_name())) {
            unnamed += 1;
            if unnamed <= TOLD_MAX {
                complain(format_args!("warning: {}: the manifest does not name it", name_for_stderr(&entry.path())));
            }
        }
        if unnamed > TOLD_MAX {
            complain(format_args!("warning: {} more files that the manifest does not name", unnamed - TOLD_MAX));
        }
    }
}

fn io_error(error: FileError) -> io::Error {
    io::Error::other(error.to_string())
}

impl Judges<'_> {
    fn hear(&mut self, entry: &Entry) {
        let context = entry.context.as_ref().and_then(|context| Context::parse(context).ok());
        if let (Kind::Directory, Some(context)) = (entry.kind, context) {
            self.contexts.insert(entry.inode, context);
        }
        let Some(context) = self.contexts.get(&entry.directory) else { return };
        // An identifier is made of the key.
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
