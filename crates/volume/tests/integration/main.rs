//! Tests of logical volumes against what LVM2 and the kernel make.

mod corpora;
mod lvm;
mod super_partition;
