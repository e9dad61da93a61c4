//! A mapped device as a source.

use std::fmt;
use std::io;
use std::sync::Arc;

use postread_io::ReadAt;
use zeroize::Zeroizing;

use crate::mapping::Mapping;

/// The plaintext of a run of sectors of a source: what `/dev/mapper/NAME` would be. It can be read at any byte.
#[derive(Clone)]
pub struct Decrypted {
    source: Arc<dyn ReadAt>,
    mapping: Arc<Mapping>,
    offset: u64,
    len: u64,
}

impl fmt::Debug for Decrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decrypted")
            .field("mapping", &self.mapping)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Decrypted {
    /// The sectors from byte `offset` of the source on: `len` bytes, or all to its end, less a last part of a sector.
    ///
    /// # Errors
    /// If the source's length is not known, or it has fewer bytes than that ([`io::ErrorKind::UnexpectedEof`]).
    pub fn new(source: Arc<dyn ReadAt>, mapping: Arc<Mapping>, offset: u64, len: Option<u64>) -> io::Result<Self> {
        let rest = source.len()?.saturating_sub(offset);
        let len = len.unwrap_or(rest);
        if len > rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let len = len - len % u64::from(mapping.sector_size());
        Ok(Self { source, mapping, offset, len })
    }

    /// Reads and decrypts whole sectors.
    fn sectors(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.source.read_exact_at(buf, self.offset + offset)?;
        self.mapping.decrypt(buf, offset / 512).map_err(io::Error::other)
    }
}

impl ReadAt for Decrypted {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        if n == 0 {
            return Ok(0);
        }
        let size = self.mapping.sector_size() as usize;
        let into = (offset % size as u64) as usize;
        if into == 0 && n >= size {
            let whole = n - n % size;
            self.sectors(&mut buf[..whole], offset)?;
            return Ok(whole);
        }
        let mut sector = Zeroizing::new(vec![0; size]);
        self.sectors(&mut sector, offset - into as u64)?;
        let n = n.min(size - into);
        buf[..n].copy_from_slice(&sector[into..into + n]);
        Ok(n)
    }
}
