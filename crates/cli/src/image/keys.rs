//! Keys from the command line: raw master keys, hardware-wrapped ones, passphrases.

use std::io::{self, IsTerminal, Read};
use std::path::Path;

use clap::Args;
use postread_fscrypt::{HwKdf, Keyring, MasterKey};
use zeroize::Zeroizing;

use super::{SecretFile, terminal};
use crate::exit::Failure;
use crate::input_file;
use crate::text::name_for_stderr;

/// More than any secret has.
const SECRET_MAX: u64 = 4096;

/// `--key`, `--hw-wrapped-key`, `--passphrase-file`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct KeyArgs {
    /// A raw master key, or a raw-key protector's; DESCRIPTOR=FILE for a v1 policy, - for standard input (repeatable)
    #[arg(long, value_name = "FILE", value_parser = clap::value_parser!(KeyFile))]
    key: Vec<KeyFile>,
    /// The raw form of a hardware-wrapped key, 32 bytes; every known derivation is tried (repeatable)
    #[arg(long, value_name = "FILE")]
    hw_wrapped_key: Vec<SecretFile>,
    /// A passphrase for the protectors in the image's /.fscrypt; - for standard input, without echo on a terminal
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<SecretFile>,
}

/// A key's file, and the descriptor that it is to be found under.
#[derive(Clone, Debug)]
pub(crate) struct KeyFile {
    descriptor: Option<[u8; 8]>,
    file: SecretFile,
}

impl From<std::ffi::OsString> for KeyFile {
    fn from(text: std::ffi::OsString) -> Self {
        use std::os::unix::ffi::{OsStrExt, OsStringExt};
        let bytes = text.as_bytes();
        // 16 hexadecimal digits and an equals sign; a file of such a name can be given as ./NAME.
        if let Some((digits, file)) = bytes.split_at_checked(16)
            && let Some(file) = file.strip_prefix(b"=")
            && let Ok(descriptor) = hex::decode(digits)
            && let Ok(descriptor) = descriptor.try_into()
        {
            let file = std::ffi::OsString::from_vec(file.to_vec()).into();
            return Self { descriptor: Some(descriptor), file };
        }
        Self { descriptor: None, file: text.into() }
    }
}

/// A master key that was given.
struct GivenKey {
    /// How messages name it.
    name: String,
    /// The descriptor that it is for, where it was given with one.
    descriptor: Option<[u8; 8]>,
    raw: Zeroizing<Vec<u8>>,
}

impl GivenKey {
    fn read(file: &Path, descriptor: Option<[u8; 8]>) -> Result<Self, Failure> {
        let name = if file.as_os_str() == "-" { "standard input".into() } else { name_for_stderr(file) };
        Ok(Self { name, descriptor, raw: read_secret(file)? })
    }

    fn bad(&self) -> impl Fn(postread_fscrypt::KeyError) -> Failure {
        move |error| Failure::usage(format!("{}: {error}", self.name))
    }
}

/// The secrets, read.
pub(crate) struct Secrets {
    keys: Vec<GivenKey>,
    hw_wrapped: Vec<GivenKey>,
    pub(crate) passphrase: Option<Zeroizing<Vec<u8>>>,
}

impl KeyArgs {
    /// Whether there is any.
    pub(crate) fn given(&self) -> bool {
        !self.key.is_empty() || !self.hw_wrapped_key.is_empty() || self.passphrase_file.is_some()
    }

    /// Reads them. From then on the process leaves no core dump.
    pub(crate) fn load(&self) -> Result<Secrets, Failure> {
        if self.given() {
            postread_sys::hardening::set_not_dumpable().map_err(Failure::environment)?;
        }
        let all = self.key.iter().map(|key| &key.file).chain(&self.hw_wrapped_key).chain(&self.passphrase_file);
        if all.filter(|file| file.as_os_str() == "-").count() > 1 {
            return Err(Failure::usage("only one secret can come from standard input"));
        }
        let keys = self.key.iter().map(|key| GivenKey::read(&key.file, key.descriptor));
        let hw_wrapped = self.hw_wrapped_key.iter().map(|file| GivenKey::read(file, None));
        let passphrase = match &self.passphrase_file {
            Some(file) if file.as_os_str() == "-" && io::stdin().is_terminal() => {
                terminal::ask("Passphrase: ").map_err(Failure::environment)?
            }
            Some(file) => Some(without_newline(read_secret(file)?)),
            None => None,
        };
        Ok(Secrets {
            keys: keys.collect::<Result<_, Failure>>()?,
            hw_wrapped: hw_wrapped.collect::<Result<_, Failure>>()?,
            passphrase,
        })
    }
}

impl Secrets {
    /// All keys as master keys.
    pub(crate) fn keyring(&self) -> Result<Keyring, Failure> {
        let mut keyring = Keyring::new();
        for key in &self.keys {
            let master = MasterKey::new(&key.raw).map_err(key.bad())?;
            match key.descriptor {
                Some(descriptor) => keyring.add_with_descriptor(descriptor, master),
                None => keyring.add(master),
            }
        }
        for key in &self.hw_wrapped {
            for kdf in HwKdf::ALL {
                keyring.add(MasterKey::hardware_wrapped(&key.raw, kdf).map_err(key.bad())?);
            }
        }
        Ok(keyring)
    }

    /// The keys that may be a raw-key protector's.
    pub(crate) fn raw_protector_keys(&self) -> impl Iterator<Item = &[u8; 32]> {
        self.keys.iter().filter(|key| key.descriptor.is_none()).filter_map(|key| key.raw.as_slice().try_into().ok())
    }

    /// Whether no secret was given.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.hw_wrapped.is_empty() && self.passphrase.is_none()
    }
}

/// Reads a secret, `-` from standard input.
pub(crate) fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let fail = |error: io::Error| Failure::environment(format!("{}: {error}", name_for_stderr(path)));
    // Room for all, so that growing leaves no copies behind.
    let mut secret = Zeroizing::new(Vec::with_capacity(SECRET_MAX as usize + 1));
    let read = |from: &mut dyn Read, secret: &mut Vec<u8>| from.take(SECRET_MAX + 1).read_to_end(secret);
    match path.as_os_str() == "-" {
        true => read(&mut io::stdin().lock(), &mut secret),
        false => read(&mut input_file::open(path)?, &mut secret),
    }
    .map_err(fail)?;
    if secret.len() as u64 > SECRET_MAX {
        let what = format!("{}: a secret has at most {SECRET_MAX} bytes", name_for_stderr(path));
        return Err(Failure::usage(what));
    }
    Ok(secret)
}

fn without_newline(mut secret: Zeroizing<Vec<u8>>) -> Zeroizing<Vec<u8>> {
    if secret.last() == Some(&b'\n') {
        secret.pop();
    }
    secret
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_may_stand_before_the_file() {
        let parse = |text: &str| KeyFile::from(std::ffi::OsString::from(text));
        let named = parse("0000111122223333=/k=1");
        assert_eq!(named.descriptor, Some([0, 0, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33]));
        assert_eq!(named.file, Path::new("/k=1"));
        for plain in ["-", "key", "000011112222333=k", "zzzz111122223333=k", "./0000111122223333=k"] {
            assert!(parse(plain).descriptor.is_none());
            assert_eq!(parse(plain).file, Path::new(plain));
        }
    }
}
