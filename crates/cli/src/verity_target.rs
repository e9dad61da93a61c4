//! A plain file with its Merkle tree beside it: what to verify it against, and where that comes from.

use std::path::{Path, PathBuf};

use clap::Args;
use postread::files::read_whole;
use postread::{Engine, VerifiedFile, sidecar};
use postread_verity::signature::{Certificate, SignatureError};
use postread_verity::{Descriptor, DigestParseError, FileDigest, HashAlg, MAX_DESCRIPTOR_SIZE, MAX_SIGNATURE_SIZE};

use crate::exit::{Failure, Outcome};
use crate::hash_options::{BlockOptions, parse_alg};
use crate::text::{complain_of, name_for_stderr};

/// More than any certificate has, in bytes.
const CERT_MAX: usize = 1 << 20;

/// `ALG:HEX`, or the digits alone: their number says which algorithm.
fn parse_digest(text: &str) -> Result<FileDigest, String> {
    let alg = match text.len() {
        _ if text.contains(':') => "",
        64 => "sha256:",
        128 => "sha512:",
        found if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            return Err(format!("{found} hexadecimal digits, expected 64 (sha256) or 128 (sha512)"));
        }
        _ => return Err("not a digest: expected ALG:HEX, or 64 (sha256) or 128 (sha512) hexadecimal digits".into()),
    };
    format!("{alg}{text}").parse().map_err(|error: DigestParseError| error.to_string())
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
    #[arg(long, help_heading = "Plain files", value_name = "TREE")]
    merkle_tree: Option<PathBuf>,
    /// The descriptor, in place of the parameters [default: FILE.verity-desc if it is there]
    #[arg(long, help_heading = "Plain files", value_name = "DESC", conflicts_with_all = ["hash_alg", "block_size", "salt"])]
    descriptor: Option<PathBuf>,
    /// Hash algorithm: sha256 or sha512 [default: the digest's]
    #[arg(long, help_heading = "Plain files", value_name = "ALG", value_parser = parse_alg)]
    hash_alg: Option<HashAlg>,
    #[command(flatten, next_help_heading = "Plain files")]
    blocks: BlockOptions,
    /// A detached built-in signature of the digest [default: the descriptor's]
    #[arg(long, help_heading = "Plain files", value_name = "SIGFILE", requires = "cert")]
    signature: Option<PathBuf>,
    /// A certificate that is trusted, PEM or DER (repeatable)
    #[arg(long, help_heading = "Plain files", value_name = "CERTFILE")]
    cert: Vec<PathBuf>,
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

    /// Whether options name files that go with TARGET, so that it is a plain file whatever it contains.
    pub(crate) fn is_plain(&self) -> bool {
        self.refuse_for_image().is_err()
    }

    /// Every file that is read, and what it is called on the command line.
    pub(crate) fn inputs(&self) -> Vec<(&'static str, PathBuf)> {
        // The descriptor beside the file may go unread; it is not to be overwritten either.
        let descriptor = self.descriptor.clone().or_else(|| sidecar::descriptor_path(&self.file));
        let mut inputs = vec![("TARGET", self.file.clone())];
        let tree = self.merkle_tree.clone().or_else(|| sidecar::tree_path(&self.file));
        inputs.extend(tree.map(|path| ("the Merkle tree", path)));
        inputs.extend(descriptor.map(|path| ("the descriptor", path)));
        inputs.extend(self.signature.clone().map(|path| ("--signature", path)));
        inputs.extend(self.cert.iter().cloned().map(|path| ("--cert", path)));
        inputs
    }

    /// Whether the command line has parameters, so that a descriptor beside the file is not used.
    fn params_given(&self) -> bool {
        self.hash_alg.is_some() || self.blocks.block_size != 4096 || !self.blocks.salt.0.is_empty()
    }

    /// Opens the file, if it is what the caller trusts. Warnings are reported here.
    pub(crate) fn open(&self, engine: &Engine) -> Result<(VerifiedFile, Outcome), Failure> {
        if self.digest.is_none() && self.cert.is_empty() {
            return Err(Failure::usage(
                "a plain file needs --digest or --cert: without them there is nothing to trust",
            ));
        }
        let mut options = VerifiedFile::options().engine(engine);
        if let Some(digest) = self.digest {
            options = options.digest(digest);
        }
        if let Some(path) = &self.descriptor {
            let bytes = read_whole(path, MAX_DESCRIPTOR_SIZE, "a descriptor")?;
            options = options.descriptor(Descriptor::parse(&bytes).map_err(|error| malformed(path, &error))?);
        } else if self.params_given() {
            let alg = self.digest.as_ref().map(|digest| digest.alg());
            if let (Some(asked), Some(alg)) = (self.hash_alg, alg)
                && asked != alg
            {
                return Err(Failure::usage(format!("--hash-alg {asked} contradicts the digest's {alg}")));
            }
            options = options.params(self.blocks.params(self.hash_alg.or(alg).unwrap_or(HashAlg::Sha256))?);
        }
        if let Some(path) = &self.merkle_tree {
            options = options.merkle_tree(path);
        }
        if let Some(path) = &self.signature {
            options = options.signature(read_whole(path, MAX_SIGNATURE_SIZE, "a signature")?);
        }
        for path in &self.cert {
            let bytes = read_whole(path, CERT_MAX, "a certificate's file")?;
            options = options.certificate(Certificate::from_bytes(&bytes).map_err(|error| malformed(path, &error))?);
        }
        let file = options.open(&self.file).map_err(|error| match error.downcast_ref() {
            Some(SignatureError::Missing) => Failure::usage("--cert needs --signature or a descriptor that holds one"),
            _ => Failure::from(error),
        })?;
        let mut outcome = Outcome::Good;
        for warning in file.warnings() {
            let path = warning.subject().map_or(self.file.as_path(), Path::new);
            complain_of(path, warning.message());
            outcome = outcome.worst(warning.kind().into());
        }
        Ok((file, outcome))
    }
}

fn malformed(path: &Path, error: &dyn std::error::Error) -> Failure {
    Failure::usage(format!("{}: {error}", name_for_stderr(path)))
}

/// The exit status for a block that failed.
pub(crate) fn outcome_of(status: &postread_io::BlockStatus) -> Outcome {
    postread::ErrorKind::of_status(status).map_or(Outcome::Good, Outcome::from)
}
