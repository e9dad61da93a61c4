//! ext4 images: ours against a kernel mount, `debugfs` and the manifests that the kernel left.

mod compare;
mod corpora;
mod differential;
mod fast_commit;
mod hostile;
mod images;
mod journal;
mod large;
mod populate;
