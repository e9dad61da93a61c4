//! Verification of a signature against certificates that the caller trusts.

use cms::content_info::ContentInfo;
use cms::signed_data::{SignedData, SignerIdentifier, SignerInfo};
use x509_cert::der::{Decode, Encode};

use super::keys::Certificate;
use super::{DATA, RSA_ENCRYPTION, SIGNED_DATA, SigHash};
use crate::descriptor::MAX_SIGNATURE_SIZE;
use crate::digest::FileDigest;

/// Why a signature says nothing about a file digest. The kernel's answers are in brackets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The descriptor has no signature.
    #[error("the file has no built-in signature")]
    Missing,
    /// Not a PKCS#7 message (`EBADMSG`).
    #[error("malformed signature: {detail}")]
    Malformed {
        /// What the parser said.
        detail: String,
    },
    /// Longer than a descriptor can hold (`EMSGSIZE`).
    #[error("a signature of {len} bytes is longer than {MAX_SIGNATURE_SIZE}")]
    TooLong {
        /// Its length, in bytes.
        len: usize,
    },
    /// Another kind of message than signed data (`EBADMSG`).
    #[error("the PKCS#7 message is of type {oid}, not signed data")]
    NotSignedData {
        /// The type's object identifier.
        oid: String,
    },
    /// The message contains, or is about, other data than the bare file digest (`EBADMSG`).
    #[error("the signature is not detached from plain data")]
    NotDetached,
    /// There are signed attributes: what is signed is not the file digest alone.
    #[error("the signature has signed attributes: expected none")]
    SignedAttributes,
    /// No signer's certificate is among those given (`ENOKEY`).
    #[error("no certificate given is that of a signer: signed by {}", signers.join(" and "))]
    NoCertificate {
        /// The signers: issuer and serial number, or key identifier.
        signers: Vec<String>,
    },
    /// An algorithm that is not supported (`ENOPKG`).
    #[error("unsupported signature algorithm {oid}")]
    Unsupported {
        /// Its object identifier.
        oid: String,
    },
    /// The signature is not one of this file digest by this certificate's key (`EKEYREJECTED`).
    #[error("the signature is not one of {what} by the key of {subject}")]
    Rejected {
        /// What should have been signed: a file digest or a root hash.
        what: String,
        /// Whose certificate it is.
        subject: String,
    },
}

fn malformed(error: x509_cert::der::Error) -> SignatureError {
    SignatureError::Malformed { detail: error.to_string() }
}

/// Verifies that `signature` is a signature of `digest` by the key of one of `certificates`, and says which.
///
/// Every signer whose certificate is given must be good. Certificates inside the message are not used: they prove
/// nothing.
pub fn verify<'a>(
    signature: &[u8],
    digest: &FileDigest,
    certificates: &'a [Certificate],
) -> Result<&'a Certificate, SignatureError> {
    verify_message(signature, &digest.formatted(), certificates, || format!("digest {digest}"))
}

/// Verifies that `signature` is a signature of a dm-verity root hash by the key of one of `certificates`, and says which.
/// What is signed is the root hash in hexadecimal, as the kernel's `root_hash_sig_key_desc` and `veritysetup
/// --root-hash-signature` have it.
///
/// # Errors
/// As [`verify`].
pub fn verify_root_hash<'a>(
    signature: &[u8],
    root_hash: &[u8],
    certificates: &'a [Certificate],
) -> Result<&'a Certificate, SignatureError> {
    let message = hex::encode(root_hash);
    verify_message(signature, message.as_bytes(), certificates, || format!("root hash {message}"))
}

fn verify_message<'a>(
    signature: &[u8],
    message: &[u8],
    certificates: &'a [Certificate],
    what: impl Fn() -> String,
) -> Result<&'a Certificate, SignatureError> {
    let signed = parse(signature)?;
    let mut good = None;
    for signer in signed.signer_infos.0.iter() {
        // Several certificates may have one name; whose key fits is the one.
        let named: Vec<&Certificate> = certificates.iter().filter(|c| is_of(signer, c)).collect();
        let Some(first) = named.first() else { continue };
        let hash = hash_of(signer)?;
        let by = named.iter().find(|c| verifies(signer, hash, c, message));
        let rejected = || SignatureError::Rejected { what: what(), subject: first.subject() };
        good = Some(*by.ok_or_else(rejected)?);
    }
    good.ok_or_else(|| SignatureError::NoCertificate {
        signers: signed.signer_infos.0.iter().map(|signer| signer_name(&signer.sid)).collect(),
    })
}

/// Reads the message, and refuses what is no fs-verity signature whoever made it. Entry point of a fuzz target.
pub(crate) fn parse(signature: &[u8]) -> Result<SignedData, SignatureError> {
    if signature.len() > MAX_SIGNATURE_SIZE {
        return Err(SignatureError::TooLong { len: signature.len() });
    }
    let info = ContentInfo::from_der(signature).map_err(malformed)?;
    if info.content_type != SIGNED_DATA {
        return Err(SignatureError::NotSignedData { oid: info.content_type.to_string() });
    }
    let signed: SignedData = info.content.decode_as().map_err(malformed)?;
    if signed.encap_content_info.econtent_type != DATA || signed.encap_content_info.econtent.is_some() {
        return Err(SignatureError::NotDetached);
    }
    if signed.signer_infos.0.is_empty() {
        return Err(SignatureError::Malformed { detail: "no signers".into() });
    }
    if signed.signer_infos.0.iter().any(|signer| signer.signed_attrs.is_some()) {
        return Err(SignatureError::SignedAttributes);
    }
    Ok(signed)
}

fn is_of(signer: &SignerInfo, certificate: &Certificate) -> bool {
    match &signer.sid {
        SignerIdentifier::IssuerAndSerialNumber(name) => {
            let tbs = certificate.inner.tbs_certificate();
            let same_issuer = match (name.issuer.to_der(), tbs.issuer().to_der()) {
                (Ok(a), Ok(b)) => a == b,
                _ => false,
            };
            same_issuer && name.serial_number == *tbs.serial_number()
        }
        SignerIdentifier::SubjectKeyIdentifier(wanted) => {
            certificate.key_identifier().is_some_and(|found| found == wanted.0.as_bytes())
        }
    }
}

fn hash_of(signer: &SignerInfo) -> Result<SigHash, SignatureError> {
    let oid = signer.digest_alg.oid;
    let found = SigHash::ALL.into_iter().find(|hash| hash.oid() == oid);
    found.ok_or_else(|| SignatureError::Unsupported { oid: oid.to_string() })
}

/// The signature algorithm must be the key's kind, and name the signer's hash algorithm if it names one.
fn verifies(signer: &SignerInfo, hash: SigHash, certificate: &Certificate, message: &[u8]) -> bool {
    let oid = signer.signature_algorithm.oid;
    let fits = if certificate.key.is_rsa() {
        oid == RSA_ENCRYPTION || oid == hash.rsa_oid()
    } else {
        oid == hash.ecdsa_oid() || oid == super::EC_PUBLIC_KEY
    };
    fits && certificate.key.verify(hash, message, signer.signature.as_bytes())
}

fn signer_name(sid: &SignerIdentifier) -> String {
    match sid {
        SignerIdentifier::IssuerAndSerialNumber(name) => {
            format!("serial {} of issuer \"{}\"", hex::encode(name.serial_number.as_bytes()), name.issuer)
        }
        SignerIdentifier::SubjectKeyIdentifier(id) => format!("key {}", hex::encode(id.0.as_bytes())),
    }
}
