//! Tests of postread-verity against what others say: published vectors and `fsverity`.

mod against_fsverity;
mod bit_flips;
mod chunking;
mod common;
mod corpora;
mod corruption;
mod ddrescue;
mod signatures;
mod vectors;
