//! Merkle trees as fs-verity has them: parameters, trees, descriptors, file digests, signatures, verification.
