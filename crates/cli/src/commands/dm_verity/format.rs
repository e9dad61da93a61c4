//! `postread dm-verity format` and `dump`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use clap::Args;
use postread::block_verity::{Device, Threads, encode_fec, format};
use postread::files::OutputFile;
use postread_verity::dm_verity::{Geometry, Superblock};

use super::opened::{about, failure, length, message, open, open_to_write, same, superblock};
use super::{DeviceArgs, FecArgs, TreeArgs};
use crate::exit::{CommandResult, Failure, Outcome};
use crate::text::{name_for_stderr, output_failed};

/// The size of a salt that nobody chose, in bytes.
const SALT_SIZE: usize = 32;

#[derive(Args, Debug)]
pub(super) struct FormatArgs {
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    tree: TreeArgs,
    #[command(flatten)]
    fec: FecArgs,
    /// The UUID of the superblock [default: a random one]
    #[arg(long, value_name = "UUID")]
    uuid: Option<String>,
    /// Write the root hash to FILE, in hexadecimal and without a line break
    #[arg(long, value_name = "FILE")]
    root_hash_file: Option<PathBuf>,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Args, Debug)]
pub(super) struct DumpArgs {
    /// The device with the hash tree
    #[arg(value_name = "HASH")]
    hash: PathBuf,
    /// Where the superblock begins, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    hash_offset: u64,
}

fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Failure::environment(format!("/dev/urandom: {error}")))?;
    Ok(bytes)
}

/// A UUID of 32 hexadecimal digits, with or without dashes.
fn parse_uuid(text: &str) -> Result<[u8; 16], Failure> {
    let digits: String = text.chars().filter(|&c| c != '-').collect();
    let bytes = hex::decode(digits).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| Failure::usage(format!("--uuid {text}: expected 32 hexadecimal digits")))
}

/// A UUID as text.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex = hex::encode(uuid);
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

pub(super) fn run(args: &FormatArgs) -> CommandResult {
    let device = &args.device;
    let params = args.tree.params(&random::<SALT_SIZE>()?)?;
    let data = open(&device.data)?;
    let hash = open_to_write(&device.hash)?;
    let block_size = params.data_block_size() as u64;
    let whole = length(&device.data, &data)?;
    let shared = same(&data, &hash);
    let room = if shared && device.hash_offset > 0 { device.hash_offset.min(whole) } else { whole };
    let data_blocks = device.data_blocks.unwrap_or(room / block_size);
    let data_end = data_blocks.checked_mul(block_size).filter(|&end| end <= whole);
    let Some(data_end) = data_end else {
        let have = whole / block_size;
        return Err(about(
            &device.data,
            Outcome::Usage,
            format_args!("it has {have} blocks, fewer than {data_blocks}"),
        ));
    };
    if shared && device.hash_offset < data_end {
        let what = format!("--hash-offset {} is inside the {data_end} bytes of data", device.hash_offset);
        return Err(Failure::usage(what));
    }
    let mut uuid = random::<16>()?;
    // A random UUID: version 4, the variant of RFC 9562.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    let uuid = args.uuid.as_deref().map_or(Ok(uuid), parse_uuid)?;
    let superblock = Superblock { params: params.clone(), data_blocks, uuid };
    let hash_area = match device.no_superblock {
        true => Some(device.hash_offset).filter(|o| o.is_multiple_of(params.hash_block_size() as u64)),
        false => {
            Some(device.hash_offset).filter(|o| o.is_multiple_of(512)).and_then(|o| superblock.hash_area_offset(o))
        }
    };
    let Some(hash_area) = hash_area else {
        let unit = if device.no_superblock { params.hash_block_size() } else { 512 };
        let what = format!("--hash-offset {}: expected a multiple of {unit}", device.hash_offset);
        return Err(Failure::usage(what));
    };
    let root_out = args.root_hash_file.as_deref().map(OutputFile::create).transpose()?;

    let written = |error: io::Error| about(&device.hash, Outcome::Environment, error);
    let root = format(&data, &params, data_blocks, Threads::default(), &mut |offset, blocks| {
        hash.write_all_at(blocks, hash_area + offset)
    })
    .map_err(failure)?;
    if !device.no_superblock {
        // Last: what was not finished has no superblock.
        hash.write_all_at(&superblock.to_bytes(), device.hash_offset).map_err(written)?;
        let metadata = hash.metadata().map_err(written)?;
        if metadata.is_file() && metadata.len() < hash_area {
            hash.set_len(hash_area).map_err(written)?;
        }
    }
    hash.sync_all().map_err(written)?;
    let geometry = Geometry::new(&params, data_blocks).map_err(Failure::usage)?;
    let mut fec_size = None;
    if let Some(path) = &args.fec.fec_device {
        let parity = open_to_write(path)?;
        let device = Device { data: &data, hash: &hash, hash_area };
        let message = message(device, &params, data_blocks, (&args.device.hash, &hash), &args.fec, &parity)?;
        if same(&parity, &data) && args.fec.fec_offset < data_end {
            return Err(Failure::usage(format!("--fec-offset {} is inside the data", args.fec.fec_offset)));
        }
        let offset = args.fec.fec_offset;
        encode_fec(&message, Threads::default(), &|at, bytes| parity.write_all_at(bytes, offset + at))
            .map_err(failure)?;
        parity.sync_all().map_err(|error| about(path, Outcome::Environment, error))?;
        fec_size = Some(message.layout().parity_size());
    }
    let root = hex::encode(root);
    if let Some(mut out) = root_out {
        out.write(root.as_bytes())?;
        out.commit()?;
    }
    if !args.quiet {
        let mut out = header_text(&name_for_stderr(&device.hash), &superblock, &geometry, device.no_superblock);
        if let Some(size) = fec_size {
            out += &format!("FEC RS roots:   \t{}\n", args.fec.fec_roots);
            out += &format!("FEC blocks:     \t{}\n", size / block_size);
        }
        out += &salt_text(&superblock);
        out += &format!("Root hash:      \t{root}\n");
        out += &size_text(device.hash_offset, hash_area, &geometry);
        if let Some(size) = fec_size.filter(|_| args.fec.fec_offset == 0) {
            out += &format!("FEC device size: \t{size} [bytes]\n");
        }
        io::stdout().write_all(out.as_bytes()).map_err(output_failed)?;
    }
    Ok(Outcome::Good)
}

fn header_text(name: &str, superblock: &Superblock, geometry: &Geometry, no_superblock: bool) -> String {
    let p = &superblock.params;
    let uuid = if no_superblock { String::new() } else { uuid_text(&superblock.uuid) };
    format!(
        "VERITY header information for {name}\nUUID:            \t{uuid}\nHash type:       \t{}\nData blocks:     \t{}\n\
         Data block size: \t{}\nHash blocks:     \t{}\nHash block size: \t{}\nHash algorithm:  \t{}\n",
        p.hash_type().number(),
        superblock.data_blocks,
        p.data_block_size(),
        geometry.hash_blocks(),
        p.hash_block_size(),
        p.alg()
    )
}

fn salt_text(superblock: &Superblock) -> String {
    let salt = superblock.params.salt();
    format!("Salt:            \t{}\n", if salt.is_empty() { "-".to_owned() } else { hex::encode(salt) })
}

/// The size of a hash device that holds nothing else.
fn size_text(hash_offset: u64, hash_area: u64, geometry: &Geometry) -> String {
    if hash_offset != 0 {
        return String::new();
    }
    format!("Hash device size: \t{} [bytes]\n", hash_area + geometry.hash_area_size())
}

pub(super) fn run_dump(args: &DumpArgs) -> CommandResult {
    let hash = open(&args.hash)?;
    let (superblock, hash_area) = superblock(&args.hash, &hash, args.hash_offset)?;
    let geometry = Geometry::new(&superblock.params, superblock.data_blocks);
    let geometry = geometry.map_err(|error| about(&args.hash, Outcome::Usage, error))?;
    let mut out = header_text(&name_for_stderr(&args.hash), &superblock, &geometry, false);
    out += &salt_text(&superblock);
    out += &size_text(args.hash_offset, hash_area, &geometry);
    io::stdout().write_all(out.as_bytes()).map_err(output_failed)?;
    Ok(Outcome::Good)
}
