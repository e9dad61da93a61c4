//! Keys of v1 policies that are not the right ones: whoever gives a key for such a policy says that it is the one, and
//! only what it decrypts can tell.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use postread_fscrypt::{KeySpecifier, NameEvidence, NameKey, Policy};
use postread_fsimage::ext4::{Ext4, Inode};

/// What is known of the keys of v1 policies, by the descriptor.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    known: Mutex<HashMap<KeySpecifier, bool>>,
}

impl Verdicts {
    /// Whether the key of a policy is the right one, where that is known.
    pub(super) fn of(&self, policy: &Policy) -> Option<bool> {
        match policy.key {
            KeySpecifier::Descriptor(_) => {
                self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&policy.key).copied()
            }
            // The identifier is made of the key.
            KeySpecifier::Identifier(_) => Some(true),
        }
    }

    /// Whether the key of a directory's names is the right one. A directory where names decrypt speaks for the policy;
    /// one without any name for none.
    pub(super) fn judge(&self, fs: &Ext4, dir: &Inode, policy: &Policy, key: &NameKey) -> bool {
        let known = self.of(policy);
        if known == Some(true) {
            return true;
        }
        let mut evidence = NameEvidence::new();
        for entry in fs.read_dir(dir).into_iter().flatten() {
            // What is broken is told where the directory is read.
            if let Ok(entry) = entry {
                evidence.add(key, &entry.name);
            }
            if evidence.is_enough() {
                break;
            }
        }
        let Some(verdict) = evidence.verdict() else { return known != Some(false) };
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(policy.key, verdict);
        verdict
    }
}
