//! What can be wrong with a policy, a key or a name.

use crate::Mode;

/// A context that is malformed, or that Linux would refuse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContextError {
    /// The length does not fit the version (28 bytes for v1, 40 for v2).
    #[error("encryption context of version {version}: expected {wanted} bytes, found {found}")]
    Length {
        /// The version in the first byte; 0 where there is none.
        version: u8,
        /// Bytes that the version has.
        wanted: usize,
        /// Bytes given.
        found: usize,
    },
    /// No such version.
    #[error("encryption context of unknown version {0}")]
    Version(u8),
    /// Linux knows no mode of that number.
    #[error("encryption mode {0} is unknown")]
    UnknownMode(u8),
    /// The two modes may not go together in a policy of this version.
    #[error("a v{version} policy may not pair {contents} contents with {names} names")]
    Pair {
        /// Policy version.
        version: u8,
        /// Contents mode.
        contents: Mode,
        /// File names mode.
        names: Mode,
    },
    /// Flags that are unknown, or exclude each other, or don't go with the modes.
    #[error("encryption policy flags {flags:#04x}: {why}")]
    Flags {
        /// The flags byte.
        flags: u8,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A data unit size out of range.
    #[error("data units of 2^{log2} bytes: {why}")]
    DataUnitSize {
        /// The logarithm stored.
        log2: u8,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Reserved bytes that are not zero.
    #[error("reserved bytes of the encryption context are not zero")]
    Reserved,
}

/// A key that doesn't fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A master key of a length that Linux accepts in no policy.
    #[error("a master key has 16 to 64 bytes, but this one has {0}")]
    MasterKeyLength(usize),
    /// The master key is shorter than the policy's modes need.
    #[error("the master key has {found} bytes, but {mode} needs at least {wanted}")]
    TooShort {
        /// The mode.
        mode: Mode,
        /// Bytes needed.
        wanted: usize,
        /// Bytes given.
        found: usize,
    },
    /// The two halves of an XTS key are equal, which the kernel refuses at the first use with `EINVAL`.
    #[error("the halves of the derived {0} key are equal, which Linux refuses as a weak key")]
    WeakXts(Mode),
    /// Hardware-wrapped keys work with one of the `IV_INO_LBLK_*` flags only.
    #[error("a hardware-wrapped key needs IV_INO_LBLK_64 or IV_INO_LBLK_32 and AES-256-XTS contents")]
    WrappedPolicy,
    /// The policy derives keys or IVs from facts that the file system lacks.
    #[error("inode number {0} does not fit the 32 bits that the policy's IVs have")]
    InodeNumber(u64),
    /// The mode is one for names.
    #[error("{0} is not a mode for contents")]
    NotForContents(Mode),
    /// The mode is one for contents.
    #[error("{0} is not a mode for names")]
    NotForNames(Mode),
    /// Data units larger than the file system's blocks.
    #[error("data units of {unit} bytes are larger than the blocks of {block}")]
    DataUnit {
        /// Bytes of a data unit.
        unit: usize,
        /// Bytes of a block.
        block: usize,
    },
}

/// A name, link target or length of contents that can't be a ciphertext.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A ciphertext name shorter than a cipher block (Linux returns `EUCLEAN`).
    #[error("encrypted name of {0} bytes, shorter than a cipher block")]
    NameTooShort(usize),
    /// A name longer than 255 bytes.
    #[error("name of {0} bytes, longer than 255")]
    NameTooLong(usize),
    /// A length that is not a multiple of the data unit.
    #[error("{length} bytes are not a whole number of data units of {unit}")]
    Unaligned {
        /// Bytes given.
        length: usize,
        /// Bytes of a data unit.
        unit: usize,
    },
    /// A symbolic link's ciphertext contradicts its length field.
    #[error("encrypted symbolic link of {stored} bytes claims to have {claimed}")]
    Symlink {
        /// Bytes that are there, the length field included.
        stored: usize,
        /// Ciphertext bytes claimed by the field.
        claimed: usize,
    },
    /// Bytes other than NUL after the name's end.
    #[error("it decrypts to garbage: what pads it is not zeros")]
    Padding,
    /// The decrypted link target is empty or holds a NUL inside.
    #[error("the decrypted link target is empty")]
    EmptySymlink,
    /// The data unit index overflows what the policy's IVs hold.
    #[error("data unit {index} does not fit the policy's IVs")]
    Index {
        /// The index.
        index: u64,
    },
}
