//! Trust as a type: a file is verified against a [`TrustedDescriptor`], and the only ways to one are a digest that the
//! caller trusts, a signature under a certificate that the caller trusts, or the explicit decision to trust nothing.
//!
//! The kernel does the same: `fsverity_create_info` makes no info object before its checks have passed.

use std::fmt;
use std::ops::Deref;

use crate::descriptor::Descriptor;
use crate::digest::FileDigest;
#[cfg(feature = "signature")]
use crate::signature::{Certificate, SignatureError, verify};

/// Why a descriptor is trusted, and so what "verified" means for its file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Trust {
    /// Its file digest is one that the caller gave.
    Digest,
    /// Its file digest is signed under a certificate that the caller gave.
    Signature {
        /// The subject of the certificate (RFC 4514).
        signer: String,
    },
    /// It is not trusted: whoever wrote the file could have written the descriptor too. A file that matches it is
    /// self-consistent, not verified.
    SelfConsistent,
}

impl Trust {
    /// Whether the caller supplied a digest or certificate that the file was verified against.
    pub fn is_verified(&self) -> bool {
        *self != Self::SelfConsistent
    }
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digest => f.write_str("verified against a trusted digest"),
            Self::Signature { signer } => write!(f, "verified, signed by {signer}"),
            Self::SelfConsistent => f.write_str("self-consistent"),
        }
    }
}

/// The file digest is not the trusted one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the file digest is {found}, expected {expected}")]
#[non_exhaustive]
pub struct DigestMismatch {
    /// The digest that the caller trusts.
    pub expected: Box<FileDigest>,
    /// The digest of the descriptor.
    pub found: Box<FileDigest>,
}

/// A descriptor with the reason why it is trusted. Dereferences to the [`Descriptor`].
///
/// The comparison of the digests cannot be skipped, because nothing verifies against a bare descriptor:
///
/// ```
/// use postread_verity::{Descriptor, FileDigest, Trust, TrustedDescriptor, Verifier};
///
/// fn verifier(stored: &[u8], digest: &FileDigest) -> Result<Verifier, Box<dyn std::error::Error>> {
///     let trusted: TrustedDescriptor = Descriptor::parse(stored)?.trust(digest)?;
///     assert_eq!(*trusted.trust(), Trust::Digest);
///     Ok(Verifier::from_descriptor(&trusted)?)
/// }
/// ```
///
/// Without it the program does not compile:
///
/// ```compile_fail,E0308
/// use postread_verity::{Descriptor, Verifier};
///
/// fn verifier(stored: &[u8]) -> Result<Verifier, Box<dyn std::error::Error>> {
///     Ok(Verifier::from_descriptor(&Descriptor::parse(stored)?)?)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedDescriptor {
    descriptor: Descriptor,
    digest: FileDigest,
    trust: Trust,
}

impl TrustedDescriptor {
    /// Why it is trusted.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// The file digest, computed once.
    pub fn file_digest(&self) -> &FileDigest {
        &self.digest
    }

    /// The descriptor without the trust.
    pub fn into_descriptor(self) -> Descriptor {
        self.descriptor
    }
}

impl Deref for TrustedDescriptor {
    type Target = Descriptor;

    fn deref(&self) -> &Descriptor {
        &self.descriptor
    }
}

impl Descriptor {
    /// Trusts the descriptor if its file digest is `expected`.
    ///
    /// # Errors
    /// If it is not.
    pub fn trust(self, expected: &FileDigest) -> Result<TrustedDescriptor, DigestMismatch> {
        let found = self.file_digest();
        if found != *expected {
            return Err(DigestMismatch { expected: Box::new(*expected), found: Box::new(found) });
        }
        Ok(TrustedDescriptor { descriptor: self, digest: found, trust: Trust::Digest })
    }

    /// Trusts the descriptor if its built-in signature is good under one of `certificates`.
    ///
    /// # Errors
    /// If there is no signature, or it is not one of this file digest by the key of a certificate given.
    #[cfg(feature = "signature")]
    pub fn trust_signature(self, certificates: &[Certificate]) -> Result<TrustedDescriptor, SignatureError> {
        let signer = {
            let signature = self.signature().ok_or(SignatureError::Missing)?;
            verify(signature, &self.file_digest(), certificates)?.subject()
        };
        Ok(self.signed_by(signer))
    }

    /// The same with a signature that is stored apart from the descriptor.
    ///
    /// # Errors
    /// If the signature is not one of this file digest by the key of a certificate given.
    #[cfg(feature = "signature")]
    pub fn trust_detached_signature(
        self,
        signature: &[u8],
        certificates: &[Certificate],
    ) -> Result<TrustedDescriptor, SignatureError> {
        let signer = verify(signature, &self.file_digest(), certificates)?.subject();
        Ok(self.signed_by(signer))
    }

    #[cfg(feature = "signature")]
    fn signed_by(self, signer: String) -> TrustedDescriptor {
        let digest = self.file_digest();
        TrustedDescriptor { descriptor: self, digest, trust: Trust::Signature { signer } }
    }

    /// Accepts the descriptor as it is. A file verified against it is [self-consistent](Trust::SelfConsistent): it
    /// detects accidents, not attacks.
    pub fn self_consistent(self) -> TrustedDescriptor {
        let digest = self.file_digest();
        TrustedDescriptor { descriptor: self, digest, trust: Trust::SelfConsistent }
    }
}

#[cfg(test)]
mod tests {
    use postread_blockcrypt::hash::HashAlg;

    use super::*;
    use crate::digest::Digest;
    use crate::params::MerkleTreeParams;

    fn descriptor(size: u64) -> Descriptor {
        Descriptor::new(MerkleTreeParams::default(), size, Digest::of(HashAlg::Sha256, b"root"))
    }

    #[test]
    fn only_its_own_digest_makes_a_descriptor_trusted() {
        let own = descriptor(5).file_digest();
        let trusted = descriptor(5).trust(&own).unwrap();
        assert_eq!((trusted.trust(), trusted.file_digest()), (&Trust::Digest, &own));
        assert!(trusted.trust().is_verified());
        let found = descriptor(6).file_digest();
        assert_eq!(descriptor(6).trust(&own), Err(DigestMismatch { expected: Box::new(own), found: Box::new(found) }));
        let text = descriptor(6).trust(&own).unwrap_err().to_string();
        assert_eq!(text, format!("the file digest is {found}, expected {own}"));
    }

    #[test]
    fn its_own_word_is_no_verification() {
        let taken = descriptor(5).self_consistent();
        assert_eq!(*taken.trust(), Trust::SelfConsistent);
        assert!(!taken.trust().is_verified());
        assert_eq!(taken.into_descriptor(), descriptor(5));
    }

    #[cfg(feature = "signature")]
    #[test]
    fn a_descriptor_without_signature_is_not_signed() {
        assert_eq!(descriptor(5).trust_signature(&[]), Err(SignatureError::Missing));
    }
}
