//! ext4 images: our reader against a kernel's mount, `debugfs`, and manifests that the kernel wrote.

mod compare;
mod corpora;
mod differential;
mod fast_commit;
mod hostile;
mod images;
mod journal;
mod large;
mod mutations;
mod populate;
mod rules;
