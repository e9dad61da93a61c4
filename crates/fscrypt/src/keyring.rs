//! The master keys given, and which of them a policy needs.

use crate::{KeySpecifier, MasterKey, Policy};

/// No given key fits a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingKey {
    /// The key that the policy names.
    pub wanted: KeySpecifier,
    /// The names of the given keys, of the kind that the policy uses: one for each key.
    pub given: Vec<KeySpecifier>,
    /// Whether a key of that name was given, but decrypts names to garbage: a v1 policy's key can have any name.
    pub unfit: bool,
}

impl std::fmt::Display for MissingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.unfit {
            let several = self.given.iter().filter(|given| **given == self.wanted).count();
            if several > 1 {
                return write!(
                    f,
                    "none of the {several} keys given for {} fits: names decrypt to garbage; probably they are wrong keys",
                    self.wanted
                );
            }
            return write!(
                f,
                "the key given for {} does not fit: names decrypt to garbage; probably it is the wrong key",
                self.wanted
            );
        }
        write!(f, "this needs key {}; you gave ", self.wanted)?;
        if self.given.is_empty() {
            return f.write_str("none");
        }
        // Several keys may have been given under one name.
        let once = self.given.iter().enumerate().filter(|(i, given)| !self.given[..*i].contains(given));
        for (i, (_, given)) in once.enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, hex::encode(given.as_bytes()))?;
        }
        Ok(())
    }
}

impl std::error::Error for MissingKey {}

/// The master keys given.
#[derive(Debug, Default)]
pub struct Keyring {
    keys: Vec<(Option<KeySpecifier>, MasterKey)>,
}

impl Keyring {
    /// No keys.
    pub fn new() -> Keyring {
        Keyring::default()
    }

    /// Adds a key under its own names: its identifier, and its conventional descriptor.
    pub fn add(&mut self, key: MasterKey) {
        self.keys.push((None, key));
    }

    /// Adds a key for v1 policies under an arbitrary descriptor.
    pub fn add_with_descriptor(&mut self, descriptor: [u8; 8], key: MasterKey) {
        self.keys.push((Some(KeySpecifier::Descriptor(descriptor)), key));
    }

    /// Whether there is no key at all.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The key that a policy names, the first one where several are given under a v1 policy's descriptor.
    pub fn find(&self, policy: &Policy) -> Result<&MasterKey, MissingKey> {
        self.candidates(policy).next().ok_or_else(|| self.missing(policy, false))
    }

    /// All keys that a policy names: several may be given under a v1 policy's descriptor.
    pub fn candidates(&self, policy: &Policy) -> impl Iterator<Item = &MasterKey> + use<'_> {
        let wanted = policy.key;
        let named = move |(name, key): &&(Option<KeySpecifier>, MasterKey)| match name {
            Some(name) => *name == wanted,
            None => key.is_named_by(&wanted),
        };
        self.keys.iter().filter(named).map(|(_, key)| key)
    }

    /// The error for a policy without a key: none was given, or the one of that name does not fit.
    pub fn missing(&self, policy: &Policy, unfit: bool) -> MissingKey {
        let given = self.names(matches!(policy.key, KeySpecifier::Identifier(_)));
        MissingKey { wanted: policy.key, given, unfit }
    }

    fn names(&self, identifiers: bool) -> Vec<KeySpecifier> {
        let name = |(name, key): &(Option<KeySpecifier>, MasterKey)| {
            if identifiers { key.identifier() } else { name.unwrap_or_else(|| key.conventional_descriptor()) }
        };
        self.keys.iter().map(name).collect()
    }
}
