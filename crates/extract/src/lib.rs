//! Extracts trees from images that Linux protects with fscrypt and fs-verity: files decrypted and verified, with their
//! attributes, below one directory and never outside it.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (image, engine): (postread::image::Image, postread::Engine) = unimplemented!();
//! use postread_extract::{Extraction, Options};
//!
//! let (root, events) = (image.fs().root()?, ());
//! let extraction = Extraction::open("out".as_ref(), Options::new(&engine, &events))?;
//! let counts = extraction.image(&image, root, b"");
//! println!("{} files, {} failed", counts.files, counts.failed);
//! # Ok(()) }
//! ```
//!
//! A file is written without a name, or under one that nobody can predict, and gets its name when it is whole: then the
//! name leads to the very inode that was written. What the run created under one name of the image is never replaced under
//! another, also where the target's file system does not distinguish the two. Attributes are set through descriptors.
//! A run that was stopped is continued by the next one, which also sets the attributes that the last one could not.

mod attributes;
mod counts;
mod directories;
mod events;
mod extraction;
mod file_job;
mod from_image;
mod listed;
mod name;
mod place;
mod top;
mod tree_writer;
mod unfinished;

pub use attributes::Attributes;
pub use counts::{Counts, LeftOut};
pub use directories::DirId;
pub use events::{Events, Failure, Note};
pub use extraction::{AttributeSource, Extraction, Options};
pub use file_job::Contents;
pub use place::{lock, open_dir, open_file};
pub use tree_writer::{At, Meta, TreeWriter};
pub use unfinished::{WholeFile, WholeFiles};
