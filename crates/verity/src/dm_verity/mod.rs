//! dm-verity: a block device whose blocks are covered by a Merkle tree on another device, or further along on the same
//! one.
//!
//! Pure: bytes in, value or error out. The caller reads the device; [`TreeBuilder`] builds the tree, [`Verifier`] checks
//! blocks against it. What is written is byte for byte what `veritysetup format` writes.
//!
//! The superblock is not authenticated, and the root hash does not commit to the number of data blocks: a caller that
//! trusts a root hash must also know the [`Params`] and the size, or must report that it took them from the superblock.
//!
//! ```
//! use postread_verity::dm_verity::{Params, TreeBuilder, Verifier};
//!
//! let params = Params::default();
//! let data = vec![7; 300 * 4096];
//! let mut tree = Vec::new();
//! let mut builder = TreeBuilder::new(&params, 300)?;
//! let mut put = |offset: u64, bytes: &[u8]| -> Result<(), std::convert::Infallible> {
//!     let end = offset as usize + bytes.len();
//!     tree.resize(tree.len().max(end), 0);
//!     tree[offset as usize..end].copy_from_slice(bytes);
//!     Ok(())
//! };
//! builder.push(&data, &mut put)?;
//! let root_hash = builder.finish(&mut put)?;
//!
//! let verifier = Verifier::new(&params, 300, &root_hash)?;
//! let mut bad = Vec::new();
//! let leaf = verifier.geometry().level_offset(0) as usize;
//! verifier.verify_data(0, &data, &tree[leaf..], &mut |block| bad.push(block));
//! assert!(bad.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builder;
mod geometry;
mod params;
mod superblock;
mod verify;

pub use builder::{BuildError, BuildSizeError, DataHasher, TreeBuilder};
pub use geometry::{Geometry, GeometryError};
pub use params::{HashType, MAX_BLOCK_SIZE, MAX_SALT_SIZE, MIN_BLOCK_SIZE, Params, ParamsError};
pub use superblock::{MAGIC, SUPERBLOCK_SIZE, Superblock, SuperblockError};
pub use verify::{BadBlock, Verifier, VerifierError};
