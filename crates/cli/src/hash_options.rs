//! The options that say how a tree is built: those of `fsverity`.

use clap::Args;
use postread_verity::{HashAlg, MerkleTreeParams, alg_from_name, alg_from_number};

use crate::exit::Failure;
use crate::read_options::parse_bytes;

/// `--hash-alg`, `--block-size`, `--salt`.
#[derive(Args, Clone, Debug)]
pub(crate) struct HashOptions {
    /// Hash algorithm: sha256 or sha512
    #[arg(long, value_name = "ALG", default_value = "sha256", value_parser = parse_alg)]
    pub(crate) hash_alg: HashAlg,
    #[command(flatten)]
    pub(crate) blocks: BlockOptions,
}

/// `--block-size`, `--salt`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BlockOptions {
    /// Size of data and hash blocks in bytes: a power of two, 512 to 65536 (64K)
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = parse_block_size)]
    pub(crate) block_size: u32,
    /// Salt in hexadecimal, at most 32 bytes
    #[arg(long, value_name = "HEX", default_value = "", hide_default_value = true, value_parser = parse_hex)]
    pub(crate) salt: Hex,
}

fn parse_block_size(text: &str) -> Result<u32, String> {
    u32::try_from(parse_bytes(text)?).map_err(|_| format!("{text:?} is too large"))
}

/// Bytes given in hexadecimal.
#[derive(Clone, Debug)]
pub(crate) struct Hex(pub(crate) Vec<u8>);

pub(crate) fn parse_hex(text: &str) -> Result<Hex, String> {
    hex::decode(text).map(Hex).map_err(|error| error.to_string())
}

/// A name, or the kernel's number as `fsverity` also takes it.
pub(crate) fn parse_alg(text: &str) -> Result<HashAlg, String> {
    alg_from_name(text)
        .or_else(|| alg_from_number(text.parse().ok()?))
        .ok_or_else(|| "unknown hash algorithm (known: sha256, sha512)".to_owned())
}

impl HashOptions {
    pub(crate) fn params(&self) -> Result<MerkleTreeParams, Failure> {
        self.blocks.params(self.hash_alg)
    }
}

impl BlockOptions {
    pub(crate) fn params(&self, alg: HashAlg) -> Result<MerkleTreeParams, Failure> {
        MerkleTreeParams::new(alg, self.block_size, &self.salt.0).map_err(Failure::usage)
    }
}
