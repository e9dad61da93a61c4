//! Keys and certificates: RSA, and ECDSA on P-256, P-384 and P-521.

use std::fmt;

use ecdsa::signature::hazmat::{PrehashSigner, PrehashVerifier};
use rsa::pkcs1::DecodeRsaPrivateKey;
use rsa::pkcs8::PrivateKeyInfoRef;
use x509_cert::der::{Decode, Encode, Header, SecretDocument, SliceReader, Tag};
use x509_cert::ext::pkix::SubjectKeyIdentifier;

use super::{EC_PUBLIC_KEY, RSA_ENCRYPTION, SigHash};

/// Why a key or a certificate could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text has no PEM block of the kind wanted.
    #[error("no PEM block with {wanted} in it")]
    NoPem {
        /// What was looked for.
        wanted: &'static str,
    },
    /// The key is protected by a passphrase.
    #[error("the private key is encrypted: decrypt it first (openssl pkey -in KEY -out PLAIN)")]
    Encrypted,
    /// The bytes are not what the block says, or of no use.
    #[error("malformed {what}: {detail}")]
    Malformed {
        /// Private key or certificate.
        what: &'static str,
        /// What the parser said.
        detail: String,
    },
    /// A kind of key that is not supported.
    #[error("unsupported kind of key {oid} (supported: RSA, and EC on P-256, P-384 and P-521)")]
    Unsupported {
        /// The algorithm's or curve's object identifier.
        oid: String,
    },
}

fn malformed(what: &'static str, error: impl fmt::Display) -> KeyError {
    KeyError::Malformed { what, detail: error.to_string() }
}

/// A private key that signs. Zeroed when dropped, absent from `Debug`.
pub struct SigningKey(Private);

enum Private {
    Rsa(Box<rsa::PrivateKey>),
    P256(Box<p256::ecdsa::SigningKey>),
    P384(Box<p384::ecdsa::SigningKey>),
    P521(Box<p521::ecdsa::SigningKey>),
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").finish_non_exhaustive()
    }
}

/// A public key out of a certificate.
#[derive(Clone, PartialEq)]
pub(super) enum PublicKey {
    Rsa(Box<rsa::PublicKey>),
    P256(Box<p256::ecdsa::VerifyingKey>),
    P384(Box<p384::ecdsa::VerifyingKey>),
    P521(Box<p521::ecdsa::VerifyingKey>),
}

/// The first PEM block whose label is one of `labels`, from its first dash.
fn pem_block<'a>(text: &'a str, labels: &[&str]) -> Option<&'a str> {
    let mut rest = text;
    while let Some(at) = rest.find("-----BEGIN ") {
        let block = &rest[at..];
        let label = &block["-----BEGIN ".len()..];
        if labels.iter().any(|l| label.strip_prefix(l).is_some_and(|after| after.starts_with("-----"))) {
            let end = label.find("-----END ").map_or(block.len(), |end| {
                let end = "-----BEGIN ".len() + end;
                block[end..].find('\n').map_or(block.len(), |newline| end + newline + 1)
            });
            return Some(&block[..end]);
        }
        rest = label;
    }
    None
}

impl SigningKey {
    /// Reads a PEM file: PKCS#8 (`PRIVATE KEY`), or the older `RSA PRIVATE KEY` and `EC PRIVATE KEY`. Other blocks
    /// before it are skipped.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        const LABELS: [&str; 4] = ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "ENCRYPTED PRIVATE KEY"];
        let block = pem_block(text, &LABELS).ok_or(KeyError::NoPem { wanted: "a private key" })?;
        if block.contains("Proc-Type: 4,ENCRYPTED") {
            return Err(KeyError::Encrypted);
        }
        let (label, der) = SecretDocument::from_pem(block).map_err(|e| malformed("private key", e))?;
        match label {
            "PRIVATE KEY" => Self::from_pkcs8_der(der.as_bytes()),
            "RSA PRIVATE KEY" => rsa::PrivateKey::from_pkcs1_der(der.as_bytes())
                .map(|key| Self(Private::Rsa(Box::new(key))))
                .map_err(|e| malformed("private key", e)),
            "EC PRIVATE KEY" => Self::from_sec1_der(der.as_bytes()),
            _ => Err(KeyError::Encrypted),
        }
    }

    /// Reads a key file in PEM, or in DER: PKCS#8, PKCS#1 (RSA) or SEC1 (EC).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        match std::str::from_utf8(bytes) {
            Ok(text) if text.contains("-----BEGIN ") => Self::from_pem(text),
            _ => Self::from_der(bytes),
        }
    }

    /// Reads a key in DER: PKCS#8, PKCS#1 (RSA) or SEC1 (EC).
    pub fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        // All three are a sequence that begins with a version; an encrypted key begins with another sequence.
        let Ok(first) = first_element(der) else { return Err(KeyError::NoPem { wanted: "a private key" }) };
        match first {
            Tag::Integer => {}
            Tag::Sequence if x509_cert::Certificate::from_der(der).is_err() => return Err(KeyError::Encrypted),
            _ => return Err(KeyError::NoPem { wanted: "a private key" }),
        }
        if PrivateKeyInfoRef::try_from(der).is_ok() {
            return Self::from_pkcs8_der(der);
        }
        match rsa::PrivateKey::from_pkcs1_der(der) {
            Ok(key) => Ok(Self(Private::Rsa(Box::new(key)))),
            Err(_) => Self::from_sec1_der(der),
        }
    }

    /// Reads an EC key in SEC1's form, which names its curve or has the length of the curve's keys.
    fn from_sec1_der(der: &[u8]) -> Result<Self, KeyError> {
        if let Ok(key) = p256::SecretKey::from_sec1_der(der) {
            return Ok(Self(Private::P256(Box::new(key.into()))));
        }
        if let Ok(key) = p384::SecretKey::from_sec1_der(der) {
            return Ok(Self(Private::P384(Box::new(key.into()))));
        }
        let key = p521::SecretKey::from_sec1_der(der).map_err(|e| malformed("private key", e))?;
        Ok(Self(Private::P521(Box::new(key.into()))))
    }

    /// Reads a PKCS#8 key in DER.
    pub fn from_pkcs8_der(der: &[u8]) -> Result<Self, KeyError> {
        let info = PrivateKeyInfoRef::try_from(der).map_err(|e| malformed("private key", e))?;
        if info.algorithm.oid == RSA_ENCRYPTION {
            let key = rsa::PrivateKey::try_from(info).map_err(|e| malformed("private key", e))?;
            return Ok(Self(Private::Rsa(Box::new(key))));
        }
        if info.algorithm.oid != EC_PUBLIC_KEY {
            return Err(KeyError::Unsupported { oid: info.algorithm.oid.to_string() });
        }
        let curve = info.algorithm.parameters_oid().map_err(|e| malformed("private key", e))?;
        if curve == P256 {
            let key = p256::SecretKey::try_from(info).map_err(|e| malformed("private key", e))?;
            Ok(Self(Private::P256(Box::new(key.into()))))
        } else if curve == P384 {
            let key = p384::SecretKey::try_from(info).map_err(|e| malformed("private key", e))?;
            Ok(Self(Private::P384(Box::new(key.into()))))
        } else if curve == P521 {
            let key = p521::SecretKey::try_from(info).map_err(|e| malformed("private key", e))?;
            Ok(Self(Private::P521(Box::new(key.into()))))
        } else {
            Err(KeyError::Unsupported { oid: curve.to_string() })
        }
    }

    /// Signs a message; `None` if the key cannot (an RSA key too small for the hash).
    pub(super) fn sign_with(&self, hash: SigHash, message: &[u8]) -> Option<Vec<u8>> {
        let digest = hash.of(message);
        match &self.0 {
            Private::Rsa(key) => match hash {
                SigHash::Sha256 => key.pkcs1v15_sign_prehash::<sha2::Sha256>(&digest),
                SigHash::Sha384 => key.pkcs1v15_sign_prehash::<sha2::Sha384>(&digest),
                SigHash::Sha512 => key.pkcs1v15_sign_prehash::<sha2::Sha512>(&digest),
            }
            .ok(),
            Private::P256(key) => {
                let signature: p256::ecdsa::Signature = key.sign_prehash(&digest).ok()?;
                Some(signature.to_der().as_bytes().to_vec())
            }
            Private::P384(key) => {
                let signature: p384::ecdsa::Signature = key.sign_prehash(&digest).ok()?;
                Some(signature.to_der().as_bytes().to_vec())
            }
            Private::P521(key) => {
                let signature: p521::ecdsa::Signature = key.sign_prehash(&for_p521(&digest)).ok()?;
                Some(signature.to_der().as_bytes().to_vec())
            }
        }
    }
}

const P256: x509_cert::der::asn1::ObjectIdentifier =
    x509_cert::der::asn1::ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P521: x509_cert::der::asn1::ObjectIdentifier = x509_cert::der::asn1::ObjectIdentifier::new_unwrap("1.3.132.0.35");
const P384: x509_cert::der::asn1::ObjectIdentifier = x509_cert::der::asn1::ObjectIdentifier::new_unwrap("1.3.132.0.34");

/// A hash as P-521 signs it: a number. The crate refuses one shorter than half the curve's order, such as SHA-256; zeros
/// in front do not change the number.
fn for_p521(digest: &[u8]) -> [u8; 66] {
    let mut number = [0; 66];
    let start = number.len().saturating_sub(digest.len());
    number[start..].copy_from_slice(digest);
    number
}

/// A signature as tokens make it, two numbers of the curve's length, in DER.
#[cfg(feature = "pkcs11")]
pub(super) fn ecdsa_der(signature: &[u8]) -> Option<Vec<u8>> {
    Some(match signature.len() {
        64 => p256::ecdsa::Signature::from_slice(signature).ok()?.to_der().as_bytes().to_vec(),
        96 => p384::ecdsa::Signature::from_slice(signature).ok()?.to_der().as_bytes().to_vec(),
        132 => p521::ecdsa::Signature::from_slice(signature).ok()?.to_der().as_bytes().to_vec(),
        _ => return None,
    })
}

/// The kind of the first element of the outer sequence.
fn first_element(der: &[u8]) -> Result<Tag, x509_cert::der::Error> {
    let mut reader = SliceReader::new(der)?;
    Header::decode(&mut reader)?;
    Tag::peek(&reader)
}

impl PublicKey {
    fn from_certificate(certificate: &x509_cert::Certificate) -> Result<Self, KeyError> {
        let spki = certificate.tbs_certificate().subject_public_key_info();
        let der = spki.to_der().map_err(|e| malformed("certificate", e))?;
        let spki = rsa::pkcs8::SubjectPublicKeyInfoRef::try_from(&der[..]).map_err(|e| malformed("certificate", e))?;
        if spki.algorithm.oid == RSA_ENCRYPTION {
            let key = rsa::PublicKey::try_from(spki).map_err(|e| malformed("certificate", e))?;
            return Ok(Self::Rsa(Box::new(key)));
        }
        if spki.algorithm.oid != EC_PUBLIC_KEY {
            return Err(KeyError::Unsupported { oid: spki.algorithm.oid.to_string() });
        }
        let curve = spki.algorithm.parameters_oid().map_err(|e| malformed("certificate", e))?;
        let point = spki.subject_public_key.raw_bytes();
        if curve == P256 {
            let key = p256::ecdsa::VerifyingKey::from_sec1_bytes(point).map_err(|e| malformed("certificate", e))?;
            Ok(Self::P256(Box::new(key)))
        } else if curve == P384 {
            let key = p384::ecdsa::VerifyingKey::from_sec1_bytes(point).map_err(|e| malformed("certificate", e))?;
            Ok(Self::P384(Box::new(key)))
        } else if curve == P521 {
            let key = p521::ecdsa::VerifyingKey::from_sec1_bytes(point).map_err(|e| malformed("certificate", e))?;
            Ok(Self::P521(Box::new(key)))
        } else {
            Err(KeyError::Unsupported { oid: curve.to_string() })
        }
    }

    pub(super) fn verify(&self, hash: SigHash, message: &[u8], signature: &[u8]) -> bool {
        let digest = hash.of(message);
        match self {
            Self::Rsa(key) => match hash {
                SigHash::Sha256 => key.pkcs1v15_verify_prehash::<sha2::Sha256>(&digest, signature),
                SigHash::Sha384 => key.pkcs1v15_verify_prehash::<sha2::Sha384>(&digest, signature),
                SigHash::Sha512 => key.pkcs1v15_verify_prehash::<sha2::Sha512>(&digest, signature),
            }
            .is_ok(),
            Self::P256(key) => p256::ecdsa::Signature::from_der(signature)
                .is_ok_and(|signature| key.verify_prehash(&digest, &signature).is_ok()),
            Self::P384(key) => p384::ecdsa::Signature::from_der(signature)
                .is_ok_and(|signature| key.verify_prehash(&digest, &signature).is_ok()),
            Self::P521(key) => p521::ecdsa::Signature::from_der(signature)
                .is_ok_and(|signature| key.verify_prehash(&for_p521(&digest), &signature).is_ok()),
        }
    }

    pub(super) fn is_rsa(&self) -> bool {
        matches!(self, Self::Rsa(_))
    }
}

/// An X.509 certificate whose key may sign files.
#[derive(Clone)]
pub struct Certificate {
    pub(super) inner: x509_cert::Certificate,
    pub(super) key: PublicKey,
}

impl Certificate {
    /// Reads the first certificate of a PEM file.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let block = pem_block(text, &["CERTIFICATE"]).ok_or(KeyError::NoPem { wanted: "a certificate" })?;
        let (_, der) = x509_cert::der::Document::from_pem(block).map_err(|e| malformed("certificate", e))?;
        Self::from_der(der.as_bytes())
    }

    /// Reads a certificate in DER.
    pub fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        let inner = x509_cert::Certificate::from_der(der).map_err(|e| malformed("certificate", e))?;
        let key = PublicKey::from_certificate(&inner)?;
        Ok(Self { inner, key })
    }

    /// Reads a certificate in either form.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        match std::str::from_utf8(bytes) {
            Ok(text) if text.contains("-----BEGIN ") => Self::from_pem(text),
            _ => Self::from_der(bytes),
        }
    }

    /// Whose certificate it is (RFC 4514).
    pub fn subject(&self) -> String {
        self.inner.tbs_certificate().subject().to_string()
    }

    /// The serial number, in hexadecimal.
    pub fn serial(&self) -> String {
        hex::encode(self.inner.tbs_certificate().serial_number().as_bytes())
    }

    pub(super) fn key_identifier(&self) -> Option<Vec<u8>> {
        let (_, ski) = self.inner.tbs_certificate().get_extension::<SubjectKeyIdentifier>().ok()??;
        Some(ski.0.as_bytes().to_vec())
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("subject", &self.subject()).field("serial", &self.serial()).finish()
    }
}
