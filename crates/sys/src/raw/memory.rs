//! Page residency of files, and memory left out of core dumps.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Counts the resident pages of `len` bytes of the file from `offset` (a multiple of the page size), by `mincore` on a
/// mapping that is never read, so looking brings in no page.
pub(crate) fn resident_pages(file: &File, offset: u64, len: usize, page: usize) -> io::Result<u64> {
    let offset = libc::off64_t::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: a new private mapping at an address of the kernel's choice touches no memory of ours.
    let at = unsafe {
        libc::mmap64(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), offset)
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mut resident = vec![0u8; len.div_ceil(page)];
    // SAFETY: `at..at + len` is the mapping above, and the vector has a byte for each of its pages.
    let rc = unsafe { libc::mincore(at, len, resident.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    // SAFETY: unmaps what was mapped above; nothing points into it.
    unsafe { libc::munmap(at, len) };
    if rc < 0 { Err(error) } else { Ok(resident.iter().map(|b| u64::from(b & 1)).sum()) }
}

/// `madvise(MADV_DONTDUMP)` on the pages that hold the region.
pub(crate) fn dont_dump(region: &[u8], page: usize) -> io::Result<()> {
    if region.is_empty() {
        return Ok(());
    }
    let from = region.as_ptr() as usize & !(page - 1);
    let len = region.as_ptr() as usize + region.len() - from;
    // SAFETY: the advice changes no contents and no mapping, only what a core dump holds; the pages are mapped, since
    // the region lies in them.
    let rc = unsafe { libc::madvise(from as *mut libc::c_void, len, libc::MADV_DONTDUMP) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
