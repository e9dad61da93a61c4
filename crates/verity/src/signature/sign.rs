//! Signing, as `fsverity sign` does: the same bytes for an RSA key, whose signatures are deterministic.

use cms::cert::IssuerAndSerialNumber;
use cms::content_info::{CmsVersion, ContentInfo};
use cms::signed_data::{EncapsulatedContentInfo, SignedData, SignerIdentifier, SignerInfo, SignerInfos};
use postread_blockcrypt::hash::HashAlg;
use x509_cert::der::asn1::{OctetString, SetOfVec};
use x509_cert::der::{Any, Encode};
use x509_cert::spki::AlgorithmIdentifierOwned;

use super::keys::{Certificate, SigningKey};
use super::{DATA, RSA_ENCRYPTION, SIGNED_DATA, SigHash};
use crate::digest::FileDigest;

/// Why a file digest could not be signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The private key is not the one of the certificate.
    #[error("the private key does not belong to the certificate of {subject}")]
    KeyMismatch {
        /// Whose certificate it is.
        subject: String,
    },
    /// The key cannot sign with this hash algorithm.
    #[error("this key cannot sign with {hash:?}")]
    Key {
        /// The hash algorithm.
        hash: SigHash,
    },
    /// A token's key could not sign.
    #[cfg(feature = "pkcs11")]
    #[error(transparent)]
    Token(#[from] super::TokenError),
    /// The message could not be written.
    #[error("encoding the signature: {detail}")]
    Encoding {
        /// What the encoder said.
        detail: String,
    },
}

fn encoding(error: x509_cert::der::Error) -> SignError {
    SignError::Encoding { detail: error.to_string() }
}

/// What signs: a key at hand, or one that a token or a service keeps.
pub trait Signer {
    /// Signs a message: with RSA as PKCS#1 v1.5 does (RFC 8017), with ECDSA as a sequence of two numbers in DER
    /// (RFC 3279).
    ///
    /// # Errors
    /// Where the key can't be used, or is too small for the hash.
    fn sign(&self, hash: SigHash, message: &[u8]) -> Result<Vec<u8>, SignError>;
}

impl Signer for SigningKey {
    fn sign(&self, hash: SigHash, message: &[u8]) -> Result<Vec<u8>, SignError> {
        self.sign_with(hash, message).ok_or(SignError::Key { hash })
    }
}

/// Signs a file digest with `key`, whose certificate is `certificate`. The signature uses the file digest's own hash
/// algorithm. It fits into a descriptor ([`Descriptor::with_signature`](crate::Descriptor::with_signature)).
///
/// # Errors
/// Where `key` can't sign, or the signature is not one of the certificate's key.
pub fn sign(digest: &FileDigest, key: &dyn Signer, certificate: &Certificate) -> Result<Vec<u8>, SignError> {
    let hash = if digest.alg() == HashAlg::Sha512 { SigHash::Sha512 } else { SigHash::Sha256 };
    sign_message(&digest.formatted(), hash, key, certificate)
}

/// Signs a dm-verity root hash with SHA-256: in hexadecimal, as the kernel and `veritysetup --root-hash-signature` want it.
///
/// # Errors
/// As [`sign`].
pub fn sign_root_hash(root_hash: &[u8], key: &dyn Signer, certificate: &Certificate) -> Result<Vec<u8>, SignError> {
    sign_message(hex::encode(root_hash).as_bytes(), SigHash::Sha256, key, certificate)
}

fn sign_message(
    message: &[u8],
    hash: SigHash,
    key: &dyn Signer,
    certificate: &Certificate,
) -> Result<Vec<u8>, SignError> {
    let signature = key.sign(hash, message)?;
    // Also what a fault in a computation or a token made: that would give an RSA key away.
    if !certificate.key.verify(hash, message, &signature) {
        return Err(SignError::KeyMismatch { subject: certificate.subject() });
    }

    let digest_alg = AlgorithmIdentifierOwned { oid: hash.oid(), parameters: Some(Any::null()) };
    let signature_algorithm = if certificate.key.is_rsa() {
        AlgorithmIdentifierOwned { oid: RSA_ENCRYPTION, parameters: Some(Any::null()) }
    } else {
        AlgorithmIdentifierOwned { oid: hash.ecdsa_oid(), parameters: None }
    };
    let tbs = certificate.inner.tbs_certificate();
    let signer = SignerInfo {
        version: CmsVersion::V1,
        sid: SignerIdentifier::IssuerAndSerialNumber(IssuerAndSerialNumber {
            issuer: tbs.issuer().clone(),
            serial_number: tbs.serial_number().clone(),
        }),
        digest_alg: digest_alg.clone(),
        signed_attrs: None,
        signature_algorithm,
        signature: OctetString::new(signature).map_err(encoding)?,
        unsigned_attrs: None,
    };
    let signed = SignedData {
        version: CmsVersion::V1,
        digest_algorithms: SetOfVec::try_from(vec![digest_alg]).map_err(encoding)?,
        encap_content_info: EncapsulatedContentInfo { econtent_type: DATA, econtent: None },
        certificates: None,
        crls: None,
        signer_infos: SignerInfos::try_from(vec![signer]).map_err(encoding)?,
    };
    let content = Any::encode_from(&signed).map_err(encoding)?;
    ContentInfo { content_type: SIGNED_DATA, content }.to_der().map_err(encoding)
}
