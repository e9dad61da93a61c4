//! Master keys out of the `fscrypt` tool's metadata in the image's own `/.fscrypt`.

use std::io::{self, IsTerminal};

use postread::image::{Image, ImageError};
use postread_fscrypt::MasterKey;
use postread_fscrypt::fscrypt_tool::{Protector, ProtectorKey, ProtectorSource, ToolPolicy};

use super::{Secrets, read_plain, terminal};
use crate::exit::{Failure, Outcome};
use crate::text::complain;

/// A metadata file is far smaller.
const FILE_MAX: u64 = 1 << 20;
/// More files than anybody has; what comes behind them is not looked at.
const FILES_MAX: usize = 10_000;

/// The tool's metadata in an image.
#[derive(Default)]
pub(crate) struct ToolMetadata {
    pub(crate) protectors: Vec<Protector>,
    pub(crate) policies: Vec<ToolPolicy>,
    /// What could not be read.
    pub(crate) broken: Vec<String>,
}

impl ToolMetadata {
    /// Reads `/.fscrypt`; empty where there is none.
    pub(crate) fn read(image: &Image) -> Self {
        let mut found = Self::default();
        let protectors = found.files(image, b"/.fscrypt/protectors");
        found.protectors = found.parse(protectors, Protector::parse);
        let policies = found.files(image, b"/.fscrypt/policies");
        found.policies = found.parse(policies, ToolPolicy::parse);
        found
    }

    fn parse<T, E: std::fmt::Display>(
        &mut self,
        files: Vec<(String, Vec<u8>)>,
        parse: impl Fn(&[u8]) -> Result<T, E>,
    ) -> Vec<T> {
        let mut out = Vec::new();
        for (name, bytes) in files {
            match parse(&bytes) {
                Ok(parsed) => out.push(parsed),
                Err(error) => self.broken.push(format!("/.fscrypt: {name}: {error}")),
            }
        }
        out
    }

    fn files(&mut self, image: &Image, path: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut out = Vec::new();
        let result = (|| -> Result<(), ImageError> {
            let dir = match image.resolve(path) {
                Err(ImageError::NotFound { .. }) => return Ok(()),
                other => other?,
            };
            for entry in image.read_dir(&dir)?.take(FILES_MAX) {
                let entry = entry?;
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                // A link to a protector of another file system, which is not here.
                if name.ends_with(".link") {
                    continue;
                }
                if let Some(bytes) = read_plain(image, &image.fs().inode(entry.ino)?, FILE_MAX)? {
                    out.push((name, bytes));
                }
            }
            Ok(())
        })();
        if let Err(error) = result {
            self.broken.push(format!("{}: {error}", path.escape_ascii()));
        }
        out
    }

    fn wants_passphrase(&self) -> bool {
        self.protectors.iter().any(|protector| protector.source != ProtectorSource::RawKey)
    }
}

/// The image with the keys that the passphrase, or a raw key, unlocks.
pub(super) fn unlock(image: Image, secrets: &mut Secrets, ask: bool) -> Result<Image, Failure> {
    let may_ask = ask && secrets.is_empty() && io::stdin().is_terminal() && io::stderr().is_terminal();
    let raw = secrets.raw_protector_keys().next().is_some();
    if secrets.passphrase.is_none() && !raw && !may_ask {
        return Ok(image);
    }
    let metadata = ToolMetadata::read(&image);
    for broken in &metadata.broken {
        complain(broken);
    }
    if may_ask && metadata.wants_passphrase() {
        postread_sys::hardening::set_not_dumpable().map_err(Failure::environment)?;
        secrets.passphrase = terminal::ask("Passphrase (empty for none): ").map_err(Failure::environment)?;
    }
    let mut keyring = secrets.keyring()?;
    let mut opened = Vec::new();
    let mut errors = Vec::new();
    for protector in &metadata.protectors {
        for key in try_all(protector, secrets) {
            match key {
                Ok(key) => opened.push(key),
                Err(error) => errors.push(error.to_string()),
            }
        }
    }
    let mut unlocked = 0;
    for policy in &metadata.policies {
        for master in opened.iter().filter_map(|protector| policy.master_key(protector)) {
            match master {
                Ok(master) => {
                    let bad = |error| Failure::new(Outcome::Key, format!("policy {}: {error}", policy.key_descriptor));
                    let master = MasterKey::new(&master).map_err(bad)?;
                    let descriptor = hex::decode(&policy.key_descriptor).ok().and_then(|bytes| bytes.try_into().ok());
                    match descriptor {
                        Some(descriptor) => keyring.add_with_descriptor(descriptor, master),
                        None => keyring.add(master),
                    }
                    unlocked += 1;
                    break;
                }
                Err(error) => errors.push(error.to_string()),
            }
        }
    }
    if unlocked == 0 && secrets.passphrase.is_some() {
        let why = if metadata.protectors.is_empty() {
            "the image has no /.fscrypt with protectors that a passphrase could unlock".to_owned()
        } else if errors.is_empty() {
            "no protector in /.fscrypt takes a passphrase, or none unlocks a policy".to_owned()
        } else {
            errors.join("; ")
        };
        return Err(Failure::new(Outcome::Key, format!("the passphrase unlocks nothing: {why}")));
    }
    Ok(image.with_keys(keyring))
}

fn try_all(
    protector: &Protector,
    secrets: &Secrets,
) -> Vec<Result<ProtectorKey, postread_fscrypt::fscrypt_tool::ToolError>> {
    if protector.source == ProtectorSource::RawKey {
        let tried = secrets.raw_protector_keys().map(|key| protector.unlock_with_raw_key(key));
        // A key that is none of this protector's may be a master key.
        return tried.filter(Result::is_ok).collect();
    }
    secrets.passphrase.iter().map(|passphrase| protector.unlock_with_passphrase(passphrase)).collect()
}
