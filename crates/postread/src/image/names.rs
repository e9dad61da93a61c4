//! Names as Linux shows them: plain, decrypted, or without the key.

use postread_fscrypt::{Context, MissingKey, NameKey, NoKeyName, no_key_name, symlink_ciphertext};
use postread_fsimage::ext4::{self, DirEntry, FileType, Inode, NameHash, casefold};

use super::{Image, ImageError};

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name as Linux shows it.
    pub name: Vec<u8>,
    /// Whether `name` is a no-key name: what Linux shows where the key is missing.
    pub no_key: bool,
    /// The name as it is on disk.
    pub raw_name: Vec<u8>,
    /// The inode's number.
    pub ino: u32,
    /// The file type recorded in the entry, if any.
    pub file_type: Option<FileType>,
}

/// The word for a kind of file in reports and messages.
pub fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "link",
        FileType::CharDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        _ => "unknown",
    }
}

/// A symbolic link's target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkTarget {
    /// The target as Linux shows it.
    pub target: Vec<u8>,
    /// Whether it is the no-key form of an encrypted target.
    pub no_key: bool,
}

/// How the names of one directory are shown.
#[derive(Debug)]
pub enum Names {
    /// They are not encrypted.
    Plain,
    /// They are decrypted.
    Decrypted(Box<NameKey>),
    /// The key is missing.
    NoKey {
        /// The input of the hash in no-key names.
        hash: NameHash,
        /// The key needed and the keys given.
        missing: MissingKey,
    },
    /// The encryption context is of an unknown version or malformed, so its key is unknown.
    UnknownPolicy {
        /// The input of the hash in no-key names.
        hash: NameHash,
    },
}

impl Image {
    /// How the names of a directory are shown, with the keys given. A key of a v1 policy that decrypts them to garbage
    /// counts as missing.
    pub fn names(&self, dir: &Inode) -> Result<Names, ImageError> {
        let context = match self.context(dir) {
            Ok(Some(context)) => context,
            Ok(None) => return Ok(Names::Plain),
            // Linux lists such a directory as if the key were missing.
            Err(ImageError::Context { .. }) => return Ok(Names::UnknownPolicy { hash: self.fs().name_hash(dir)? }),
            Err(error) => return Err(error),
        };
        match self.master_key_at(&context, Some(dir)) {
            Ok((master, _)) => Ok(Names::Decrypted(Box::new(self.name_key(dir, &context, master)?))),
            Err(missing) => Ok(Names::NoKey { hash: self.fs().name_hash(dir)?, missing }),
        }
    }

    /// The entries of a directory, without `.` and `..`, in their order on disk. An error concerns one entry or one
    /// block; the next call continues after it.
    pub fn read_dir(&self, dir: &Inode) -> Result<impl Iterator<Item = Result<Entry, ImageError>> + use<>, ImageError> {
        let names = self.names(dir)?;
        let ino = dir.ino;
        Ok(self.fs().read_dir(dir)?.map(move |entry| names.show(ino, entry?)))
    }

    /// The entry of that name, plain or no-key.
    ///
    /// In a directory that folds case, any name that Linux considers equal matches, if names are shown plain; if a
    /// hostile image has several of them, the exact spelling wins. Invalid UTF-8 is compared byte by byte, or never
    /// matches if the file system's encoding is strict. A bad block of the directory is an error unless another block
    /// contains the name.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Entry>, ImageError> {
        let names = self.names(dir)?;
        let encoding = self.fs().superblock().encoding.filter(|_| dir.is_casefolded());
        let wanted = match (&names, encoding) {
            (Names::Plain | Names::Decrypted(_), Some(encoding)) => match casefold(name) {
                Some(form) => return self.lookup_folded(dir, &names, name, &form),
                None if encoding.is_strict() => return Ok(None),
                None => names.search(name),
            },
            _ => names.search(name),
        };
        let mut bad = None;
        for entry in self.sound_entries(dir, &mut bad)? {
            let found = match &wanted {
                Search::Raw(raw) => *entry.name == **raw,
                Search::NoKey(parsed) => parsed.matches(&entry.name),
                Search::Nothing => false,
            };
            if found {
                return names.show(dir.ino, entry).map(Some);
            }
        }
        bad.map_or(Ok(None), |error| Err(error.into()))
    }

    /// The entries of a directory's good blocks. The first bad block is stored in `bad`: it does not matter if another
    /// block contains the name.
    fn sound_entries<'b>(
        &self,
        dir: &Inode,
        bad: &'b mut Option<ext4::Error>,
    ) -> Result<impl Iterator<Item = DirEntry> + use<'b>, ImageError> {
        Ok(self.fs().read_dir(dir)?.filter_map(move |entry| entry.map_err(|error| bad.get_or_insert(error)).ok()))
    }

    fn lookup_folded(&self, dir: &Inode, names: &Names, name: &[u8], form: &[u8]) -> Result<Option<Entry>, ImageError> {
        let (mut found, mut bad) = (None, None);
        for entry in self.sound_entries(dir, &mut bad)? {
            // A broken name never matches.
            let Ok(entry) = names.show(dir.ino, entry) else { continue };
            if entry.name == name {
                return Ok(Some(entry));
            }
            if found.is_none() && casefold(&entry.name).is_some_and(|other| other == form) {
                found = Some(entry);
            }
        }
        match bad {
            Some(error) if found.is_none() => Err(error.into()),
            _ => Ok(found),
        }
    }

    /// A symbolic link's target.
    pub fn link_target(&self, link: &Inode) -> Result<LinkTarget, ImageError> {
        let stored = self.fs().symlink_target(link)?;
        let Some(context) = self.context(link)? else { return Ok(LinkTarget { target: stored, no_key: false }) };
        let data = |error| ImageError::Data { ino: link.ino, error };
        match self.master_key_at(&context, Some(link)) {
            Ok((master, _)) => {
                let key = self.name_key(link, &context, master)?;
                Ok(LinkTarget { target: key.decrypt_symlink(&stored).map_err(data)?, no_key: false })
            }
            Err(_) => {
                let ciphertext = symlink_ciphertext(&stored).map_err(data)?;
                Ok(LinkTarget { target: no_key_name(0, 0, ciphertext).into_bytes(), no_key: true })
            }
        }
    }

    fn name_key(
        &self,
        inode: &Inode,
        context: &Context,
        master: &postread_fscrypt::MasterKey,
    ) -> Result<NameKey, ImageError> {
        NameKey::derive(master, context, &self.facts(inode)).map_err(|error| ImageError::Key { ino: inode.ino, error })
    }
}

/// What to look for in a directory.
enum Search {
    Raw(Vec<u8>),
    NoKey(NoKeyName),
    Nothing,
}

impl Names {
    /// The key that is missing, where one is.
    pub fn missing(&self) -> Option<&MissingKey> {
        match self {
            Names::NoKey { missing, .. } => Some(missing),
            _ => None,
        }
    }

    /// An entry as Linux shows it.
    pub fn show(&self, dir: u32, entry: DirEntry) -> Result<Entry, ImageError> {
        let DirEntry { name, ino, file_type, hash, .. } = entry;
        let raw_name = Vec::from(name);
        let name = match self {
            Names::Plain => raw_name.clone(),
            Names::Decrypted(key) => {
                key.decrypt_name(&raw_name).map_err(|error| ImageError::Data { ino: dir, error })?
            }
            Names::NoKey { hash: how, .. } | Names::UnknownPolicy { hash: how } => {
                if raw_name.len() < postread_fscrypt::CIPHERTEXT_MIN {
                    let error = postread_fscrypt::DataError::NameTooShort(raw_name.len());
                    return Err(ImageError::Data { ino: dir, error });
                }
                let (hash, minor_hash) = how.of(&raw_name, hash);
                no_key_name(hash, minor_hash, &raw_name).into_bytes()
            }
        };
        Ok(Entry { name, no_key: !matches!(self, Names::Plain | Names::Decrypted(_)), raw_name, ino, file_type })
    }

    fn search(&self, name: &[u8]) -> Search {
        match self {
            Names::Plain => Search::Raw(name.to_vec()),
            Names::Decrypted(key) => key.encrypt_name(name).map_or(Search::Nothing, Search::Raw),
            Names::NoKey { .. } | Names::UnknownPolicy { .. } => {
                std::str::from_utf8(name).ok().and_then(NoKeyName::parse).map_or(Search::Nothing, Search::NoKey)
            }
        }
    }
}
