//! Decryption of fscrypt contents as a step of the read path.

use std::ops::Range;

use postread_fscrypt::ContentsKey;
use postread_io::BlockStatus;

use crate::step::{BioMut, Inputs, Step, VerifiedInputs};

/// Decrypts a file's contents, data unit by data unit. Holes are not ciphertext, and stay zeros.
#[derive(Debug)]
pub struct DecryptStep {
    key: std::sync::Arc<ContentsKey>,
    /// The data unit that logical byte 0 of the plan belongs to: the plan of a Merkle tree begins far in the file.
    first_unit: u64,
}

impl DecryptStep {
    /// Decrypts with `key`; logical byte 0 of the plan is the first byte of data unit `first_unit` of the file.
    pub fn new(key: std::sync::Arc<ContentsKey>, first_unit: u64) -> DecryptStep {
        DecryptStep { key, first_unit }
    }

    fn decrypt(&self, bio: &mut BioMut<'_>, units: Range<usize>) {
        let size = self.key.data_unit_size();
        let bytes = units.start * size..units.end * size;
        let unit = self.first_unit + bio.offset() / size as u64 + units.start as u64;
        if let Err(error) = self.key.decrypt(&mut bio.data_mut()[bytes.clone()], unit) {
            bio.fail(bytes, &BlockStatus::Step { message: error.to_string().into() });
        }
    }
}

impl Step for DecryptStep {
    fn block_size(&self) -> u32 {
        self.key.data_unit_size() as u32
    }

    fn inputs(&self, _blocks: Range<u64>, _wanted: &mut Inputs) {}

    fn run(&self, bio: &mut BioMut<'_>, _inputs: &VerifiedInputs<'_>) {
        let size = self.key.data_unit_size();
        let units = bio.data().len() / size;
        // One call of the cipher per run of units that are present.
        let mut start = 0;
        for unit in 0..=units {
            let bytes = unit * size..(unit + 1) * size;
            if unit < units && !bio.is_hole(bytes.clone()) && bio.is_good(bytes) {
                continue;
            }
            if start < unit {
                self.decrypt(bio, start..unit);
            }
            start = unit + 1;
        }
    }
}
