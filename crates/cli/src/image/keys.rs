//! Keys from the command line: raw master keys, hardware-wrapped ones, passphrases.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use clap::Args;
use postread::files;
use postread::{Builder, Keys};
use zeroize::Zeroizing;

use super::terminal;
use crate::exit::Failure;
use crate::text::name_for_stderr;

/// A secret's file, `-` for standard input.
type SecretFile = PathBuf;

/// More than any secret has.
const SECRET_MAX: usize = 4096;

/// `--key`, `--hw-wrapped-key`, `--passphrase-file`, `--fscrypt-metadata`.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Keys")]
pub(crate) struct KeyArgs {
    /// Raw master key, or the key of a raw-key protector; DESCRIPTOR=FILE for a v1 policy, - for standard input
    /// (repeatable)
    #[arg(long, value_name = "FILE", value_parser = clap::value_parser!(KeyFile))]
    key: Vec<KeyFile>,
    /// Raw form of a hardware-wrapped key, 32 bytes; every known derivation is tried (repeatable)
    #[arg(long, value_name = "FILE")]
    hw_wrapped_key: Vec<SecretFile>,
    /// Passphrase of a LUKS volume, of the protectors in the image's /.fscrypt, or for systemd-homed; - for standard input,
    /// without echo on a terminal
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<SecretFile>,
    /// Image or directory with more fscrypt metadata: login protectors are on the root file system (repeatable)
    #[arg(long, value_name = "IMAGE-OR-DIR")]
    pub(super) fscrypt_metadata: Vec<PathBuf>,
}

/// A key's file, and the descriptor under which it is to be found.
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

impl KeyArgs {
    /// Whether there is any.
    pub(crate) fn given(&self) -> bool {
        !self.key.is_empty() || !self.hw_wrapped_key.is_empty() || self.passphrase_file.is_some()
    }

    /// Those of devices: the raw key of a dm-crypt mapping, and the passphrase of LUKS volumes.
    pub(crate) fn of_devices(key: Option<&PathBuf>, passphrase_file: Option<&PathBuf>) -> Self {
        let key = key.map(|file| KeyFile { descriptor: None, file: file.clone() });
        Self { key: key.into_iter().collect(), passphrase_file: passphrase_file.cloned(), ..Self::default() }
    }

    /// Gives them to a builder. If a passphrase is needed, no secret was given and `ask` is set, it is asked for on a
    /// terminal.
    pub(crate) fn add_to(&self, builder: Builder, ask: bool) -> Result<Builder, Failure> {
        let builder = builder.keys(self.load()?);
        // Whoever typed no passphrase is not asked again.
        if !ask || self.given() || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Ok(builder);
        }
        Ok(builder.ask_passphrase(|| {
            postread_sys::hardening::set_not_dumpable()?;
            terminal::ask("Passphrase (empty for none): ")
        }))
    }

    /// Reads the secrets. From then on the process leaves no core dump.
    pub(crate) fn load(&self) -> Result<Keys, Failure> {
        if self.given() {
            postread_sys::hardening::set_not_dumpable().map_err(Failure::environment)?;
        }
        let all = self.key.iter().map(|key| &key.file).chain(&self.hw_wrapped_key).chain(&self.passphrase_file);
        if all.filter(|file| file.as_os_str() == "-").count() > 1 {
            return Err(Failure::usage("only one secret can come from standard input"));
        }
        let mut keys = Keys::new();
        if let Some(file) = &self.passphrase_file {
            let passphrase = match file.as_os_str() == "-" && io::stdin().is_terminal() {
                true => terminal::ask("Passphrase: ").map_err(Failure::environment)?,
                false => Some(without_newline(read_secret(file)?)),
            };
            if let Some(passphrase) = passphrase {
                keys.add_passphrase(&passphrase);
            }
        }
        for key in &self.key {
            let secret = read_secret(&key.file)?;
            let added = match key.descriptor {
                Some(descriptor) => keys.add_for_descriptor(descriptor, &secret),
                None => keys.add(&secret),
            };
            added.map_err(|error| error.about(secret_name(&key.file)))?;
        }
        for file in &self.hw_wrapped_key {
            keys.add_hardware_wrapped(&read_secret(file)?).map_err(|error| error.about(secret_name(file)))?;
        }
        Ok(keys)
    }
}

/// What messages call a secret's file.
pub(crate) fn secret_name(file: &Path) -> &std::ffi::OsStr {
    if file.as_os_str() == "-" { "standard input".as_ref() } else { file.as_os_str() }
}

/// Reads a secret, `-` from standard input, into memory that is wiped. No buffer comes between, for a buffer would keep
/// the secret.
pub(crate) fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let name = || name_for_stderr(Path::new(secret_name(path)));
    let fail = |error: io::Error| Failure::environment(format!("{}: {error}", name()));
    // Room for all, so that growing leaves no copies.
    let mut secret = Zeroizing::new(vec![0; SECRET_MAX + 1]);
    let len = match path.as_os_str() == "-" {
        true => {
            let stdin = io::stdin();
            let stdin = stdin.as_fd();
            fill(&mut secret, |buf| {
                rustix::io::retry_on_intr(|| rustix::io::read(stdin, &mut *buf)).map_err(io::Error::from)
            })
        }
        false => {
            let mut file: io::Chain<_, File> = files::open(path)?;
            fill(&mut secret, |buf| match file.read(buf) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => file.read(buf),
                read => read,
            })
        }
    }
    .map_err(fail)?;
    if len > SECRET_MAX {
        return Err(Failure::usage(format!(
            "{}: not a key or passphrase: expected at most {SECRET_MAX} bytes, found more",
            name()
        )));
    }
    secret.truncate(len);
    Ok(secret)
}

fn fill(buf: &mut [u8], mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match read(&mut buf[done..])? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// A passphrase without the end of its line, as editors on any system write it.
fn without_newline(mut secret: Zeroizing<Vec<u8>>) -> Zeroizing<Vec<u8>> {
    if secret.last() == Some(&b'\n') {
        secret.pop();
        if secret.last() == Some(&b'\r') {
            secret.pop();
        }
    }
    secret
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_may_come_before_the_file() {
        let parse = |text: &str| KeyFile::from(std::ffi::OsString::from(text));
        let named = parse("0000111122223333=/k=1");
        assert_eq!(named.descriptor, Some([0, 0, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33]));
        assert_eq!(named.file, Path::new("/k=1"));
        for plain in ["-", "key", "000011112222333=k", "zzzz111122223333=k", "./0000111122223333=k"] {
            assert!(parse(plain).descriptor.is_none());
            assert_eq!(parse(plain).file, Path::new(plain));
        }
    }

    #[test]
    fn only_the_end_of_the_line_is_cut_off() {
        for (line, passphrase) in [("a\n", "a"), ("a\r\n", "a"), ("a", "a"), ("a\r", "a\r"), ("a\n\n", "a\n"), ("", "")]
        {
            assert_eq!(without_newline(Zeroizing::new(line.into()))[..], *passphrase.as_bytes());
        }
    }
}
