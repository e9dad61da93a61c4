//! Limits on what a header may require.

/// Limits of what unlocking may cost. A header is not authenticated: without limits it could ask for 4 TiB of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Memory of Argon2, in KiB. Default: 1 GiB, the most that `cryptsetup` chooses by itself.
    pub argon2_memory_kib: u32,
    /// Passes of Argon2 over its memory, times the memory in KiB. Default: 256 GiB, minutes of work.
    pub argon2_work_kib: u64,
    /// Iterations of PBKDF2. Default: 100 million, minutes of work.
    pub pbkdf2_iterations: u32,
    /// Bytes of anti-forensic key material in one keyslot. Default: 4 MiB.
    pub key_material: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            argon2_memory_kib: 1 << 20,
            argon2_work_kib: 256 << 20,
            pbkdf2_iterations: 100_000_000,
            key_material: 4 << 20,
        }
    }
}

/// A header asks for more than a limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} of {asked}: the limit is {limit}")]
#[non_exhaustive]
pub struct LimitError {
    /// What it requires.
    pub what: &'static str,
    /// How much.
    pub asked: u64,
    /// The limit.
    pub limit: u64,
}

impl LimitError {
    pub(crate) fn check(what: &'static str, asked: u64, limit: u64) -> Result<(), Self> {
        if asked > limit { Err(Self { what, asked, limit }) } else { Ok(()) }
    }
}
