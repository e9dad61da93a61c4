//! Keys that never leave a token: a smart card, a hardware security module, or SoftHSM, through PKCS#11.

use std::path::{Path, PathBuf};

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error as CkError, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::object::{Attribute, AttributeType, CertificateType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::{Slot, TokenInfo};
use cryptoki::types::RawAuthPin;
use zeroize::Zeroizing;

use super::SigHash;
use super::keys::{Certificate, KeyError, ecdsa_der};
use super::pkcs11_uri::Pkcs11Uri;
use super::sign::{SignError, Signer};

/// The module that passes on to all modules that p11-kit knows of.
const DEFAULT_MODULE: &str = "p11-kit-proxy.so";

/// Why a token's key could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The module is not there, or is none.
    #[error("PKCS#11 module {}: {detail}", path.display())]
    Module {
        /// What was loaded.
        path: PathBuf,
        /// What the dynamic linker or the module reported.
        detail: String,
    },
    /// No token matches.
    #[error("no such token; {}", if found.is_empty() { "the module has none".into() } else { format!("tokens found: {}", found.join(", ")) })]
    NoToken {
        /// The labels of those that are there.
        found: Vec<String>,
    },
    /// Several tokens match.
    #[error("several tokens match: {}; add token= or serial= to the URI", found.join(", "))]
    ManyTokens {
        /// Their labels and serial numbers.
        found: Vec<String>,
    },
    /// The token has no such private key.
    #[error("token {token:?} has no such private key; {}", if found.is_empty() { "it has none".into() } else { format!("keys found: {}", found.join(", ")) })]
    NoKey {
        /// The token's label.
        token: String,
        /// Labels and identifiers of those that are there.
        found: Vec<String>,
    },
    /// It has several that match.
    #[error("{count} private keys of token {token:?} match; add object= or id= to the URI")]
    ManyKeys {
        /// The token's label.
        token: String,
        /// How many.
        count: usize,
    },
    /// The token has no certificate with the key's identifier.
    #[error("token {token:?} has no certificate for this key: give one in a file")]
    NoCertificate {
        /// The token's label.
        token: String,
    },
    /// The certificate on the token can't be used.
    #[error("the certificate on token {token:?}: {error}")]
    Certificate {
        /// The token's label.
        token: String,
        /// Why not.
        error: KeyError,
    },
    /// The token wants a PIN, and none was given.
    #[error("token {token:?} needs a PIN")]
    PinNeeded {
        /// The token's label.
        token: String,
    },
    /// The PIN is not the token's.
    #[error("wrong PIN of token {token:?}")]
    PinWrong {
        /// The token's label.
        token: String,
    },
    /// Too many wrong PINs were tried.
    #[error("the PIN of token {token:?} is locked")]
    PinLocked {
        /// The token's label.
        token: String,
    },
    /// A kind of key that is not supported.
    #[error("unsupported kind of key (supported: RSA, and EC on P-256, P-384 and P-521)")]
    KeyKind,
    /// The token has no mechanism for such a signature.
    #[error("token {token:?} cannot sign with {hash:?}: it refuses {mechanisms}")]
    Mechanism {
        /// The token's label.
        token: String,
        /// The hash algorithm.
        hash: SigHash,
        /// The mechanisms that were tried.
        mechanisms: String,
    },
    /// The token refused.
    #[error("PKCS#11: {detail}")]
    Refused {
        /// The function that failed, and its answer.
        detail: String,
    },
}

fn refused(error: CkError) -> TokenError {
    // The names that the standard and the modules' documentation use; the crate's text is a paragraph of the standard.
    TokenError::Refused {
        detail: match error {
            CkError::Pkcs11(code, function) => format!("C_{function:?}: {code:?}"),
            other => other.to_string(),
        },
    }
}

/// A private key of a token, opened with its PIN.
#[derive(Debug)]
pub struct TokenKey {
    session: Session,
    key: ObjectHandle,
    rsa: bool,
    token: String,
    id: Vec<u8>,
    /// For keys that want it for every signature.
    pin: Option<Pin>,
}

/// A PIN, zeroed when dropped and absent from `Debug`.
#[derive(Clone)]
pub struct Pin(Zeroizing<Vec<u8>>);

impl Pin {
    /// From its bytes.
    pub fn new(bytes: Zeroizing<Vec<u8>>) -> Self {
        Self(bytes)
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pin").finish_non_exhaustive()
    }
}

impl TokenKey {
    /// Opens the one key that `uri` names. `module` takes precedence over the URI's, and p11-kit's is used without either.
    /// `ask` is called with the token's label where it wants a PIN.
    ///
    /// # Errors
    /// Where the module can't be loaded, the token or the key is not there or not the only one that matches, or the PIN is
    /// missing or wrong.
    pub fn open<E: From<TokenError>>(
        uri: &Pkcs11Uri,
        module: Option<&Path>,
        ask: impl FnOnce(&str) -> Result<Option<Pin>, E>,
    ) -> Result<Self, E> {
        let path = module.or(uri.module.as_deref()).unwrap_or(Path::new(DEFAULT_MODULE));
        let context = load(path)?;
        let (slot, info) = find_token(&context, uri)?;
        let token = info.label().to_owned();
        let session = context.open_ro_session(slot).map_err(refused)?;
        let mut pin = None;
        if info.login_required() {
            pin = match info.protected_authentication_path() {
                // The reader has keys of its own.
                true => None,
                // An empty PIN is not tried: that would cost one of the few tries that most tokens allow.
                false => Some(
                    ask(&token)?
                        .filter(|pin| !pin.0.is_empty())
                        .ok_or_else(|| TokenError::PinNeeded { token: token.clone() })?,
                ),
            };
            log_in(&session, UserType::User, pin.as_ref(), &token)?;
        }
        let key = find_key(&session, uri, &token)?;
        let wanted = [AttributeType::KeyType, AttributeType::Id, AttributeType::AlwaysAuthenticate];
        let attributes = session.get_attributes(key, &wanted).map_err(refused)?;
        let rsa = match attributes.iter().find_map(|attribute| match attribute {
            Attribute::KeyType(kind) => Some(*kind),
            _ => None,
        }) {
            Some(KeyType::RSA) => true,
            Some(KeyType::EC) => false,
            _ => return Err(TokenError::KeyKind.into()),
        };
        let always = attributes.iter().any(|attribute| matches!(attribute, Attribute::AlwaysAuthenticate(true)));
        let id = attributes.into_iter().find_map(|attribute| match attribute {
            Attribute::Id(id) => Some(id),
            _ => None,
        });
        Ok(Self { session, key, rsa, token, id: id.unwrap_or_default(), pin: pin.filter(|_| always) })
    }

    /// The certificate that has the key's identifier on the token.
    ///
    /// # Errors
    /// Where there is none, or it can't be used.
    pub fn certificate(&self) -> Result<Certificate, TokenError> {
        let template = [
            Attribute::Class(ObjectClass::CERTIFICATE),
            Attribute::CertificateType(CertificateType::X_509),
            Attribute::Id(self.id.clone()),
        ];
        let found = self.session.find_objects(&template).map_err(refused)?;
        let none = || TokenError::NoCertificate { token: self.token.clone() };
        let object = *found.first().ok_or_else(none)?;
        let value = self.session.get_attributes(object, &[AttributeType::Value]).map_err(refused)?;
        let value = value.into_iter().find_map(|attribute| match attribute {
            Attribute::Value(value) => Some(value),
            _ => None,
        });
        Certificate::from_der(&value.ok_or_else(none)?)
            .map_err(|error| TokenError::Certificate { token: self.token.clone(), error })
    }
}

fn load(path: &Path) -> Result<Pkcs11, TokenError> {
    let failed = |error: CkError| TokenError::Module { path: path.to_owned(), detail: error.to_string() };
    let context = Pkcs11::new(path).map_err(failed)?;
    match context.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
        // By something else in this process.
        Ok(()) | Err(CkError::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => Ok(context),
        Err(error) => Err(failed(error)),
    }
}

fn find_token(context: &Pkcs11, uri: &Pkcs11Uri) -> Result<(Slot, TokenInfo), TokenError> {
    let (mut matching, mut others) = (Vec::new(), Vec::new());
    for slot in context.get_slots_with_token().map_err(refused)? {
        // A token that does not answer is none.
        let Ok(info) = context.get_token_info(slot) else { continue };
        let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let matches = info.token_initialized()
            && is(&uri.token, info.label())
            && is(&uri.manufacturer, info.manufacturer_id())
            && is(&uri.model, info.model())
            && is(&uri.serial, info.serial_number())
            && uri.slot.is_none_or(|id| id == slot.id());
        match matches {
            true => matching.push((slot, info)),
            false if info.token_initialized() => others.push(format!("{:?}", info.label())),
            false => {}
        }
    }
    match matching.len() {
        1 => Ok(matching.remove(0)),
        0 => Err(TokenError::NoToken { found: others }),
        _ => {
            let name = |(_, info): &(Slot, TokenInfo)| format!("{:?} (serial {})", info.label(), info.serial_number());
            Err(TokenError::ManyTokens { found: matching.iter().map(name).collect() })
        }
    }
}

fn log_in(session: &Session, user: UserType, pin: Option<&Pin>, token: &str) -> Result<(), TokenError> {
    let result = match pin {
        None => session.login(user, None),
        Some(pin) => session.login_with_raw(user, &RawAuthPin::new(Box::new(pin.0.to_vec()))),
    };
    let token = || token.to_owned();
    match result {
        Ok(()) | Err(CkError::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok(()),
        Err(CkError::Pkcs11(RvError::PinIncorrect | RvError::PinLenRange | RvError::PinInvalid, _)) => {
            Err(TokenError::PinWrong { token: token() })
        }
        Err(CkError::Pkcs11(RvError::PinLocked, _)) => Err(TokenError::PinLocked { token: token() }),
        Err(error) => Err(refused(error)),
    }
}

fn find_key(session: &Session, uri: &Pkcs11Uri, token: &str) -> Result<ObjectHandle, TokenError> {
    let mut template = vec![Attribute::Class(ObjectClass::PRIVATE_KEY)];
    template.extend(uri.object.as_ref().map(|label| Attribute::Label(label.as_bytes().to_vec())));
    template.extend(uri.id.as_ref().map(|id| Attribute::Id(id.clone())));
    let found = session.find_objects(&template).map_err(refused)?;
    match found[..] {
        [key] => Ok(key),
        [] => Err(TokenError::NoKey { token: token.to_owned(), found: private_keys(session)? }),
        _ => Err(TokenError::ManyKeys { token: token.to_owned(), count: found.len() }),
    }
}

/// Labels and identifiers of all private keys.
fn private_keys(session: &Session) -> Result<Vec<String>, TokenError> {
    let mut names = Vec::new();
    for key in session.find_objects(&[Attribute::Class(ObjectClass::PRIVATE_KEY)]).map_err(refused)? {
        let (mut label, mut id) = (String::new(), String::new());
        for attribute in session.get_attributes(key, &[AttributeType::Label, AttributeType::Id]).map_err(refused)? {
            match attribute {
                Attribute::Label(bytes) => label = String::from_utf8_lossy(&bytes).into_owned(),
                Attribute::Id(bytes) => id = bytes.iter().map(|byte| format!("%{byte:02x}")).collect(),
                _ => {}
            }
        }
        names.push(format!("{label:?} (id {id})"));
    }
    names.sort();
    Ok(names)
}

/// `DigestInfo` of a hash in DER, up to the hash (RFC 8017, section 9.2, note 1).
fn digest_info(hash: SigHash) -> [u8; 19] {
    let (kind, len) = match hash {
        SigHash::Sha256 => (1, 32),
        SigHash::Sha384 => (2, 48),
        SigHash::Sha512 => (3, 64),
    };
    let oid = [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, kind];
    let mut info = [0x30, 17 + len, 0x30, 13, 0x06, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x05, 0, 0x04, len];
    info[6..15].copy_from_slice(&oid);
    info
}

impl TokenKey {
    /// The mechanism that signs a hash, and the one that hashes too.
    fn mechanisms(&self, hash: SigHash) -> (Mechanism<'static>, Mechanism<'static>) {
        match (self.rsa, hash) {
            (true, SigHash::Sha256) => (Mechanism::RsaPkcs, Mechanism::Sha256RsaPkcs),
            (true, SigHash::Sha384) => (Mechanism::RsaPkcs, Mechanism::Sha384RsaPkcs),
            (true, SigHash::Sha512) => (Mechanism::RsaPkcs, Mechanism::Sha512RsaPkcs),
            (false, SigHash::Sha256) => (Mechanism::Ecdsa, Mechanism::EcdsaSha256),
            (false, SigHash::Sha384) => (Mechanism::Ecdsa, Mechanism::EcdsaSha384),
            (false, SigHash::Sha512) => (Mechanism::Ecdsa, Mechanism::EcdsaSha512),
        }
    }

    /// A signature by a key that wants its PIN each time: that comes after the start, and mechanisms that do not hash
    /// can't be started on their own.
    fn sign_after_log_in(&self, pin: &Pin, hash: SigHash, message: &[u8]) -> Result<Vec<u8>, TokenError> {
        let (_, hashing) = self.mechanisms(hash);
        self.session.sign_init(&hashing, self.key).map_err(|error| match is_unknown_mechanism(&error) {
            true => self.no_mechanism(hash, &[hashing]),
            false => refused(error),
        })?;
        log_in(&self.session, UserType::ContextSpecific, Some(pin), &self.token)?;
        self.session.sign_update(message).map_err(refused)?;
        self.session.sign_final().map_err(refused)
    }

    /// A signature by the mechanism that every smart card has, or where it is switched off, by the one that hashes too.
    fn sign_at_once(&self, hash: SigHash, message: &[u8]) -> Result<Vec<u8>, TokenError> {
        let (plain, hashing) = self.mechanisms(hash);
        let mut input = if self.rsa { digest_info(hash).to_vec() } else { Vec::new() };
        input.extend(hash.of(message));
        match self.session.sign(&plain, self.key, &input) {
            Err(error) if is_unknown_mechanism(&error) => {}
            result => return result.map_err(refused),
        }
        self.session.sign(&hashing, self.key, message).map_err(|error| match is_unknown_mechanism(&error) {
            true => self.no_mechanism(hash, &[plain, hashing]),
            false => refused(error),
        })
    }

    fn no_mechanism(&self, hash: SigHash, tried: &[Mechanism<'_>]) -> TokenError {
        let names: Vec<_> = tried.iter().map(|mechanism| mechanism.mechanism_type().to_string()).collect();
        TokenError::Mechanism { token: self.token.clone(), hash, mechanisms: names.join(" and ") }
    }
}

fn is_unknown_mechanism(error: &CkError) -> bool {
    matches!(error, CkError::Pkcs11(RvError::MechanismInvalid, _))
}

impl Signer for TokenKey {
    fn sign(&self, hash: SigHash, message: &[u8]) -> Result<Vec<u8>, SignError> {
        let signature = match &self.pin {
            Some(pin) => self.sign_after_log_in(pin, hash, message)?,
            None => self.sign_at_once(hash, message)?,
        };
        match self.rsa {
            true => Ok(signature),
            false => ecdsa_der(&signature).ok_or(SignError::Token(TokenError::KeyKind)),
        }
    }
}
