//! The key that `postread sign` signs with, and its certificate: files, or a PKCS#11 token.

use std::path::{Path, PathBuf};

use clap::Args;
use postread::files::read_whole;
use postread_verity::signature::{Certificate, KeyError, SignError, Signer, SigningKey};
#[cfg(feature = "pkcs11")]
use postread_verity::signature::{Pin, Pkcs11Uri, Pkcs11UriError, TokenError, TokenKey};
use zeroize::Zeroizing;

use crate::exit::{Failure, Outcome};
#[cfg(feature = "pkcs11")]
use crate::image::terminal;
use crate::text::name_for_stderr;

/// More than the file of any key or certificate has, in bytes.
const KEY_MAX: usize = 1 << 20;
/// More than any PIN has, in bytes.
#[cfg(feature = "pkcs11")]
const PIN_MAX: usize = 4096;

#[derive(Args, Debug)]
pub(crate) struct KeyArgs {
    /// Private key, PEM or DER (RSA, or EC on P-256, P-384 or P-521), not encrypted
    #[arg(long, value_name = "KEYFILE")]
    #[cfg_attr(feature = "pkcs11", arg(required_unless_present_any = ["pkcs11_uri", "pkcs11_module"]))]
    #[cfg_attr(feature = "pkcs11", arg(conflicts_with_all = ["pkcs11_uri", "pkcs11_module"]))]
    #[cfg_attr(not(feature = "pkcs11"), arg(required = true))]
    key: Option<PathBuf>,
    /// Its certificate, PEM or DER [default: the one in KEYFILE, or on the token]
    #[arg(long, value_name = "CERTFILE")]
    cert: Option<PathBuf>,
    /// Private key on a PKCS#11 token, for example "pkcs11:token=T;object=K?pin-source=file:PIN"
    #[cfg(feature = "pkcs11")]
    #[arg(long, value_name = "URI", visible_alias = "pkcs11-keyid", value_parser = clap::value_parser!(GivenUri))]
    pkcs11_uri: Option<GivenUri>,
    /// The token's PKCS#11 module [default: module-path of the URI, or p11-kit's modules]
    #[cfg(feature = "pkcs11")]
    #[arg(long, value_name = "FILE")]
    pkcs11_module: Option<PathBuf>,
    /// OpenSSL's engine, without which `fsverity sign` cannot use a token
    #[cfg(feature = "pkcs11")]
    #[arg(long, value_name = "FILE", hide = true)]
    pkcs11_engine: Option<PathBuf>,
}

/// A URI from the command line. It parses whatever is given: where parsing fails, clap prints the value, PIN and all.
#[cfg(feature = "pkcs11")]
#[derive(Clone, Debug)]
struct GivenUri(Result<Box<Pkcs11Uri>, Pkcs11UriError>);

#[cfg(feature = "pkcs11")]
impl From<String> for GivenUri {
    fn from(text: String) -> Self {
        let text = Zeroizing::new(text);
        Self(text.parse().map(Box::new))
    }
}

/// A failure with the name of a file before it.
pub(super) fn about(path: &Path, outcome: Outcome) -> impl Fn(&dyn std::fmt::Display) -> Failure + '_ {
    move |error| Failure::new(outcome, format!("{}: {error}", name_for_stderr(path)))
}

/// A file without a usable key is malformed input; of an encrypted key, the passphrase is missing.
fn outcome_of(error: &KeyError) -> Outcome {
    if matches!(error, KeyError::Encrypted) { Outcome::Key } else { Outcome::Usage }
}

/// Why nothing was signed.
pub(crate) fn failed(error: SignError) -> Failure {
    match error {
        #[cfg(feature = "pkcs11")]
        SignError::Token(error) => token_failed(&error),
        error => Failure::new(Outcome::Key, error),
    }
}

impl KeyArgs {
    /// The files that are read, with the names of their options.
    pub(crate) fn inputs(&self) -> Vec<(&'static str, &Path)> {
        let mut inputs: Vec<(&str, &Path)> = Vec::new();
        inputs.extend(self.key.as_deref().map(|path| ("--key", path)));
        inputs.extend(self.cert.as_deref().map(|path| ("--cert", path)));
        #[cfg(feature = "pkcs11")]
        {
            let uri = self.pkcs11_uri.as_ref().and_then(|given| given.0.as_deref().ok());
            inputs.extend(uri.and_then(|uri| Some(("pin-source", uri.pin_file.as_deref()?))));
            let module = self.pkcs11_module.as_deref().or(uri.and_then(|uri| uri.module.as_deref()));
            // One without a directory is not looked for in the current one.
            let module = module.filter(|module| module.components().nth(1).is_some());
            inputs.extend(module.map(|module| ("the PKCS#11 module", module)));
        }
        inputs
    }

    /// The URI of the key, if it is on a token. A module alone stands for its only key.
    #[cfg(feature = "pkcs11")]
    fn uri(&self) -> Result<Option<Box<Pkcs11Uri>>, Failure> {
        if self.pkcs11_engine.is_some() {
            let message = "--pkcs11-engine: not needed, the module is loaded without OpenSSL: leave this option out";
            return Err(Failure::usage(message));
        }
        match &self.pkcs11_uri {
            Some(GivenUri(Ok(uri))) => Ok(Some(uri.clone())),
            Some(GivenUri(Err(error))) => Err(Failure::usage(error)),
            None => Ok(self.pkcs11_module.as_ref().map(|_| Box::default())),
        }
    }

    pub(crate) fn load(&self) -> Result<(Box<dyn Signer>, Certificate), Failure> {
        #[cfg(feature = "pkcs11")]
        let uri = self.uri()?;
        let cert = self.cert.as_deref().map(read_certificate).transpose()?;
        #[cfg(feature = "pkcs11")]
        if let Some(uri) = uri {
            let key = TokenKey::open(&uri, self.pkcs11_module.as_deref(), |token| read_pin(&uri, token))?;
            let cert = cert.map_or_else(|| key.certificate(), Ok);
            return Ok((Box::new(key), cert.map_err(|error| token_failed(&error))?));
        }
        let Some(file) = &self.key else { return Err(Failure::usage("no key to sign with: give --key")) };
        let key = Zeroizing::new(read_whole(file, KEY_MAX, "a key's file")?);
        let key = SigningKey::from_bytes(&key).map_err(|error| about(file, outcome_of(&error))(&error))?;
        Ok((Box::new(key), cert.map_or_else(|| read_certificate(file), Ok)?))
    }
}

pub(crate) fn read_certificate(file: &Path) -> Result<Certificate, Failure> {
    let cert = read_whole(file, KEY_MAX, "a certificate's file")?;
    Certificate::from_bytes(&cert).map_err(|error| about(file, outcome_of(&error))(&error))
}

#[cfg(feature = "pkcs11")]
impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        token_failed(&error)
    }
}

#[cfg(feature = "pkcs11")]
fn token_failed(error: &TokenError) -> Failure {
    let (outcome, remedy) = match error {
        TokenError::Module { .. } => (Outcome::Environment, ": give the token's module with --pkcs11-module"),
        TokenError::ManyTokens { .. } | TokenError::ManyKeys { .. } | TokenError::KeyKind => (Outcome::Usage, ""),
        TokenError::NoCertificate { .. } => (Outcome::Usage, " with --cert"),
        TokenError::PinNeeded { .. } => (Outcome::Key, ": add pin-source=file:PATH after a ? to the URI"),
        TokenError::NoToken { .. }
        | TokenError::NoKey { .. }
        | TokenError::PinWrong { .. }
        | TokenError::PinLocked { .. }
        | TokenError::Mechanism { .. }
        | TokenError::Certificate { .. } => (Outcome::Key, ""),
        _ => (Outcome::Environment, ""),
    };
    Failure::new(outcome, format!("{error}{remedy}"))
}

/// The PIN out of the URI or the file that it names, or from the terminal.
#[cfg(feature = "pkcs11")]
fn read_pin(uri: &Pkcs11Uri, token: &str) -> Result<Option<Pin>, Failure> {
    if let Some(pin) = &uri.pin {
        return Ok(Some(Pin::new(Zeroizing::new(pin.as_bytes().to_vec()))));
    }
    if let Some(file) = &uri.pin_file {
        let mut pin = Zeroizing::new(read_whole(file, PIN_MAX, "a PIN's file")?);
        let line = pin.iter().position(|&byte| matches!(byte, b'\n' | b'\r')).unwrap_or(pin.len());
        pin.truncate(line);
        if pin.is_empty() {
            let message = format!("{}: expected a PIN in the first line, found nothing", name_for_stderr(file));
            return Err(Failure::usage(message));
        }
        return Ok(Some(Pin::new(pin)));
    }
    // Without a terminal there is nobody to ask.
    let prompt = format!("PIN of token {}: ", crate::text::escape_controls(token.as_bytes()));
    Ok(terminal::ask(&prompt).ok().flatten().map(Pin::new))
}
