//! Extracts trees from images that Linux protects with fscrypt and fs-verity: files decrypted and verified, with their
//! attributes, below one directory and never outside it.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let images = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images");
//! # let file = postread_tests::unpack_image(&images.join("fscrypt/verity-enc.img.zst"));
//! # let key = std::fs::read(images.join("key64.bin"))?;
//! # let dir = tempfile::tempdir()?;
//! # let (target, out) = (postread::Target::builder().key(&key).open(file.path())?, dir.path().join("out"));
//! use postread_extract::{Extraction, Options};
//!
//! let (image, engine, events) = (target.image(), target.engine(), ());
//! let extraction = Extraction::open(&out, Options::new(engine, &events))?;
//! let counts = extraction.image(image, image.fs().root()?, b"");
//! println!("{} files, {} failed", counts.files, counts.failed);
//! # assert!(counts.files > 0 && counts.failed == 0, "{counts:?}");
//! # assert!(out.join("enc/f4097").is_file());
//! # Ok(()) }
//! ```
//!
//! A file is written without a name, or under an unpredictable one, and gets its name when it is complete: the name
//! then refers to the very inode that was written. A file that the run created for one name of the image is never
//! replaced by another name, even if the target's file system does not distinguish the two. Attributes are set through
//! descriptors. A run that was stopped is continued by the next one, which also sets the attributes that the last one
//! could not.

mod attributes;
mod counts;
mod directories;
mod events;
mod extraction;
mod file_job;
mod from_image;
mod listed;
mod listing;
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
