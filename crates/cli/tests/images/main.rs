//! Commands on images, run as users run them, over images that real kernels and tools made.

mod again;
mod broken_map;
mod common;
mod crash;
mod extract;
mod faults;
mod hostile;
mod keys;
mod links;
mod listed;
mod listing;
mod memory;
mod messages;
mod metadata;
mod outcomes;
mod pieces;
mod reports;
mod saved;
mod secrets;
mod stacked;
mod target;
mod unwritable;
mod verify;
