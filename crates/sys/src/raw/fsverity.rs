//! The three ioctls of fs-verity, `<linux/fsverity.h>`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const FS_IOC_ENABLE_VERITY: u64 = 0x4080_6685;
const FS_IOC_MEASURE_VERITY: u64 = 0xC004_6686;
const FS_IOC_READ_VERITY_METADATA: u64 = 0xC028_6687;

/// `struct fsverity_enable_arg`.
#[repr(C)]
struct EnableArg {
    version: u32,
    hash_algorithm: u32,
    block_size: u32,
    salt_size: u32,
    salt_ptr: u64,
    sig_size: u32,
    reserved1: u32,
    sig_ptr: u64,
    reserved2: [u64; 11],
}

/// `struct fsverity_digest` with room for the largest digest.
#[repr(C)]
struct Digest {
    algorithm: u16,
    size: u16,
    digest: [u8; 64],
}

/// `struct fsverity_read_metadata_arg`.
#[repr(C)]
struct ReadMetadataArg {
    metadata_type: u64,
    offset: u64,
    length: u64,
    buf_ptr: u64,
    reserved: u64,
}

pub(crate) fn enable(file: &File, alg: u32, block_size: u32, salt: &[u8], signature: &[u8]) -> io::Result<()> {
    let too_long = |_| io::Error::from_raw_os_error(libc::EMSGSIZE);
    let arg = EnableArg {
        version: 1,
        hash_algorithm: alg,
        block_size,
        salt_size: u32::try_from(salt.len()).map_err(too_long)?,
        salt_ptr: salt.as_ptr() as u64,
        sig_size: u32::try_from(signature.len()).map_err(too_long)?,
        reserved1: 0,
        sig_ptr: signature.as_ptr() as u64,
        reserved2: [0; 11],
    };
    // SAFETY: the kernel reads the structure and, by its pointers and sizes, the two slices; all outlive the call.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_ENABLE_VERITY as libc::Ioctl, &raw const arg) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(crate) fn measure(file: &File) -> io::Result<(u16, Vec<u8>)> {
    let mut arg = Digest { algorithm: 0, size: 64, digest: [0; 64] };
    // SAFETY: the kernel writes the header and at most `size` bytes after it, which the structure has room for.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_MEASURE_VERITY as libc::Ioctl, &raw mut arg) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    let digest = arg.digest.get(..usize::from(arg.size)).ok_or(io::ErrorKind::InvalidData)?;
    Ok((arg.algorithm, digest.to_vec()))
}

pub(crate) fn read_metadata(file: &File, kind: u64, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    let arg = ReadMetadataArg {
        metadata_type: kind,
        offset,
        length: buf.len() as u64,
        buf_ptr: buf.as_mut_ptr() as u64,
        reserved: 0,
    };
    // SAFETY: the kernel writes at most `length` bytes at the pointer, the slice's, which is exclusively borrowed.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_READ_VERITY_METADATA as libc::Ioctl, &raw const arg) };
    usize::try_from(rc).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ioctl number holds its argument's size in bits 16 to 29: a structure of another size would be refused.
    #[test]
    fn structures_have_the_sizes_in_the_ioctl_numbers() {
        let size = |ioctl: u64| (ioctl >> 16 & 0x3fff) as usize;
        assert_eq!(size_of::<EnableArg>(), size(FS_IOC_ENABLE_VERITY));
        assert_eq!(size_of::<Digest>() - 64, size(FS_IOC_MEASURE_VERITY));
        assert_eq!(size_of::<ReadMetadataArg>(), size(FS_IOC_READ_VERITY_METADATA));
    }
}
