//! A plain file that is read verified: with the Merkle tree next to it, or with one that is computed first.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use postread_io::{MemorySource, PreadConfig, PreadOptions, PreadPool, ReadAtSource, Source};
#[cfg(feature = "signature")]
use postread_verity::signature::{Certificate, SignatureError};
use postread_verity::{
    Descriptor, Digest, FileDigest, HashAlg, MerkleTreeParams, TreeBuilder, TreeGeometry, TreeInMemory,
    TrustedDescriptor,
};

use crate::digest_files::open_regular;
use crate::engine::{Engine, EngineConfig};
use crate::error::{Error, ErrorKind, ReadError, Result};
use crate::file::{OpenFile, ReadFuture};
use crate::plan::{Linear, Plan};
use crate::reader::FileReader;
use crate::sidecar;
use crate::verity_step::VerityLayer;

/// A computed tree is kept in memory; a larger one must be supplied.
const MAX_COMPUTED_TREE: u64 = 1 << 30;

/// A regular file that returns only bytes verified against a trusted digest.
///
/// The Merkle tree is `PATH.verity-tree` if that exists, as `postread digest --out-merkle-tree` and `fsverity digest`
/// write it. Otherwise the tree is computed first, which reads the file once. `PATH.verity-desc` may hold the
/// descriptor; without it the parameters are the default ones. Neither of the two has to be trusted.
///
/// ```
/// use std::io::Read;
/// use postread::VerifiedFile;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("file");
/// # std::fs::write(&path, "hello world")?;
/// # let digest = "sha256:1e2eaa4202d750a41174ee454970b92c1bc2f925b1e35076d8c7d5f56362ba64".parse()?;
/// let mut file = VerifiedFile::open(&path, &digest)?;
/// let mut text = String::new();
/// file.read_to_string(&mut text)?;
/// assert_eq!(text, "hello world");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// There is no way to open one without saying what to trust:
///
/// ```compile_fail,E0061
/// let file = postread::VerifiedFile::open("file")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct VerifiedFile {
    file: OpenFile,
    reader: FileReader,
    path: PathBuf,
    /// The opened file, to check for changes.
    opened: File,
    at_open: Metadata,
    warnings: Vec<Error>,
}

/// How a file changed since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Changed {
    /// It has another size. What was verified is as many bytes as it had when it was opened.
    Size {
        /// Its size when it was opened, in bytes.
        opened: u64,
        /// Its size now, in bytes.
        now: u64,
    },
    /// It was written to.
    Written,
    /// Its name leads to another file, or to none. What was verified is the file that was opened.
    Replaced,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { opened, now } => {
                write!(f, "the file changed from {opened} to {now} bytes while it was read")
            }
            Self::Written => f.write_str("the file was written to while it was read"),
            Self::Replaced => f.write_str("the name leads to another file than the one that was opened and read"),
        }
    }
}

/// How a [`VerifiedFile`] is opened.
#[derive(Clone, Debug)]
#[must_use = "it opens nothing until open() is called"]
pub struct VerifiedFileOptions {
    digest: Option<FileDigest>,
    #[cfg(feature = "signature")]
    certificates: Vec<Certificate>,
    #[cfg(feature = "signature")]
    signature: Option<Vec<u8>>,
    tree: Option<PathBuf>,
    descriptor: Option<Descriptor>,
    params: Option<MerkleTreeParams>,
    engine: Option<Engine>,
}

enum TreeFrom {
    File(PathBuf, File),
    Memory(Vec<u8>),
}

fn malformed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::caused_by(ErrorKind::Malformed, error)
}

fn io_error(error: io::Error) -> Error {
    Error::caused_by(ErrorKind::Io, error)
}

impl VerifiedFile {
    /// Opens a file that must have the fs-verity digest `digest`.
    ///
    /// # Errors
    /// If it cannot be read or has another digest. A file whose bytes differ from its own tree opens: reading the bytes
    /// that differ fails.
    pub fn open(path: impl AsRef<Path>, digest: &FileDigest) -> Result<Self> {
        Self::options().digest(*digest).open(path)
    }

    /// Options: another tree, parameters, a signature, an engine of your own.
    pub fn options() -> VerifiedFileOptions {
        VerifiedFileOptions {
            digest: None,
            #[cfg(feature = "signature")]
            certificates: Vec::new(),
            #[cfg(feature = "signature")]
            signature: None,
            tree: None,
            descriptor: None,
            params: None,
            engine: None,
        }
    }

    /// Data and tree as they are, to be scanned.
    pub(crate) fn of_files(file: File, tree: File, descriptor: TrustedDescriptor) -> Result<OpenFile> {
        let engine = Engine::new(EngineConfig::new())?;
        protect(&engine, Arc::new(ReadAtSource::new(file)), Arc::new(ReadAtSource::new(tree)), descriptor)
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// True for a file of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The descriptor that it is verified against, and why it is trusted.
    pub fn trusted(&self) -> &TrustedDescriptor {
        self.file.trusted().expect("its plan was made with a trusted descriptor")
    }

    /// The engine's open file: for scans, and for readers with their own read-ahead.
    pub fn file(&self) -> &OpenFile {
        &self.file
    }

    /// Reads verified bytes at `offset`: fewer than `buf` has room for at the end of the file or before a bad block.
    ///
    /// # Errors
    /// If the block at `offset` is bad.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, ReadError> {
        self.reader.read_at(buf, offset)
    }

    /// The same as a future, tied to no runtime.
    pub fn read_future(&self, offset: u64, len: u64) -> ReadFuture {
        self.file.read(offset, len)
    }

    /// Problems with the files that were found which do not prevent their use, such as a size that does not match.
    /// Their kinds show the severity.
    pub fn warnings(&self) -> &[Error] {
        &self.warnings
    }

    /// How the file changed since it was opened; `None` if it did not.
    ///
    /// # Errors
    /// If the file that is open cannot be looked at.
    pub fn changed(&self) -> io::Result<Option<Changed>> {
        let (before, now) = (&self.at_open, self.opened.metadata()?);
        if now.len() != before.len() {
            return Ok(Some(Changed::Size { opened: before.len(), now: now.len() }));
        }
        let same = |m: Metadata| (m.dev(), m.ino()) == (now.dev(), now.ino());
        if !std::fs::metadata(&self.path).is_ok_and(same) {
            return Ok(Some(Changed::Replaced));
        }
        let times = |m: &Metadata| (m.mtime(), m.mtime_nsec());
        Ok((times(&now) != times(before)).then_some(Changed::Written))
    }
}

impl fmt::Debug for VerifiedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifiedFile").field("path", &self.path).field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Read for VerifiedFile {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buf)
    }
}

impl Seek for VerifiedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.reader.seek(to)
    }
}

#[cfg(feature = "tokio")]
impl VerifiedFile {
    pub(crate) fn reader_mut(&mut self) -> &mut FileReader {
        &mut self.reader
    }

    pub(crate) fn position(&self) -> u64 {
        self.reader.position()
    }
}

impl VerifiedFileOptions {
    /// The fs-verity digest that the file must have.
    pub fn digest(mut self, digest: FileDigest) -> Self {
        self.digest = Some(digest);
        self
    }

    /// A certificate whose signatures are trusted (repeatable). With one given, the file must be signed.
    #[cfg(feature = "signature")]
    pub fn certificate(mut self, certificate: Certificate) -> Self {
        self.certificates.push(certificate);
        self
    }

    /// A signature of the file digest, in place of the one in the descriptor.
    #[cfg(feature = "signature")]
    pub fn signature(mut self, signature: Vec<u8>) -> Self {
        self.signature = Some(signature);
        self
    }

    /// The Merkle tree, in place of `PATH.verity-tree`.
    pub fn merkle_tree(mut self, path: impl Into<PathBuf>) -> Self {
        self.tree = Some(path.into());
        self
    }

    /// The descriptor, in place of `PATH.verity-desc`.
    pub fn descriptor(mut self, descriptor: Descriptor) -> Self {
        self.descriptor = Some(descriptor);
        self
    }

    /// The parameters of a file without a descriptor; `PATH.verity-desc` is then not looked at. Without them they are
    /// the default ones, with the digest's hash algorithm.
    pub fn params(mut self, params: MerkleTreeParams) -> Self {
        self.params = Some(params);
        self
    }

    /// The engine that reads it. Without one, it gets an engine of its own.
    pub fn engine(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    fn trusts_certificates(&self) -> bool {
        #[cfg(feature = "signature")]
        return !self.certificates.is_empty();
        #[cfg(not(feature = "signature"))]
        false
    }

    /// Opens the file.
    ///
    /// # Errors
    /// If nothing was given that could be trusted, the file cannot be read, or it is not the one that is trusted.
    pub fn open(self, path: impl AsRef<Path>) -> Result<VerifiedFile> {
        let path = path.as_ref();
        self.open_inner(path).map_err(|error| error.about(path))
    }

    fn open_inner(self, path: &Path) -> Result<VerifiedFile> {
        if self.digest.is_none() && !self.trusts_certificates() {
            let what = "there is nothing to trust: give a digest, or a certificate";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let (file, metadata) = open_regular(path)?;
        let size = metadata.len();
        let mut warnings = Vec::new();
        let found = match (&self.descriptor, &self.params) {
            (None, None) => sidecar::descriptor_path(path),
            _ => None,
        };
        let given = match (&self.descriptor, &found) {
            (Some(descriptor), _) => Some(descriptor.clone()),
            (None, Some(found)) => Some(sidecar::read_descriptor(found)?),
            (None, None) => None,
        };
        let params = match (&given, self.params) {
            (Some(descriptor), _) => *descriptor.params(),
            (None, Some(params)) => params,
            (None, None) => {
                let alg = self.digest.map_or(HashAlg::Sha256, |digest| digest.alg());
                MerkleTreeParams::new(alg, 4096, &[]).map_err(malformed)?
            }
        };
        let data_size = given.as_ref().map_or(size, Descriptor::data_size);
        if data_size != size {
            let what = format!("the file has {size} bytes, its descriptor expects {data_size}");
            warnings.push(Error::new(ErrorKind::Corrupt, what));
        }
        let geometry = TreeGeometry::new(&params, data_size).map_err(malformed)?;
        let tree_found = if self.tree.is_none() { sidecar::tree_path(path) } else { None };
        let tree = match self.tree.as_ref().or(tree_found.as_ref()) {
            Some(path) => {
                let (tree, metadata) = open_regular(path).map_err(|error| Error::from(error).about(path))?;
                if let Some(other) = sidecar::tree_of_another_size(&params, &geometry, metadata.len()) {
                    warnings.push(Error::new(ErrorKind::Malformed, other).about(path));
                }
                TreeFrom::File(path.clone(), tree)
            }
            None => TreeFrom::Memory(compute_tree(&file, &geometry, params)?),
        };
        let descriptor = match given {
            Some(descriptor) => descriptor,
            None => Descriptor::new(params, data_size, root_hash(&file, &tree, &geometry, params)?),
        };
        let trusted = self.trust(descriptor, tree_found.iter().chain(&found), &warnings)?;

        let engine = match self.engine {
            Some(engine) => engine,
            None => Engine::new(EngineConfig::new())?,
        };
        let pool = PreadPool::new(PreadConfig::new()).map_err(io_error)?;
        let opened = file.try_clone().map_err(io_error)?;
        let tree: Arc<dyn Source> = match tree {
            TreeFrom::File(_, file) => Arc::new(pool.file(file, PreadOptions::default())),
            TreeFrom::Memory(bytes) => Arc::new(MemorySource::new(bytes)),
        };
        let file = protect(&engine, Arc::new(pool.file(file, PreadOptions::default())), tree, trusted)?;
        let reader = file.reader();
        let path = path.to_owned();
        Ok(VerifiedFile { file, reader, path, opened, at_open: metadata, warnings })
    }

    /// The descriptor, if it is what the caller trusts.
    fn trust<'p>(
        &self,
        descriptor: Descriptor,
        found_beside: impl Iterator<Item = &'p PathBuf>,
        warnings: &[Error],
    ) -> Result<TrustedDescriptor> {
        let by_digest = match &self.digest {
            None => None,
            Some(expected) => Some(descriptor.clone().trust(expected).map_err(|error| {
                let beside: Vec<_> = found_beside.map(|path| path.display().to_string()).collect();
                let beside = match beside.is_empty() {
                    true => String::new(),
                    false => {
                        format!(
                            " (found next to the file and used: {}; it may belong to an older file)",
                            beside.join(", ")
                        )
                    }
                };
                let mut what = format!(
                    "{error}: the digest, the top of the tree, the size or the parameters are not this file's{beside}"
                );
                for warning in warnings {
                    what.push_str(&format!("; {}", warning.message()));
                }
                Error::new(ErrorKind::Corrupt, what)
            })?),
        };
        #[cfg(feature = "signature")]
        if !self.certificates.is_empty() {
            let signed = match &self.signature {
                Some(signature) => descriptor.trust_detached_signature(signature, &self.certificates),
                None => descriptor.trust_signature(&self.certificates),
            };
            return signed.map_err(|error| {
                let kind = match error {
                    SignatureError::Rejected { .. } => ErrorKind::Corrupt,
                    SignatureError::NoCertificate { .. } => ErrorKind::Key,
                    SignatureError::Missing => ErrorKind::InvalidInput,
                    _ => ErrorKind::Malformed,
                };
                Error::caused_by(kind, error)
            });
        }
        by_digest.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "there is nothing to trust"))
    }
}

/// The file of `data` under its tree.
fn protect(
    engine: &Engine,
    data: Arc<dyn Source>,
    tree: Arc<dyn Source>,
    descriptor: TrustedDescriptor,
) -> Result<OpenFile> {
    let layer = VerityLayer::new(descriptor).map_err(malformed)?;
    let geometry = *layer.verifier().geometry();
    let blocks = layer.hash_blocks(Arc::new(Linear::new(tree, 0, geometry.tree_size())), Vec::new());
    let plan = Plan::new(Arc::new(Linear::new(data, 0, geometry.data_size())), geometry.data_size());
    Ok(engine.open(layer.protect(plan, blocks).map_err(malformed)?))
}

/// Computes the tree of a file that has none next to it.
fn compute_tree(file: &File, geometry: &TreeGeometry, params: MerkleTreeParams) -> Result<Vec<u8>> {
    let bytes = geometry.tree_size();
    if bytes > MAX_COMPUTED_TREE {
        let what = format!("its Merkle tree has {bytes} bytes, more than is computed in memory: give the tree's file");
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let mut builder = TreeBuilder::new(params, TreeInMemory::default());
    let mut buf = vec![0; 1 << 20];
    let mut at = 0;
    while at < geometry.data_size() {
        let len = buf.len().min(usize::try_from(geometry.data_size() - at).unwrap_or(usize::MAX));
        let n = match file.read_at(&mut buf[..len], at) {
            Ok(0) => {
                let what = format!("the file ends at byte {at}, expected {} bytes", geometry.data_size());
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(io_error(error)),
        };
        builder.push(&buf[..n]).map_err(malformed)?;
        at += n as u64;
    }
    let (built, sink) = builder.finish().map_err(malformed)?;
    sink.into_bytes(&built.geometry).ok_or_else(|| Error::new(ErrorKind::Io, "the Merkle tree could not be computed"))
}

/// The root hash that the tree's top block (or the file's only block) has. It must not be used until the digest derived
/// from it is the trusted one.
fn root_hash(file: &File, tree: &TreeFrom, geometry: &TreeGeometry, params: MerkleTreeParams) -> Result<Digest> {
    if geometry.data_size() == 0 {
        return Ok(Digest::zero(params.alg()));
    }
    let mut block = vec![0; geometry.block_size()];
    match tree {
        TreeFrom::Memory(bytes) if geometry.num_levels() > 0 => block.copy_from_slice(&bytes[..geometry.block_size()]),
        TreeFrom::File(path, tree) if geometry.num_levels() > 0 => {
            if read_full(tree, &mut block).map_err(|error| io_error(error).about(path))? < block.len() {
                let what = "the Merkle tree ends before its top block does";
                return Err(Error::new(ErrorKind::Malformed, what).about(path));
            }
        }
        _ => {
            read_full(file, &mut block).map_err(io_error)?;
        }
    }
    let digest = params.block_hasher().hash_one(&block);
    Ok(Digest::new(params.alg(), digest.as_bytes()).expect("the hasher has the parameters' algorithm"))
}

/// Fills `buf` from the beginning of a file, as far as there are bytes.
fn read_full(file: &File, buf: &mut [u8]) -> io::Result<usize> {
    let mut at = 0;
    while at < buf.len() {
        match file.read_at(&mut buf[at..], at as u64) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(at)
}
