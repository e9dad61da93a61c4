//! ext4 images whose files may be encrypted and verified: names and links as Linux shows them, contents as a plan.
//!
//! An [`Image`] is a file system and the master keys given. Metadata is read through a [`ReadAt`]; contents go through
//! the engine, one read, one buffer and one work item for decryption and verification together.

mod contents;
mod decrypt_step;
mod error;
mod file_map;
mod files_in;
mod locked;
mod names;
mod path;
mod protected;
mod unfit_keys;
mod verity;
mod walk;

pub use contents::Contents;
pub use decrypt_step::DecryptStep;
pub use error::{ImageError, TreeError};
pub use files_in::FileHit;
pub use names::{Entry, LinkTarget, Names, kind_name};
pub use path::{Follow, Found, canonical, compare_paths};
pub use verity::{TrustedVerity, Verity};
pub use walk::{ImageVisit, ImageWalk};

use std::sync::Arc;

use postread_fscrypt::{Context, InodeFacts, KeySpecifier, Keyring, MasterKey, MissingKey};
use postread_fsimage::ext4::{Ext4, Inode, Options};
use postread_io::{BlockStatus, ReadAt, ReadAtSource, Source};

use crate::nowhere::Nowhere;

/// An ext4 image and the keys given. Cloning is cheap.
#[derive(Clone)]
pub struct Image {
    fs: Ext4,
    keys: Arc<Keyring>,
    /// What is known of the keys of v1 policies.
    verdicts: Arc<unfit_keys::Verdicts>,
    /// Called for keys that can't be judged.
    on_unjudged: Option<Arc<dyn Fn(KeySpecifier) + Send + Sync>>,
    /// Where contents are read from, and the byte there at which the file system starts.
    data: Arc<dyn Source>,
    start: u64,
    /// If `data` ends before the file system does: where, and the source that fails reads past it.
    truncated: Option<(u64, Arc<dyn Source>)>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("fs", &self.fs).field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl Image {
    /// Opens the file system at byte 0 of `metadata`, which is byte `start` of `data`: the same bytes, once for the
    /// parsers and once for the engine.
    ///
    /// Where a journal had to be replayed, contents are read through the replayed device instead of `data`.
    pub fn open(
        metadata: Arc<dyn ReadAt>,
        data: Arc<dyn Source>,
        start: u64,
        keys: Keyring,
        options: Options,
    ) -> Result<Image, ImageError> {
        let fs = Ext4::load_with(metadata, options)?;
        let (data, start): (Arc<dyn Source>, u64) = match fs.replay() {
            Some(_) => (Arc::new(ReadAtSource::new(fs.device().clone())), 0),
            None => (data, start),
        };
        let truncated = fs.truncated().map(|(expected, found)| {
            let status = BlockStatus::Truncated { expected, found };
            (start.saturating_add(found), Arc::new(Nowhere(status)) as Arc<dyn Source>)
        });
        Ok(Image { fs, keys: Arc::new(keys), verdicts: Arc::default(), on_unjudged: None, data, start, truncated })
    }

    /// The same image with other keys.
    #[must_use]
    pub fn with_keys(&self, keys: Keyring) -> Image {
        Image { keys: Arc::new(keys), verdicts: Arc::default(), ..self.clone() }
    }

    /// The same image, which calls `tell` once for each v1 policy's key that is used to decrypt contents although
    /// nothing in the image shows whether it is the right one. A wrong key would produce garbage.
    #[must_use]
    pub fn on_unjudged_key(&self, tell: impl Fn(KeySpecifier) + Send + Sync + 'static) -> Image {
        Image { on_unjudged: Some(Arc::new(tell)), ..self.clone() }
    }

    /// The file system.
    pub fn fs(&self) -> &Ext4 {
        &self.fs
    }

    /// The keys given.
    pub fn keys(&self) -> &Keyring {
        &self.keys
    }

    /// The encryption context of an inode that is encrypted.
    pub fn context(&self, inode: &Inode) -> Result<Option<Context>, ImageError> {
        let ino = inode.ino;
        if !inode.is_encrypted() {
            return Ok(None);
        }
        let bytes = self.fs.fscrypt_context(inode)?.ok_or(ImageError::NoContext { ino })?;
        Context::parse(&bytes).map(Some).map_err(|error| ImageError::Context { ino, error })
    }

    /// The master key that a context names, unless names and link targets decrypt to garbage with it; among several
    /// under a v1 policy's descriptor, the one that fits.
    ///
    /// For a v1 policy this looks through the image for names and links under the key, the first time.
    pub fn master_key(&self, context: &Context) -> Result<&MasterKey, MissingKey> {
        self.master_key_at(context, None).map(|(master, _)| master)
    }

    /// The same, judged first by the given directory or link; also returns whether it is known to be the right one.
    fn master_key_at(&self, context: &Context, at: Option<&Inode>) -> Result<(&MasterKey, Option<bool>), MissingKey> {
        let policy = &context.policy;
        match self.choose(policy, at.map(|inode| (inode, context))) {
            Some((_, Some(false))) => Err(self.keys.missing(policy, true)),
            Some(found) => Ok(found),
            None => Err(self.keys.missing(policy, false)),
        }
    }

    /// Whether the given key for a policy is the right one, as far as that is known: an identifier is derived from the
    /// key, and for a v1 policy names and link targets show it. Also `None` if there is no key.
    ///
    /// For a v1 policy this looks through the image, the first time.
    pub fn key_verdict(&self, policy: &postread_fscrypt::Policy) -> Option<bool> {
        self.choose(policy, None)?.1
    }

    /// Why a context's key can't be used for this inode, or `None`; whether the key was given does not matter.
    pub fn key_trouble(&self, inode: &Inode, context: &Context) -> Option<postread_fscrypt::KeyError> {
        let (master, _) = self.choose(&context.policy, None)?;
        let facts = self.facts(inode);
        match inode.file_type {
            postread_fsimage::ext4::FileType::Regular => {
                postread_fscrypt::ContentsKey::derive(master, context, &facts).err()
            }
            _ => postread_fscrypt::NameKey::derive(master, context, &facts).err(),
        }
    }

    pub(crate) fn facts(&self, inode: &Inode) -> InodeFacts {
        let superblock = self.fs.superblock();
        InodeFacts { ino: inode.ino.into(), fs_uuid: superblock.uuid, block_size: superblock.block_size as usize }
    }
}
