//! The directory hash of casefolded encrypted directories.
//!
//! Names that differ in case must hash alike, and a hash of plaintext must not leak it, so that it is SipHash-2-4 of
//! the casefolded name under a key of the directory's own (`fscrypt_fname_siphash`).

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::wiped::wiping;
use crate::{Context, MasterKey};

/// SipHash of a name that has been casefolded already (`fsimage`'s `casefold_for_hash`), under the directory's key (v2 policies only). ext4 stores its
/// high half with bit 0 cleared, and its low half as the minor hash.
pub fn dirhash(master: &MasterKey, directory: &Context, casefolded: &[u8]) -> u64 {
    wiping(|| {
        let mut hasher = SipHasher24::new_with_key(&master.dirhash_key(&directory.nonce));
        hasher.write(casefolded);
        hasher.finish()
    })
}
