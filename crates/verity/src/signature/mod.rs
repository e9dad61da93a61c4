//! Built-in signatures, and those of dm-verity root hashes: PKCS#7 messages (RFC 2315) in DER, detached, without attributes
//! or certificates, over the formatted file digest or the root hash. `fsverity sign` makes them and the kernel checks them
//! against its `.fs-verity` keyring; here a caller's certificates stand in for the keyring.
//!
//! As for the kernel, a certificate is a key with a name: its validity period, extensions and issuer are not looked
//! at. Give only certificates that you trust to sign files.

mod keys;
#[cfg(feature = "pkcs11")]
mod pkcs11;
#[cfg(feature = "pkcs11")]
mod pkcs11_uri;
mod sign;
mod verify;

pub use keys::{Certificate, KeyError, SigningKey};
#[cfg(feature = "pkcs11")]
pub use pkcs11::{Pin, TokenError, TokenKey};
#[cfg(feature = "pkcs11")]
pub use pkcs11_uri::{Pkcs11Uri, Pkcs11UriError};
pub use sign::{SignError, Signer, sign, sign_root_hash};
pub use verify::{SignatureError, verify, verify_root_hash};

use x509_cert::der::asn1::ObjectIdentifier;

/// `signedData` of RFC 2315.
const SIGNED_DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.7.2");
/// `data` of RFC 2315.
const DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.7.1");
/// `rsaEncryption` of RFC 8017.
const RSA_ENCRYPTION: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
/// `id-ecPublicKey` of RFC 5480.
const EC_PUBLIC_KEY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");

/// A hash algorithm that a signature may use, and the names of the signature algorithms that contain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SigHash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl SigHash {
    const ALL: [SigHash; 3] = [SigHash::Sha256, SigHash::Sha384, SigHash::Sha512];

    /// The hash algorithm's identifier (RFC 5754).
    fn oid(self) -> ObjectIdentifier {
        match self {
            Self::Sha256 => ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.1"),
            Self::Sha384 => ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.2"),
            Self::Sha512 => ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.3"),
        }
    }

    /// `shaNNNWithRSAEncryption` (RFC 8017).
    fn rsa_oid(self) -> ObjectIdentifier {
        match self {
            Self::Sha256 => ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.11"),
            Self::Sha384 => ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.12"),
            Self::Sha512 => ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.13"),
        }
    }

    /// `ecdsa-with-SHANNN` (RFC 5758).
    fn ecdsa_oid(self) -> ObjectIdentifier {
        match self {
            Self::Sha256 => ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.2"),
            Self::Sha384 => ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.3"),
            Self::Sha512 => ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.4"),
        }
    }

    /// The hash of a message.
    pub fn of(self, message: &[u8]) -> Vec<u8> {
        use sha2::Digest as _;
        match self {
            Self::Sha256 => sha2::Sha256::digest(message).to_vec(),
            Self::Sha384 => sha2::Sha384::digest(message).to_vec(),
            Self::Sha512 => sha2::Sha512::digest(message).to_vec(),
        }
    }
}
