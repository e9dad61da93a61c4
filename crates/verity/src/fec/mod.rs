//! Forward error correction of dm-verity: Reed-Solomon codes RS(255, 255 - roots) over GF(256), interleaved so that
//! damage to neighbouring blocks is spread over many codewords.
//!
//! The message is the data blocks, then the hash blocks, then whatever blocks follow them up to the parity or the end of
//! the device. It is laid out in `255 - roots` rows of equal length, padded with zeros; a codeword is a column:
//! one byte of each row, then `roots` bytes of parity. Codes have the generator polynomial with roots 1, a, a^2, ... for a = 2
//! modulo x^8 + x^4 + x^3 + x^2 + 1.
//!
//! All codewords in a range of columns are processed side by side, one row at a time, so the loops vectorise. Decoding
//! encodes what was read and compares the parity.
//!
//! ```
//! use postread_verity::fec::{Decoder, Encoder, Layout};
//!
//! let layout = Layout::new(2, 4096, 10)?; // 10 blocks: one block in each of the first 10 rows
//! let block = |i: u64| vec![i as u8; 4096];
//! let mut encoder = Encoder::new(layout.roots(), 4096);
//! for row in 0..layout.rows() {
//!     encoder.push_row(&layout.block_at(row, 0).map(block).unwrap_or_default());
//! }
//! let parity = encoder.parity();
//!
//! // Blocks 3 and 7 are lost.
//! let mut decoder = Decoder::new(layout.roots(), 4096);
//! for row in 0..layout.rows() {
//!     let lost = row == 3 || row == 7;
//!     decoder.push_row(&layout.block_at(row, 0).filter(|_| !lost).map(block).unwrap_or_default());
//! }
//! decoder.set_parity(&parity);
//! let repair = decoder.erasures(&[3, 7]).expect("two roots repair two erasures");
//! assert_eq!(repair.correction(3), Some(&block(3)[..]));
//! assert!(repair.inconsistent().next().is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod codeword;
mod decode;
mod encode;
mod gf;
mod layout;

pub use codeword::{CodewordError, correct_codeword};
pub use decode::{Decoder, Repair};
pub use encode::Encoder;
pub use layout::{Layout, LayoutError, MAX_ROOTS, MIN_ROOTS};

/// Bytes in a codeword.
pub const CODEWORD: usize = 255;
