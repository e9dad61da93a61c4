//! ext4 (and ext3, ext2), read-only, from any source of bytes.
//!
//! ```no_run
//! use std::sync::Arc;
//! use postread_fsimage::ext4::Ext4;
//!
//! let fs = Ext4::load(Arc::new(std::fs::File::open("disk.img")?))?;
//! for visit in fs.walk(postread_fsimage::ext4::ROOT_INO) {
//!     match (&visit.entry, &visit.inode) {
//!         (Some(entry), Ok(inode)) => println!("{} {:?}", entry.name.escape_ascii(), inode.file_type),
//!         (_, Err(error)) => eprintln!("{error}"),
//!         _ => {}
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Ext4`] is `Send + Sync` and cheap to clone. What a plan needs of a file:
//!
//! - [`Ext4::inode`]: facts ([`Inode`]: number, mode, owner, times, size, flags, generation, project).
//! - [`Ext4::extents_from`]: where its bytes lie ([`Extent`]: logical, physical, length, kind), past the end of the
//!   file too. Physical bytes are those of [`Ext4::device`], which is the source itself unless a journal had to be
//!   replayed ([`Ext4::replay`]). Files whose data lives in the inode: [`Ext4::inline_data`].
//! - [`Ext4::read_dir`]: entries with raw names ([`DirEntry`]); [`Ext4::symlink_target`]: raw targets.
//! - [`Ext4::xattrs`], [`Ext4::fscrypt_context`]; [`Ext4::verity_location`].
//!
//! **Not done**: external journals are not replayed (such an image is refused, and can be loaded with
//! [`JournalPolicy::Ignore`]). What is on disk is not written to, ever.

mod block_map;
mod bytes;
mod cache;
mod casefold;
mod changes;
mod checksum;
mod directory;
mod error;
mod extent;
mod features;
mod file;
mod filesystem;
pub mod fuzz;
mod group_descriptor;
mod htree;
mod inline_data;
mod inode;
mod journal;
mod map;
mod name_hash;
mod orphan;
mod overlay;
mod read_dir;
mod superblock;
mod verity;
mod walk;
mod xattr;

pub use casefold::{casefold, casefold_for_hash};
pub use directory::{DirEntry, DirFormat, DirHash, parse_dir_block};
pub use error::{Corrupt, Error, Result, Structure};
pub use extent::{EXTENT_MAGIC, EXTENT_MAX_DEPTH, RawExtent, parse_extent_node};
pub use features::{Compat, Incompat, RoCompat};
pub use file::File;
pub use filesystem::{Ext4, JournalPolicy, Options, ROOT_INO};
pub use group_descriptor::GroupDescriptor;
pub use htree::{HtreeRoot, parse_htree_root};
pub use inode::{FileType, Inode, InodeFlags, Timestamp};
pub use journal::Replay;
pub use map::{Extent, ExtentKind, Extents};
pub use name_hash::{NameHash, hash_name};
pub use read_dir::ReadDir;
pub use superblock::{Encoding, SUPERBLOCK_LEN, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSET, Superblock};
pub use verity::{VERITY_ALIGN, VERITY_DESCRIPTOR_MAX, VerityLocation};
pub use walk::{Visit, Walk};
pub use xattr::{
    XATTR_INDEX_ENCRYPTION, XATTR_INDEX_SYSTEM, XATTR_SIZE_MAX, Xattr, parse_xattr_block, parse_xattr_body,
    posix_acl_xattr,
};
