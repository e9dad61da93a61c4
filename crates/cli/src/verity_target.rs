//! A plain file with its Merkle tree beside it: what to verify it against, and where that comes from.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use postread::{Engine, Linear, OpenFile, Plan, VerityLayer};
use postread_io::{MemorySource, PreadConfig, PreadOptions, PreadPool, Source};
use postread_verity::signature::{Certificate, SignatureError};
use postread_verity::{
    Descriptor, Digest, DigestMismatch, DigestParseError, FileDigest, HashAlg, MAX_DESCRIPTOR_SIZE, MAX_SIGNATURE_SIZE,
    MerkleTreeParams, TreeBuilder, TreeGeometry, TreeInMemory, TrustedDescriptor,
};

use crate::digest_files::open_regular;
use crate::exit::{Failure, Outcome};
use crate::hash_options::{BlockOptions, parse_alg};
use crate::input_file::read_whole;
use crate::sidecar;
use crate::text::{complain_of, name_for_stderr};

/// A tree that is computed is kept in memory; a larger one has to be given.
const MAX_COMPUTED_TREE: u64 = 1 << 30;
/// More than any certificate has, in bytes.
const CERT_MAX: usize = 1 << 20;

/// `ALG:HEX`, or the digits alone: their number tells the algorithm.
fn parse_digest(text: &str) -> Result<FileDigest, DigestParseError> {
    let alg = match text.len() {
        64 => "sha256:",
        128 => "sha512:",
        _ => "",
    };
    if text.contains(':') { text.parse() } else { format!("{alg}{text}").parse() }
}

#[derive(Args, Debug)]
pub(crate) struct VerityArgs {
    /// The file, or an image or a block device
    #[arg(value_name = "TARGET")]
    pub(crate) file: PathBuf,
    /// The fs-verity digest that the file must have, as `fsverity digest` prints it; its digits alone will do
    #[arg(long, value_name = "ALG:HEX", value_parser = parse_digest)]
    pub(crate) digest: Option<FileDigest>,
    /// The Merkle tree [default: FILE.verity-tree if it is there, else computed]
    #[arg(long, value_name = "TREE")]
    merkle_tree: Option<PathBuf>,
    /// The descriptor, in place of the parameters [default: FILE.verity-desc if it is there]
    #[arg(long, value_name = "DESC", conflicts_with_all = ["hash_alg", "block_size", "salt"])]
    descriptor: Option<PathBuf>,
    /// Hash algorithm: sha256 or sha512 [default: the digest's]
    #[arg(long, value_name = "ALG", value_parser = parse_alg)]
    hash_alg: Option<HashAlg>,
    #[command(flatten)]
    blocks: BlockOptions,
    /// A detached built-in signature of the digest [default: the descriptor's]
    #[arg(long, value_name = "SIGFILE", requires = "cert")]
    signature: Option<PathBuf>,
    /// A certificate that is trusted, PEM or DER (repeatable)
    #[arg(long, value_name = "CERTFILE")]
    cert: Vec<PathBuf>,
}

/// A file that is ready to be read, and what to say about it first.
pub(crate) struct VerityTarget {
    pub(crate) file: OpenFile,
    pub(crate) trusted: TrustedDescriptor,
    /// What was found wrong before any block was read.
    pub(crate) outcome: Outcome,
}

fn of<E: std::fmt::Display>(path: &Path, outcome: Outcome) -> impl Fn(E) -> Failure + '_ {
    move |error| Failure::new(outcome, format!("{}: {error}", name_for_stderr(path)))
}

fn beside(path: &Path, suffix: &str) -> Option<PathBuf> {
    let path = sidecar::beside(path, suffix);
    fs::symlink_metadata(&path).is_ok().then_some(path)
}

enum TreeFrom {
    File(PathBuf, File),
    Memory(Vec<u8>),
}

impl VerityArgs {
    /// The options that name what lies beside a plain file have no meaning within an image.
    pub(crate) fn refuse_for_image(&self) -> Result<(), Failure> {
        let beside = self.merkle_tree.is_some()
            || self.descriptor.is_some()
            || self.signature.is_some()
            || self.hash_alg.is_some()
            || !self.cert.is_empty();
        if beside {
            let what = "--merkle-tree, --descriptor, --signature, --cert and --hash-alg are for a plain file: in an \
                        image each file brings its own";
            return Err(Failure::usage(what));
        }
        Ok(())
    }

    /// Whether it is said what lies beside the file, so that it is a plain file whatever is in it.
    pub(crate) fn is_plain(&self) -> bool {
        self.refuse_for_image().is_err()
    }

    /// Every file that is read, and what it is called on the command line.
    pub(crate) fn inputs(&self) -> Vec<(&'static str, PathBuf)> {
        // The descriptor beside the file may go unread; it is not to be overwritten either.
        let descriptor = self.descriptor.clone().or_else(|| beside(&self.file, ".verity-desc"));
        let mut inputs = vec![("TARGET", self.file.clone())];
        inputs.extend(self.tree_file().map(|path| ("the Merkle tree", path)));
        inputs.extend(descriptor.map(|path| ("the descriptor", path)));
        inputs.extend(self.signature.clone().map(|path| ("--signature", path)));
        inputs.extend(self.cert.iter().cloned().map(|path| ("--cert", path)));
        inputs
    }

    /// The Merkle tree's file: given, or found beside the target.
    fn tree_file(&self) -> Option<PathBuf> {
        self.merkle_tree.clone().or_else(|| beside(&self.file, ".verity-tree"))
    }

    /// The descriptor's file: given, or found beside the target. Parameters that were given say that there is none to be
    /// used.
    fn descriptor_file(&self) -> Option<PathBuf> {
        let params_given = self.hash_alg.is_some() || self.blocks.block_size != 4096 || !self.blocks.salt.0.is_empty();
        let found = || if params_given { None } else { beside(&self.file, ".verity-desc") };
        self.descriptor.clone().or_else(found)
    }

    /// Opens the file, finds out what its digest is and whether that is the one that is trusted.
    pub(crate) fn open(&self, engine: &Engine) -> Result<VerityTarget, Failure> {
        let path = &self.file;
        if self.digest.is_none() && self.cert.is_empty() {
            return Err(Failure::usage("a plain file needs --digest or --cert, or else there is nothing to trust"));
        }
        let (file, metadata) = open_regular(path).map_err(|error| of(path, error.outcome())(error))?;
        let size = metadata.len();
        let mut outcome = Outcome::Good;

        let given = self
            .descriptor_file()
            .as_deref()
            .map(|p| {
                Descriptor::parse(&read_whole(p, MAX_DESCRIPTOR_SIZE, "a descriptor")?).map_err(of(p, Outcome::Usage))
            })
            .transpose()?;
        let params = match &given {
            Some(descriptor) => *descriptor.params(),
            None => {
                let alg = self.digest.as_ref().map(|d| d.digest().alg());
                if let (Some(asked), Some(alg)) = (self.hash_alg, alg)
                    && asked != alg
                {
                    return Err(Failure::usage(format!("--hash-alg {asked} contradicts the digest's {alg}")));
                }
                self.blocks.params(self.hash_alg.or(alg).unwrap_or(HashAlg::Sha256))?
            }
        };
        let data_size = given.as_ref().map_or(size, Descriptor::data_size);
        if data_size != size {
            let what = format!("the file has {size} bytes, and its descriptor is of {data_size} bytes");
            complain_of(path, what);
            outcome = outcome.worst(Outcome::Integrity);
        }
        let geometry = TreeGeometry::new(&params, data_size).map_err(of(path, Outcome::Usage))?;
        let tree = self.tree(&file, &geometry, params, &mut outcome)?;
        let descriptor = match given {
            Some(descriptor) => descriptor,
            None => Descriptor::new(params, data_size, root_hash(path, &file, &tree, &geometry, params)?),
        };
        let trusted = self.trust(descriptor)?;

        let pool = PreadPool::new(PreadConfig::new()).map_err(Failure::environment)?;
        let source: Arc<dyn Source> = Arc::new(pool.file(file, PreadOptions::default()));
        let tree_source: Arc<dyn Source> = match tree {
            TreeFrom::File(_, file) => Arc::new(pool.file(file, PreadOptions::default())),
            TreeFrom::Memory(bytes) => Arc::new(MemorySource::new(bytes)),
        };
        let layer = VerityLayer::new(trusted.clone()).map_err(of(path, Outcome::Usage))?;
        let blocks = layer.hash_blocks(Arc::new(Linear::new(tree_source, 0, geometry.tree_size())), Vec::new());
        let plan = Plan::new(Arc::new(Linear::new(source, 0, data_size)), data_size);
        let plan = layer.protect(plan, blocks).map_err(of(path, Outcome::Usage))?;
        Ok(VerityTarget { file: engine.open(plan), trusted, outcome })
    }

    fn tree(
        &self,
        file: &File,
        geometry: &TreeGeometry,
        params: MerkleTreeParams,
        outcome: &mut Outcome,
    ) -> Result<TreeFrom, Failure> {
        let wanted = geometry.tree_size();
        if let Some(path) = self.tree_file() {
            let (tree, metadata) = open_regular(&path).map_err(|error| of(&path, error.outcome())(error))?;
            let found = metadata.len();
            if let Some(other) = sidecar::tree_of_another_size(&params, geometry, found) {
                complain_of(&path, other);
                *outcome = outcome.worst(Outcome::Usage);
            }
            return Ok(TreeFrom::File(path, tree));
        }
        if wanted > MAX_COMPUTED_TREE {
            let what = format!("its tree has {wanted} bytes, too many to compute here: give --merkle-tree");
            return Err(of(&self.file, Outcome::Usage)(what));
        }
        let mut builder = TreeBuilder::new(params, TreeInMemory::default());
        let mut buf = vec![0; 1 << 20];
        let mut at = 0;
        let io_error = of::<io::Error>(&self.file, Outcome::Environment);
        while at < geometry.data_size() {
            let want = buf.len().min(usize::try_from(geometry.data_size() - at).unwrap_or(usize::MAX));
            let n = file.read_at(&mut buf[..want], at).map_err(&io_error)?;
            if n == 0 {
                let what = format!("the file ends at {at} of {} bytes", geometry.data_size());
                return Err(of(&self.file, Outcome::Integrity)(what));
            }
            builder.push(&buf[..n]).map_err(of(&self.file, Outcome::Usage))?;
            at += n as u64;
        }
        let (built, sink) = builder.finish().map_err(of(&self.file, Outcome::Usage))?;
        sink.into_bytes(&built.geometry)
            .map(TreeFrom::Memory)
            .ok_or_else(|| of(&self.file, Outcome::Environment)("the tree could not be computed"))
    }

    /// What to say of files that were taken because they lie beside the target: they may be of an older one.
    fn found_beside(&self) -> String {
        let tree = if self.merkle_tree.is_none() { self.tree_file() } else { None };
        let descriptor = if self.descriptor.is_none() { self.descriptor_file() } else { None };
        let names: Vec<String> = tree.iter().chain(&descriptor).map(|path| name_for_stderr(path)).collect();
        match names.is_empty() {
            true => String::new(),
            false => format!(" (found beside it and used: {}; it may be of an older file)", names.join(", ")),
        }
    }

    /// The descriptor, if it is what the caller trusts.
    fn trust(&self, descriptor: Descriptor) -> Result<TrustedDescriptor, Failure> {
        let by_digest = match &self.digest {
            None => None,
            Some(expected) => {
                Some(descriptor.clone().trust(expected).map_err(|DigestMismatch { found, .. }| {
                    let what = format!(
                        "the digest is {found}, wanted {expected}: the digest, the top of the tree, the size or the \
                     parameters are not this file's{}",
                        self.found_beside()
                    );
                    of(&self.file, Outcome::Integrity)(what)
                })?)
            }
        };
        if let Some(trusted) = by_digest
            && self.cert.is_empty()
        {
            return Ok(trusted);
        }
        let detached = self.signature.as_deref().map(|path| read_whole(path, MAX_SIGNATURE_SIZE, "a signature"));
        let detached = detached.transpose()?;
        let certs = self
            .cert
            .iter()
            .map(|path| {
                Certificate::from_bytes(&read_whole(path, CERT_MAX, "a certificate's file")?)
                    .map_err(of(path, Outcome::Usage))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let signed = match &detached {
            Some(signature) => descriptor.trust_detached_signature(signature, &certs),
            None => descriptor.trust_signature(&certs),
        };
        signed.map_err(|error| {
            let outcome = match error {
                SignatureError::Missing => {
                    return Failure::usage("--cert needs --signature or a descriptor that holds one");
                }
                SignatureError::Rejected { .. } => Outcome::Integrity,
                SignatureError::NoCertificate { .. } => Outcome::Key,
                _ => Outcome::Usage,
            };
            of(&self.file, outcome)(error)
        })
    }
}

/// The root hash as the tree's top block has it (or the file's only block). It is worth nothing until the digest made
/// from it is the trusted one.
fn root_hash(
    path: &Path,
    file: &File,
    tree: &TreeFrom,
    geometry: &TreeGeometry,
    params: MerkleTreeParams,
) -> Result<Digest, Failure> {
    if geometry.data_size() == 0 {
        return Ok(Digest::zero(params.alg()));
    }
    let mut block = vec![0; geometry.block_size()];
    let (from, path) = match tree {
        _ if geometry.num_levels() == 0 => (file, path),
        TreeFrom::File(path, tree) => (tree, path.as_path()),
        TreeFrom::Memory(bytes) => {
            let top = bytes.get(..geometry.block_size()).unwrap_or(&[]);
            let digest = params.block_hasher().hash_one(top);
            return Digest::new(params.alg(), digest.as_bytes()).ok_or_else(|| Failure::usage("no such digest"));
        }
    };
    let mut at = 0;
    while at < block.len() {
        match from.read_at(&mut block[at..], at as u64) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(of(path, Outcome::Environment)(error)),
        }
    }
    if at < block.len() && geometry.num_levels() > 0 {
        return Err(of(path, Outcome::Usage)("the tree has not even its top block"));
    }
    let digest = params.block_hasher().hash_one(&block);
    Digest::new(params.alg(), digest.as_bytes()).ok_or_else(|| Failure::usage("no such digest"))
}

/// The exit status for a block that failed.
pub(crate) fn outcome_of(status: &postread_io::BlockStatus) -> Outcome {
    postread::ErrorKind::of_status(status).map_or(Outcome::Good, Outcome::from)
}
