//! fs-verity Merkle trees: parameters, trees, descriptors, file digests, signatures, verification.
//!
//! Pure: bytes in, value or error out; no I/O. Names are the kernel's. Block devices have their own modules:
//! [`dm_verity`], [`fec`], [`avb`].
//!
//! ```
//! use postread_verity::{Descriptor, EofTail, MerkleTreeParams, Scratch, TreeBuilder, TreeInMemory, Verifier};
//!
//! let data = vec![7; 10_000];
//! let mut builder = TreeBuilder::new(MerkleTreeParams::default(), TreeInMemory::default());
//! builder.push(&data)?;
//! let (built, tree) = builder.finish()?;
//! let tree = tree.into_bytes(&built.geometry).expect("it is this file's tree");
//!
//! // A reader has the digest from where it trusts it, and the descriptor from anywhere.
//! let digest = built.descriptor().file_digest();
//! let verifier = Verifier::from_descriptor(&built.descriptor().trust(&digest)?)?;
//! let mut bad = Vec::new();
//! verifier.verify_hash_run(0, 0, &tree, &[], &mut Scratch::default(), |b| bad.push(b));
//! verifier.verify_data(0, &data, &[&tree], EofTail::Strict, &mut Scratch::default(), |b| bad.push(b));
//! assert!(bad.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod avb;
mod builder;
pub mod ddrescue;
mod descriptor;
mod digest;
pub mod dm_verity;
pub mod fec;
mod geometry;
pub mod list;
mod params;
#[cfg(feature = "signature")]
pub mod signature;
mod sink;
mod trust;
mod verify;

pub use builder::{BuildError, Part, PartBuilder, PartError, Tree, TreeBuilder};
pub use descriptor::{DESCRIPTOR_SIZE, Descriptor, DescriptorError, MAX_DESCRIPTOR_SIZE, MAX_SIGNATURE_SIZE};
pub use digest::{Digest, DigestParseError, FileDigest};
pub use geometry::{GeometryError, HashLocation, TreeGeometry};
pub use params::{
    KernelRefusal, MAX_BLOCK_SIZE, MAX_LEVELS, MAX_SALT_SIZE, MIN_BLOCK_SIZE, MerkleTreeParams, ParamsError,
    alg_from_name, alg_from_number, alg_number,
};
pub use postread_blockcrypt::hash::HashAlg;
pub use sink::{NoTree, TreeInMemory, TreeSink};
pub use trust::{DigestMismatch, Trust, TrustedDescriptor};
pub use verify::{BadBlock, BlockId, Check, EofTail, Mismatch, Scratch, Verifier};
