//! Master keys out of wrapped ones: what passphrases, and the keys of raw-key protectors, unlock.

use postread_fscrypt::MasterKey;
use postread_fscrypt::fscrypt_tool::{ProtectorKey, ProtectorSource, ToolError};

use super::Keys;
use super::fscrypt_metadata::FscryptMetadata;
use crate::error::{Error, ErrorKind, Result};
use crate::image::Image;

/// The image with the keys at hand and those that they unlock.
///
/// # Errors
/// If a passphrase was given and unlocks nothing, neither here nor a layer beneath (`unlocked_layer`): the message says where
/// it was tried, and where it was not.
pub(super) fn unlock(image: &Image, keys: &Keys, metadata: &FscryptMetadata, unlocked_layer: bool) -> Result<Image> {
    let mut keyring = keys.keyring()?;
    let mut tally = Tally::default();
    let opened: Vec<ProtectorKey> = tally.protectors(keys, metadata);
    let mut unlocked = 0;
    for policy in &metadata.policies {
        for master in opened.iter().filter_map(|protector| policy.master_key(protector)) {
            match master {
                Ok(master) => {
                    let master = MasterKey::new(&master).map_err(|error| {
                        Error::new(ErrorKind::Key, format!("policy {}: {error}", policy.key_descriptor))
                    })?;
                    match descriptor(&policy.key_descriptor) {
                        Some(descriptor) => keyring.add_with_descriptor(descriptor, master),
                        None => keyring.add(master),
                    }
                    unlocked += 1;
                    break;
                }
                Err(error) => tally.errors.push(error.to_string()),
            }
        }
    }
    for home in &metadata.homed {
        for slot in &home.slots {
            for passphrase in keys.passphrases() {
                tally.homed_tried += 1;
                let Some(master) = slot.unlock(passphrase) else { continue };
                let Ok(master) = MasterKey::new(&master) else { continue };
                // The slot holds nothing that tells a right passphrase from a wrong one: the directory's policy does.
                let found = image.find(home.path.as_encoded_bytes(), crate::image::Follow::None);
                let context = found.ok().and_then(|found| image.context(&found.inode).ok().flatten());
                if context.is_some_and(|context| context.policy.key == master.conventional_descriptor()) {
                    keyring.add(master);
                    unlocked += 1;
                }
            }
        }
    }
    if unlocked == 0 && !unlocked_layer && keys.passphrases().next().is_some() {
        return Err(Error::new(ErrorKind::Key, tally.message(metadata, opened.len())));
    }
    Ok(image.with_keys(keyring))
}

/// A v1 policy's descriptor; a v2 policy's identifier is longer.
fn descriptor(hex: &str) -> Option<[u8; 8]> {
    if hex.len() != 16 || !hex.is_ascii() {
        return None;
    }
    let mut out = [0; 8];
    for (byte, at) in out.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some(out)
}

/// Where secrets were tried, and how that ended.
#[derive(Default)]
struct Tally {
    /// The protectors for which the passphrase is a wrong one.
    wrong: Vec<String>,
    errors: Vec<String>,
    homed_tried: usize,
}

impl Tally {
    fn protectors(&mut self, keys: &Keys, metadata: &FscryptMetadata) -> Vec<ProtectorKey> {
        let mut opened = Vec::new();
        for protector in &metadata.protectors {
            if protector.source == ProtectorSource::RawKey {
                // A key that is not this protector's may be a master key.
                opened.extend(keys.raw_protector_keys().filter_map(|key| protector.unlock_with_raw_key(key).ok()));
                continue;
            }
            for passphrase in keys.passphrases() {
                match protector.unlock_with_passphrase(passphrase) {
                    Ok(key) => opened.push(key),
                    Err(ToolError::WrongKey { .. }) => self.wrong.push(protector.descriptor.clone()),
                    Err(error) => self.errors.push(error.to_string()),
                }
            }
        }
        opened
    }

    fn message(&self, metadata: &FscryptMetadata, opened: usize) -> String {
        let mut parts = Vec::new();
        if !self.wrong.is_empty() {
            parts.push(format!("wrong passphrase for protector {}", self.wrong.join(", ")));
        }
        if self.homed_tried > 0 {
            parts.push("wrong passphrase for every slot of systemd-homed".to_owned());
        }
        if opened > 0 {
            parts.push("the protector that it opens unlocks no policy here".to_owned());
        }
        parts.extend(self.errors.iter().cloned());
        for link in &metadata.linked {
            let (descriptor, place) = (&link.descriptor, &link.file_system);
            parts.push(format!(
                "protector {descriptor} is on another file system ({place}), where it was not tried: give that one with \
                 --fscrypt-metadata"
            ));
        }
        if parts.is_empty() {
            let what = match metadata.protectors.is_empty() {
                true => "the image has no /.fscrypt with protectors that a passphrase could unlock",
                false => "no protector in /.fscrypt takes a passphrase",
            };
            parts.push(what.to_owned());
        }
        format!("the passphrase unlocks nothing: {}", parts.join("; "))
    }
}
