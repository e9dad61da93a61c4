//! `pkcs11:` URIs (RFC 7512): which key of which token, and where its module and PIN are.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use zeroize::Zeroizing;

/// Which key of which token. An attribute that is absent matches anything.
#[derive(Clone, Default)]
pub struct Pkcs11Uri {
    /// Label of the token.
    pub token: Option<String>,
    /// Manufacturer of the token.
    pub manufacturer: Option<String>,
    /// Model of the token.
    pub model: Option<String>,
    /// Serial number of the token.
    pub serial: Option<String>,
    /// Number of the slot.
    pub slot: Option<u64>,
    /// Label of the key (`CKA_LABEL`).
    pub object: Option<String>,
    /// Identifier of the key (`CKA_ID`), which its certificate shares.
    pub id: Option<Vec<u8>>,
    /// The module to load: a path, or a name that the dynamic linker looks for.
    pub module: Option<PathBuf>,
    /// The PIN itself.
    pub pin: Option<Zeroizing<String>>,
    /// The file that holds the PIN.
    pub pin_file: Option<PathBuf>,
}

/// Without the PIN.
impl fmt::Debug for Pkcs11Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pkcs11Uri")
            .field("token", &self.token)
            .field("object", &self.object)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Why a text is not the URI of a private key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Pkcs11UriError {
    /// It has another scheme.
    #[error("a PKCS#11 URI begins with \"pkcs11:\"")]
    Scheme,
    /// An attribute without a value. Its text may be a PIN and is not part of the message.
    #[error("PKCS#11 URI: attribute {number} of the {part}: expected NAME=VALUE, found no '='")]
    NoValue {
        /// Path, or query: what follows the question mark.
        part: &'static str,
        /// The attribute's position, from 1.
        number: usize,
    },
    /// The URI has both a `pin-value` and a `pin-source`, which RFC 7512 forbids.
    #[error("PKCS#11 URI: pin-value and pin-source exclude each other")]
    TwoPins,
    /// An attribute that says something unknown about the key, so that another key might match.
    #[error("PKCS#11 URI: unknown attribute {name:?}")]
    Unknown {
        /// Its name.
        name: String,
    },
    /// An attribute that comes twice.
    #[error("PKCS#11 URI: the attribute {name} comes twice")]
    Twice {
        /// Its name.
        name: String,
    },
    /// A value that cannot be one of this attribute.
    #[error("PKCS#11 URI: bad value of {name}: expected {expected}")]
    Value {
        /// The attribute's name.
        name: String,
        /// What its values are.
        expected: &'static str,
    },
}

impl FromStr for Pkcs11Uri {
    type Err = Pkcs11UriError;

    fn from_str(text: &str) -> Result<Self, Pkcs11UriError> {
        let has_scheme = text.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("pkcs11:"));
        let rest = text.get(7..).filter(|_| has_scheme).ok_or(Pkcs11UriError::Scheme)?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut uri = Self::default();
        for (at, attribute) in path.split(';').enumerate().filter(|(_, attribute)| !attribute.is_empty()) {
            let (name, value) = split(attribute, "path", at)?;
            match name {
                "token" => put(&mut uri.token, name, decoded_text(name, value)?)?,
                "manufacturer" => put(&mut uri.manufacturer, name, decoded_text(name, value)?)?,
                "model" => put(&mut uri.model, name, decoded_text(name, value)?)?,
                "serial" => put(&mut uri.serial, name, decoded_text(name, value)?)?,
                "object" => put(&mut uri.object, name, decoded_text(name, value)?)?,
                "id" => put(&mut uri.id, name, decoded(name, value)?)?,
                "slot-id" => {
                    let slot = value.parse().map_err(|_| bad(name, "a decimal number"))?;
                    put(&mut uri.slot, name, slot)?;
                }
                // The other two of a key: what shares its label and identifier.
                "type" if matches!(value, "private" | "public" | "cert") => {}
                "type" => return Err(bad(name, "private")),
                _ => return Err(Pkcs11UriError::Unknown { name: name.to_owned() }),
            }
        }
        for (at, attribute) in query.split('&').enumerate().filter(|(_, attribute)| !attribute.is_empty()) {
            let (name, value) = split(attribute, "query", at)?;
            match name {
                "module-path" => put(&mut uri.module, name, decoded_text(name, value)?.into())?,
                "module-name" => {
                    put(&mut uri.module, name, format!("lib{}.so", decoded_text(name, value)?).into())?;
                }
                "pin-value" => put(&mut uri.pin, name, Zeroizing::new(decoded_text(name, value)?))?,
                "pin-source" => {
                    let file = decoded_text(name, value)?;
                    if file.starts_with('|') {
                        return Err(bad(name, "a file, not a program"));
                    }
                    let file = file.strip_prefix("file://").or_else(|| file.strip_prefix("file:")).unwrap_or(&file);
                    put(&mut uri.pin_file, name, file.into())?;
                }
                // They do not change which key it is.
                _ => {}
            }
        }
        if uri.pin.is_some() && uri.pin_file.is_some() {
            return Err(Pkcs11UriError::TwoPins);
        }
        Ok(uri)
    }
}

fn split<'a>(attribute: &'a str, part: &'static str, at: usize) -> Result<(&'a str, &'a str), Pkcs11UriError> {
    attribute.split_once('=').ok_or(Pkcs11UriError::NoValue { part, number: at + 1 })
}

fn put<T>(to: &mut Option<T>, name: &str, value: T) -> Result<(), Pkcs11UriError> {
    match to.replace(value) {
        None => Ok(()),
        Some(_) => Err(Pkcs11UriError::Twice { name: name.to_owned() }),
    }
}

fn bad(name: &str, expected: &'static str) -> Pkcs11UriError {
    Pkcs11UriError::Value { name: name.to_owned(), expected }
}

fn decoded(name: &str, value: &str) -> Result<Vec<u8>, Pkcs11UriError> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let byte = rest.split_at_checked(2).and_then(|(digits, after)| {
            rest = after;
            hex::decode(digits).ok()
        });
        bytes.extend(byte.ok_or_else(|| bad(name, "two hexadecimal digits after each %"))?);
    }
    Ok(bytes)
}

fn decoded_text(name: &str, value: &str) -> Result<String, Pkcs11UriError> {
    String::from_utf8(decoded(name, value)?).map_err(|_| bad(name, "text in UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Pkcs11Uri, Pkcs11UriError> {
        text.parse()
    }

    /// The examples of RFC 7512, section 3, that name a private key.
    #[test]
    fn the_rfc_s_examples() {
        let uri = parsed(
            "pkcs11:token=The%20Software%20PKCS%2311%20Softtoken;manufacturer=Snake%20Oil,%20Inc.;model=1.0;object=my-certificate;type=cert;id=%69%95%3E%5C%F4%BD%EC%91;serial=?pin-source=file:/etc/token_pin",
        )
        .unwrap();
        assert_eq!(uri.token.as_deref(), Some("The Software PKCS#11 Softtoken"));
        assert_eq!((uri.manufacturer.as_deref(), uri.model.as_deref()), (Some("Snake Oil, Inc."), Some("1.0")));
        assert_eq!((uri.object.as_deref(), uri.serial.as_deref()), (Some("my-certificate"), Some("")));
        assert_eq!(uri.id.as_deref(), Some(&b"\x69\x95\x3e\x5c\xf4\xbd\xec\x91"[..]));
        assert_eq!(uri.pin_file.as_deref(), Some("/etc/token_pin".as_ref()));
        let uri = parsed("pkcs11:object=my-sign-key;type=private?module-name=mypkcs11").unwrap();
        assert_eq!(uri.module.as_deref(), Some("libmypkcs11.so".as_ref()));
        let uri =
            parsed("pkcs11:slot-id=327691;token=a?module-path=/mnt/libmypkcs11.so.1&pin-value=the%2fpin").unwrap();
        assert_eq!((uri.slot, uri.pin.as_deref().map(String::as_str)), (Some(327_691), Some("the/pin")));
        assert!(parsed("pkcs11:").is_ok() && parsed("PKCS11:;?&").is_ok());
        assert!(!format!("{:?}", uri).contains("the/pin"));
    }

    #[test]
    fn what_is_no_uri_of_a_key() {
        for (text, wanted) in [
            ("", "begins with"),
            ("pkcs1", "begins with"),
            ("http://x", "begins with"),
            ("pkcs11:id=%01;token", "attribute 2 of the path: expected NAME=VALUE"),
            ("pkcs11:?secret", "attribute 1 of the query: expected NAME=VALUE"),
            ("pkcs11:?pin-value=secret&pin-source=file:p", "exclude each other"),
            ("pkcs11:tokn=a", "unknown attribute \"tokn\""),
            ("pkcs11:token=a;token=b", "token comes twice"),
            ("pkcs11:id=%0", "bad value of id: expected two"),
            ("pkcs11:id=%zz", "bad value of id: expected two"),
            ("pkcs11:object=%ff", "bad value of object: expected text"),
            ("pkcs11:slot-id=-1", "bad value of slot-id"),
            ("pkcs11:type=secret-key", "bad value of type: expected private"),
            ("pkcs11:?pin-source=|cat", "expected a file, not a program"),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
            assert!(!error.contains("secret") || text.contains("secret-key"), "{text}: {error}");
        }
    }
}
