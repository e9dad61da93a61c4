//! Keys from passphrases.

use std::fmt;

use zeroize::Zeroizing;

use super::limits::{LimitError, Limits};
use crate::hash::HashAlg;

/// A key derivation function and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kdf {
    /// PBKDF2 with HMAC.
    Pbkdf2 {
        /// The hash function.
        hash: HashAlg,
        /// Iterations.
        iterations: u32,
    },
    /// Argon2i, version 1.3.
    Argon2i(Argon2Cost),
    /// Argon2id, version 1.3.
    Argon2id(Argon2Cost),
}

/// The cost parameters of Argon2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Argon2Cost {
    /// Passes over the memory.
    pub time: u32,
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Lanes.
    pub cpus: u32,
}

/// Why no key was derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KdfError {
    /// More than a limit allows.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Costs or lengths that the function does not have.
    #[error("impossible parameters of a key derivation function")]
    Parameters,
    /// There is not as much memory.
    #[error("no {kib} KiB of memory for Argon2")]
    Memory {
        /// Memory required, in KiB.
        kib: u32,
    },
}

impl fmt::Display for Kdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kdf::Pbkdf2 { hash, iterations } => write!(f, "pbkdf2-{hash}, {iterations} iterations"),
            Kdf::Argon2i(cost) => write!(f, "argon2i, {cost}"),
            Kdf::Argon2id(cost) => write!(f, "argon2id, {cost}"),
        }
    }
}

impl fmt::Display for Argon2Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passes over {} KiB, {} lanes", self.time, self.memory_kib, self.cpus)
    }
}

impl Kdf {
    /// Refuses what costs more than the limits allow.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), LimitError> {
        match self {
            Kdf::Pbkdf2 { iterations, .. } => {
                LimitError::check("PBKDF2 iterations", u64::from(*iterations), u64::from(limits.pbkdf2_iterations))
            }
            Kdf::Argon2i(cost) | Kdf::Argon2id(cost) => {
                let memory = u64::from(cost.memory_kib);
                LimitError::check("Argon2 memory in KiB", memory, u64::from(limits.argon2_memory_kib))?;
                LimitError::check(
                    "Argon2 passes times memory in KiB",
                    memory.saturating_mul(u64::from(cost.time)),
                    limits.argon2_work_kib,
                )
            }
        }
    }

    /// Derives `len` bytes.
    pub(crate) fn derive(
        &self,
        passphrase: &[u8],
        salt: &[u8],
        len: usize,
        limits: &Limits,
    ) -> Result<Zeroizing<Vec<u8>>, KdfError> {
        self.check(limits)?;
        let mut key = Zeroizing::new(vec![0; len]);
        let (algorithm, cost) = match *self {
            Kdf::Pbkdf2 { iterations: 0, .. } => return Err(KdfError::Parameters),
            Kdf::Pbkdf2 { hash, iterations } => {
                hash.pbkdf2(passphrase, salt, iterations, &mut key);
                return Ok(key);
            }
            Kdf::Argon2i(cost) => (argon2::Algorithm::Argon2i, cost),
            Kdf::Argon2id(cost) => (argon2::Algorithm::Argon2id, cost),
        };
        let params =
            argon2::Params::new(cost.memory_kib, cost.time, cost.cpus, Some(len)).map_err(|_| KdfError::Parameters)?;
        let count = params.block_count();
        let mut memory = Vec::new();
        memory.try_reserve_exact(count).map_err(|_| KdfError::Memory { kib: cost.memory_kib })?;
        memory.resize(count, argon2::Block::default());
        let argon2 = argon2::Argon2::new(algorithm, argon2::Version::V0x13, params);
        let done = argon2.hash_password_into_with_memory(passphrase, salt, &mut key, &mut memory[..]);
        done.map_err(|_| KdfError::Parameters)?;
        Ok(key)
    }
}
