//! Keys and passphrases from the caller.

use postread_fscrypt::{HwKdf, KeyError, Keyring, MasterKey};
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};

type Secret = Zeroizing<Vec<u8>>;

/// Master keys and passphrases. They are wiped when dropped.
#[derive(Clone, Default)]
pub struct Keys {
    /// With the descriptor that a key was given for.
    raw: Vec<(Option<[u8; 8]>, Secret)>,
    hw_wrapped: Vec<Secret>,
    passphrases: Vec<Secret>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (raw, hw_wrapped, passphrases) = (self.raw.len(), self.hw_wrapped.len(), self.passphrases.len());
        write!(f, "Keys({raw} raw, {hw_wrapped} hardware-wrapped, {passphrases} passphrases)")
    }
}

fn bad(error: KeyError) -> Error {
    Error::caused_by(ErrorKind::InvalidInput, error)
}

impl Keys {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a raw master key. One of 32 bytes is also tried on raw-key protectors of the `fscrypt` tool.
    ///
    /// # Errors
    /// If no key has that length.
    pub fn add(&mut self, raw: &[u8]) -> Result<()> {
        MasterKey::new(raw).map_err(bad)?;
        self.raw.push((None, Zeroizing::new(raw.to_vec())));
        Ok(())
    }

    /// Adds a raw master key for v1 policies that name it by an arbitrary descriptor.
    ///
    /// # Errors
    /// If no key has that length.
    pub fn add_for_descriptor(&mut self, descriptor: [u8; 8], raw: &[u8]) -> Result<()> {
        MasterKey::new(raw).map_err(bad)?;
        self.raw.push((Some(descriptor), Zeroizing::new(raw.to_vec())));
        Ok(())
    }

    /// Adds the raw form of a hardware-wrapped key, 32 bytes. Every known derivation is tried.
    ///
    /// # Errors
    /// If it has another length.
    pub fn add_hardware_wrapped(&mut self, raw: &[u8]) -> Result<()> {
        MasterKey::hardware_wrapped(raw, HwKdf::ALL[0]).map_err(bad)?;
        self.hw_wrapped.push(Zeroizing::new(raw.to_vec()));
        Ok(())
    }

    /// Adds a passphrase for LUKS volumes, for the protectors of the `fscrypt` tool and for the key slots of
    /// systemd-homed.
    pub fn add_passphrase(&mut self, passphrase: &[u8]) {
        self.passphrases.push(Zeroizing::new(passphrase.to_vec()));
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty() && self.hw_wrapped.is_empty() && self.passphrases.is_empty()
    }

    /// The keys as master keys, without those that passphrases unlock.
    ///
    /// # Errors
    /// Never, as the keys were checked when they were added.
    pub fn keyring(&self) -> Result<Keyring> {
        let mut keyring = Keyring::new();
        for (descriptor, raw) in &self.raw {
            let master = MasterKey::new(raw).map_err(bad)?;
            match descriptor {
                Some(descriptor) => keyring.add_with_descriptor(*descriptor, master),
                None => keyring.add(master),
            }
        }
        for raw in &self.hw_wrapped {
            for kdf in HwKdf::ALL {
                keyring.add(MasterKey::hardware_wrapped(raw, kdf).map_err(bad)?);
            }
        }
        Ok(keyring)
    }

    /// The keys that may be a raw-key protector's.
    pub(super) fn raw_protector_keys(&self) -> impl Iterator<Item = &[u8; 32]> {
        self.raw
            .iter()
            .filter(|(descriptor, _)| descriptor.is_none())
            .filter_map(|(_, raw)| raw.as_slice().try_into().ok())
    }

    /// The raw keys, in the order in which they were added.
    pub(super) fn raw(&self) -> impl Iterator<Item = &[u8]> {
        self.raw.iter().map(|(_, raw)| raw.as_slice())
    }

    pub(super) fn passphrases(&self) -> impl Iterator<Item = &[u8]> {
        self.passphrases.iter().map(|passphrase| passphrase.as_slice())
    }
}
