//! Commands on images, run as users run them, over images that real kernels and tools made.

mod again;
mod common;
mod crash;
mod extract;
mod hostile;
mod keys;
mod links;
mod listed;
mod listing;
mod memory;
mod outcomes;
mod pieces;
mod reports;
mod saved;
mod secrets;
mod target;
mod verify;
