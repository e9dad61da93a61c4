//! Tests of postread-dmcrypt against `cryptsetup` and the real kernel.

mod corpora;
mod cryptsetup;
mod hostile;
mod kernel;
mod vectors;

use postread_dmcrypt::luks::{Limits, Luks, Unlocked};

/// Unlocks an image and decrypts `len` bytes of its data.
pub(crate) fn decrypt(image: &[u8], passphrase: &[u8], len: usize) -> (Unlocked, Vec<u8>) {
    let luks = Luks::read(image).unwrap();
    let unlocked = luks.unlock(image, passphrase, &Limits::default()).unwrap();
    let start = unlocked.data.offset as usize;
    let mut data = image[start..start + len].to_vec();
    unlocked.mapping.decrypt(&mut data, 0).unwrap();
    (unlocked, data)
}
