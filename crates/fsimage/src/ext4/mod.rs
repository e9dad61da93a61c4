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
//! [`Ext4`] is `Send + Sync` and cheap to clone. A plan gets a file's data from:
//!
//! - [`Ext4::inode`]: facts ([`Inode`]: number, mode, owner, times, size, flags, generation, project).
//! - [`Ext4::extents_from`]: where its bytes are ([`Extent`]: logical, physical, length, kind), past the end of the
//!   file too. Physical bytes are those of [`Ext4::device`], which is the source itself unless a journal had to be
//!   replayed ([`Ext4::replay`]). Files whose data is in the inode: [`Ext4::inline_data`].
//! - [`Ext4::read_dir`]: entries with raw names ([`DirEntry`]); [`Ext4::symlink_target`]: raw targets.
//! - [`Ext4::xattrs`], [`Ext4::fscrypt_context`]; [`Ext4::verity_location`].
//!
//! Images are read as Linux reads them. Whatever Linux refuses is an error here too, or is read if it is certainly what
//! was written; `tests/tests/ext4/mutations.rs` compares the two over random damage. [`Options`] select what to do with
//! the journal and which superblock to use; [`Ext4::warnings`] lists what may then be out of date. Nothing is ever
//! written.

mod attributes;
mod block_map;
mod bytes;
mod cache;
mod casefold;
mod changes;
mod checksum;
mod dir_index;
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
mod load;
mod map;
mod name_hash;
mod orphan;
mod overlay;
mod read_dir;
mod replay;
mod superblock;
mod symlink;
mod verity;
mod walk;
mod xattr;
mod zones;

pub use attributes::Xattrs;
pub use casefold::{casefold, casefold_for_hash};
pub use directory::{DirEntry, DirFormat, DirHash, parse_dir_block};
pub use error::{Corrupt, Error, Result, Structure, Warning};
pub use extent::{EXTENT_MAGIC, EXTENT_MAX_DEPTH, RawExtent, parse_extent_node};
pub use features::{Compat, Incompat, RoCompat};
pub use file::File;
pub use filesystem::{Ext4, ROOT_INO};
pub use group_descriptor::GroupDescriptor;
pub use htree::{HtreeRoot, parse_htree_root};
pub use inode::{FileType, Inode, InodeFlags, Timestamp};
pub use load::{JournalPolicy, Options};
pub use map::{Extent, ExtentKind, Extents};
pub use name_hash::{NameHash, hash_name};
pub use read_dir::ReadDir;
pub use replay::Replay;
pub use superblock::{Encoding, SUPERBLOCK_LEN, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSET, Superblock};
pub use verity::{VERITY_ALIGN, VERITY_DESCRIPTOR_MAX, VerityLocation};
pub use walk::{Visit, Walk};
pub use xattr::{
    XATTR_INDEX_ENCRYPTION, XATTR_INDEX_SYSTEM, XATTR_SIZE_MAX, Xattr, parse_xattr_block, parse_xattr_body,
    posix_acl_xattr,
};
