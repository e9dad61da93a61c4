//! Read what Linux protects with fs-verity and fscrypt, in user space, on kernel-style workqueues.
