//! File systems inside images, read-only: from an inode to its extents, names, attributes and protection.
//!
//! Nothing here decrypts or verifies contents: names, symbolic links and file contents come out as they are on disk,
//! with the facts that a layer above needs for both.
#![warn(clippy::arithmetic_side_effects, clippy::as_conversions)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::as_conversions))]

pub mod ext4;
