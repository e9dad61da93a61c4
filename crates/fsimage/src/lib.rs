//! File systems inside images, read-only: from an inode to its extents, names, attributes and protection.
//!
//! Nothing here decrypts or verifies contents: names, symbolic links and file contents come out as they lie on disk,
//! with the facts that a layer above needs for both.

pub mod ext4;
