//! Targets: images, devices and the files in them, by path.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let images = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images");
//! # let key = std::fs::read(images.join("key64.bin"))?;
//! # let file = postread_tests::unpack_image(&images.join("fscrypt/verity-enc.img.zst"));
//! # let image = file.path();
//! use postread::Target;
//!
//! let target = Target::builder().key(&key).open(image)?;
//! for entry in target.walk("/")? {
//!     println!("{}", entry?.path().display());
//! }
//! # let path = target.walk("/")?.filter_map(Result::ok).find(|e| e.metadata().is_verity()).unwrap();
//! # let path = path.path();
//! let bytes = target.read(path)?;
//! # assert_eq!(bytes.len() as u64, target.metadata(path)?.len());
//! # Ok(())
//! # }
//! ```

mod builder;
mod entry;
mod file;
mod fscrypt_metadata;
mod keys;
mod layers;
mod unlock;
mod verify;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub use builder::{Builder, Warning};
pub use entry::{Entry, Metadata, ReadDir, Walk};
pub use file::File;
pub use fscrypt_metadata::{FscryptMetadata, HomedDirectory, LinkedProtector};
pub use keys::Keys;
pub use layers::{Device, DmVerity, Layer, Layers, Volume};
pub use verify::{FileVerdict, Finding, Verifier, VerifyTotals};

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::image::{Follow, Found, Image, ImageError, canonical};
use crate::trusted::TrustedDigests;

/// An image, a disk or a block device with a file system in it, ready to be read by path.
///
/// Paths begin at the root of the file system. Symbolic links are followed within it, and never lead out. A file with
/// fs-verity is checked as it is read: against the digest that [`Builder::trusted`] gave for it, or else against the
/// image's own descriptor, which makes it only self-consistent ([`Builder::require_digests`] refuses the latter). No
/// byte that fails the check is returned. Encrypted data is decrypted with the keys given to the builder.
///
/// Cloning is cheap; clones share caches, and may be used by several threads.
#[derive(Clone)]
pub struct Target(Arc<Inner>);

struct Inner {
    name: OsString,
    layers: Layers,
    image: Image,
    engine: Engine,
    /// Read when it is first needed.
    metadata: OnceLock<FscryptMetadata>,
    metadata_from: Vec<PathBuf>,
    trusted: TrustedDigests,
    /// The same, with the links of the image followed: made when the first file is opened.
    resolved: OnceLock<TrustedDigests>,
    require_digests: bool,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("name", &self.0.name).field("layers", &self.0.layers).finish_non_exhaustive()
    }
}

impl Target {
    /// Opens an image or a block device without keys and without trusted digests.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Builder::default().open(path)
    }

    /// Opens one with options: keys, a partition, trusted digests.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Reads a whole file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let file = self.open_file(path)?;
        let mut bytes = Vec::new();
        let len = usize::try_from(file.len()).ok().filter(|&len| bytes.try_reserve_exact(len).is_ok());
        if len.is_none() {
            let what = format!("it has {} bytes, more than memory has room for", file.len());
            return Err(Error::new(ErrorKind::Io, what).about(path));
        }
        while (bytes.len() as u64) < file.len() {
            let rest = usize::try_from(file.len() - bytes.len() as u64).unwrap_or(usize::MAX);
            match file.lend(bytes.len() as u64, rest)? {
                Some(lent) => bytes.extend_from_slice(&lent),
                None => break,
            }
        }
        Ok(bytes)
    }

    /// Opens a file.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        let found = self.find(path, Follow::All)?;
        let trusted = self.trusted();
        let digest = trusted.get(&found.path);
        if digest.is_none() && self.0.require_digests && found.inode.is_verity() {
            return Err(self.at(path, ImageError::NotListed));
        }
        let plan = self.0.image.read_plan(&found.inode, digest).map_err(|error| self.at(path, error))?;
        Ok(File::new(path.as_os_str(), self.0.engine.open(plan), Metadata::new(found.inode)))
    }

    /// Walks everything below a directory, depth first, each directory before its contents. The walk of a file is just
    /// the file.
    pub fn walk(&self, path: impl AsRef<Path>) -> Result<Walk> {
        Ok(Walk::new(self.clone(), self.find(path.as_ref(), Follow::All)?))
    }

    /// The entries of a directory, not recursively.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        let found = self.find(path, Follow::All)?;
        let fail = |error: ImageError| self.at(path, error);
        if !found.inode.is_dir() {
            return Err(fail(ImageError::NotADirectory { path: found.path }));
        }
        let entries = self.0.image.read_dir(&found.inode).map_err(fail)?;
        let (image, dir) = (self.0.image.clone(), found.path);
        Ok(ReadDir::new(entries.map(move |entry| {
            let at = |path: &[u8], error: ImageError| Error::from(error).about(shown(path));
            let entry = entry.map_err(|error| at(&dir, error))?;
            let path = [&dir, &b"/"[..], &entry.name].concat();
            let inode = image.fs().inode(entry.ino).map_err(|error| at(&path, error.into()))?;
            Ok(Entry::new(path, entry.no_key, inode))
        })))
    }

    /// The metadata of a file, a directory or another inode. A link is followed.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.find(path.as_ref(), Follow::All).map(|found| Metadata::new(found.inode))
    }

    /// The same, without following a link that is the last name.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.find(path.as_ref(), Follow::Parents).map(|found| Metadata::new(found.inode))
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let found = self.find(path, Follow::Parents)?;
        let fail = |error: ImageError| self.at(path, error);
        let target = self.0.image.link_target(&found.inode).map_err(fail)?;
        if target.no_key {
            let error = self.0.image.locked(&found.inode).map_err(fail)?;
            let missing = Error::new(ErrorKind::Key, "its target is encrypted, and the key is missing").about(path);
            return Err(error.map_or(missing, fail));
        }
        Ok(OsString::from_vec(target.target).into())
    }

    /// The extended attributes that Linux shows, with their whole names. A link is followed.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<(OsString, Vec<u8>)>> {
        let path = path.as_ref();
        let found = self.find(path, Follow::All)?;
        let mut shown = Vec::new();
        for xattr in self.0.image.fs().xattrs(&found.inode) {
            let xattr = xattr.map_err(|error| self.at(path, error.into()))?;
            shown.extend(xattr.full_name().map(|name| (OsString::from_vec(name), xattr.value)));
        }
        Ok(shown)
    }

    /// The real path of the inode at `path`: links followed, names as the directories spell them.
    pub fn canonicalize(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let found = self.find(path.as_ref(), Follow::All)?;
        Ok(shown(&found.path).to_owned().into())
    }

    /// The layers between the target and its file system, outermost first.
    pub fn layers(&self) -> &[Layer] {
        self.0.layers.list()
    }

    /// The same, with the device that holds the file system.
    pub fn opened_layers(&self) -> &Layers {
        &self.0.layers
    }

    /// The file system and its keys, for anything that has no path.
    pub fn image(&self) -> &Image {
        &self.0.image
    }

    /// The engine that files are read with.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The metadata that wraps the image's master keys. Unreadable parts are listed in [`FscryptMetadata::broken`].
    pub fn fscrypt_metadata(&self) -> &FscryptMetadata {
        self.0.metadata.get_or_init(|| {
            let mut metadata = FscryptMetadata::read(&self.0.image);
            if let Err(error) = builder::add_metadata(&mut metadata, &self.0.metadata_from) {
                metadata.broken.push(error.to_string());
            }
            metadata
        })
    }

    /// The trusted digests, with the image's symbolic links followed.
    pub fn trusted(&self) -> &TrustedDigests {
        self.0.resolved.get_or_init(|| {
            let mut trusted = self.0.trusted.clone();
            trusted.follow_links(&self.0.image);
            trusted
        })
    }

    fn find(&self, path: &Path, follow: Follow) -> Result<Found> {
        self.0.image.find(path.as_os_str().as_bytes(), follow).map_err(|error| self.at(path, error))
    }

    /// An error about a path.
    fn at(&self, path: &Path, error: ImageError) -> Error {
        let path = path.as_os_str().as_bytes();
        Error::from(error.without_path(path)).about(shown(&canonical(path)))
    }
}

/// A path in an image as shown to the caller: the root is a slash.
fn shown(path: &[u8]) -> &OsStr {
    OsStr::from_bytes(if path.is_empty() { b"/" } else { path })
}
