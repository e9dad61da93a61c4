//! ext4 images, read-only: inode to extents and protection.
