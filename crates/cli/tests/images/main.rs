//! Commands on images, run as users run them, over images that real kernels and tools made.

mod again;
mod common;
mod crash;
mod extract;
mod hostile;
mod keys;
mod listed;
mod listing;
mod memory;
mod outcomes;
mod reports;
mod saved;
mod target;
mod verify;
