//! Reads what Linux protects with fs-verity and fscrypt, in user space, on kernel-style workqueues.
//!
//! A [`Target`] is an image, a disk or a block device. It reads files by path: decrypted with the keys that it has, and
//! verified where they have fs-verity.
//!
//! ```no_run
//! use postread::Target;
//!
//! let target = Target::builder().key(&std::fs::read("key")?).open("disk.img")?;
//! let bytes = target.read("/home/user/notes")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Below it, a [`Plan`] describes where a file's bytes are and which [`Step`]s they go through; an [`Engine`] reads
//! them, runs the steps where its [`QueuePolicy`] decides, and lends the result to readers:
//!
//! ```
//! use std::sync::Arc;
//! use postread::{Engine, EngineConfig, Linear, Plan, VerityLayer};
//! use postread_io::MemorySource;
//! use postread_verity::{MerkleTreeParams, TreeBuilder, TreeInMemory};
//!
//! let data = vec![7; 1_000_000];
//! let mut builder = TreeBuilder::new(MerkleTreeParams::default(), TreeInMemory::default());
//! builder.push(&data)?;
//! let (built, tree) = builder.finish()?;
//! let tree = tree.into_bytes(&built.geometry).expect("it is this file's tree");
//!
//! let linear = |bytes: Vec<u8>| {
//!     let len = bytes.len() as u64;
//!     Arc::new(Linear::new(Arc::new(MemorySource::new(bytes)), 0, len))
//! };
//! // A reader has the digest from where it trusts it, and the descriptor from anywhere.
//! let digest = built.descriptor().file_digest();
//! let layer = VerityLayer::new(built.descriptor().trust(&digest)?)?;
//! let blocks = layer.hash_blocks(linear(tree), Vec::new());
//! let plan = layer.protect(Plan::new(linear(data), 1_000_000), blocks)?;
//!
//! let engine = Engine::new(EngineConfig::new())?;
//! let mut buf = [0; 100];
//! assert_eq!(engine.open(plan).reader().read_at(&mut buf, 999_950)?, 50);
//! assert_eq!(buf[..50], [7; 50]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With the feature `tokio`, [`File`], [`VerifiedFile`] and [`FileReader`] are tokio's `AsyncRead` and `AsyncSeek`, on any
//! executor. Without it, [`ReadFuture`] is a read as a future.

#[cfg(feature = "tokio")]
mod async_read;
pub mod auto;
mod block_on;
pub mod block_verity;
mod digest_files;
mod engine;
mod error;
mod file;
pub mod files;
mod hash_blocks;
pub mod image;
mod inputs;
mod latency;
mod nowhere;
mod path_tree;
mod plan;
mod policy;
mod reader;
mod scan;
pub mod sidecar;
mod stamps;
mod stats;
mod step;
mod stream;
mod target;
mod trusted;
mod verified_file;
mod verity_step;

pub use digest_files::{
    DigestInput, DigestJob, Digester, FileError, Progress, digest_file, digest_files, open_regular,
};
pub use engine::{Engine, EngineConfig};
pub use error::{EngineError, Error, ErrorKind, ReadError, Remedy, Result};
pub use file::{Chunk, OpenFile, ReadBytes, ReadFuture};
pub use hash_blocks::HashBlocks;
pub use latency::Latency;
pub use plan::{BadExtent, ExtentMap, Linear, MappedExtent, Mapping, Piece, PieceAt, Plan};
pub use policy::QueuePolicy;
pub use reader::FileReader;
pub use scan::{BadPart, Scan, ScanTotals};
pub use stamps::{BioFate, BioKind, BioObserver, BioRecord, BioTimes};
pub use stats::{BioStats, EngineStats};
pub use step::{BioMut, Inputs, Step, VerifiedBlock, VerifiedInputs};
pub use target::{
    Builder, Device, DmVerity, Entry, File, FileVerdict, Finding, FscryptMetadata, HomedDirectory, Keys, Layer, Layers,
    LinkedProtector, Metadata, ReadDir, Target, Verifier, VerifyTotals, Volume, Walk, Warning,
};
pub use trusted::TrustedDigests;
pub use verified_file::{Changed, VerifiedFile, VerifiedFileOptions};
pub use verity_step::{LayerError, VerityLayer};

// Re-exports of the crates whose types the API uses, so that one dependency is enough.
pub use postread_dmcrypt as dmcrypt;
pub use postread_fscrypt as fscrypt;
pub use postread_fscrypt::{KeySpecifier, Keyring, MasterKey, MissingKey};
pub use postread_fsimage::ext4;
pub use postread_io as io;
pub use postread_io::{BlockStatus, Budget, FailureKind, MemorySource, ReadAt, Source};
pub use postread_verity as verity;
pub use postread_verity::{Descriptor, FileDigest, HashAlg, Trust, TrustedDescriptor};
pub use postread_volume as volume;
pub use postread_workqueue as workqueue;
