//! Android sparse images: an image in chunks that are stored, filled with a pattern, or left out. A large one may be split
//! into several sparse images, each of which leaves out what the others hold.
//!
//! Layout from AOSP, `system/core/libsparse/sparse_format.h`.

use std::fmt;
use std::io;
use std::sync::Arc;

use postread_io::ReadAt;

use crate::bytes::{le16, le32};
use crate::partition::{self, bytes};

/// The magic number at byte 0.
pub const SPARSE_MAGIC: u32 = 0xed26_ff3a;

/// The file header's length, at least.
pub const FILE_HEADER_LEN: usize = 28;

/// A chunk header's length, at least.
pub const CHUNK_HEADER_LEN: usize = 12;

/// Why a sparse image could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another magic number.
    #[error("not an Android sparse image")]
    NotSparse,
    /// The image contradicts the format.
    #[error("corrupt Android sparse image: chunk {chunk} at byte {offset}: {reason}")]
    Corrupt {
        /// The chunk's number from 0.
        chunk: u32,
        /// Where its header begins.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// The file header contradicts the format.
    #[error("corrupt Android sparse image: its header's {field} is {value}")]
    Header {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A checksum that is not that of the image.
    #[error("corrupt Android sparse image: {of} is {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// Which checksum.
        of: ChecksumOf,
        /// That of the image.
        found: u32,
        /// The one that is stored.
        expected: u32,
    },
    /// Two pieces that are not of one image.
    #[error("piece {piece} is not of the same image as piece 0: {field} is {found}, expected {expected}")]
    OtherImage {
        /// The piece's number from 0.
        piece: usize,
        /// Which field of the header differs.
        field: &'static str,
        /// The piece's.
        found: u64,
        /// The first piece's.
        expected: u64,
    },
    /// Two pieces that both hold a block.
    #[error("piece {piece} and another one both hold byte {at} of the image")]
    Overlap {
        /// The later piece's number from 0.
        piece: usize,
        /// Where in the expanded image.
        at: u64,
    },
    /// The source failed.
    #[error("reading the sparse image: {0}")]
    Io(#[source] partition::Error),
}

/// What a checksum covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumOf {
    /// The image up to this chunk.
    Chunk(u32),
    /// The whole image.
    Image,
}

impl fmt::Display for ChecksumOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunk(chunk) => write!(f, "the CRC-32 up to chunk {chunk}"),
            Self::Image => f.write_str("the image's CRC-32"),
        }
    }
}

/// A file header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SparseHeader {
    /// Length of this header.
    pub header_len: u16,
    /// Length of each chunk's header.
    pub chunk_header_len: u16,
    /// Block size in bytes.
    pub block_size: u32,
    /// Blocks of the image that it expands to.
    pub blocks: u32,
    /// Number of chunks.
    pub chunks: u32,
    /// CRC-32 of the expanded image, with zeros for what is left out; 0 where it was not computed.
    pub checksum: u32,
}

impl SparseHeader {
    /// Parses a file header.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() < FILE_HEADER_LEN || le32(bytes, 0) != SPARSE_MAGIC {
            return Err(Error::NotSparse);
        }
        let header = Self {
            header_len: le16(bytes, 8),
            chunk_header_len: le16(bytes, 10),
            block_size: le32(bytes, 12),
            blocks: le32(bytes, 16),
            chunks: le32(bytes, 20),
            checksum: le32(bytes, 24),
        };
        let fault = |field, value| Err(Error::Header { field, value });
        match header {
            _ if le16(bytes, 4) != 1 => fault("major version", le16(bytes, 4).into()),
            _ if usize::from(header.header_len) < FILE_HEADER_LEN => fault("length", header.header_len.into()),
            _ if usize::from(header.chunk_header_len) < CHUNK_HEADER_LEN => {
                fault("chunk header length", header.chunk_header_len.into())
            }
            _ if header.block_size == 0 || !header.block_size.is_multiple_of(4) => {
                fault("block size", header.block_size.into())
            }
            _ => Ok(header),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Data {
    /// Stored, from this byte of a piece on.
    Raw { piece: usize, at: u64 },
    /// This word, repeated.
    Fill([u8; 4]),
}

/// A run of bytes of the expanded image.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: u64,
    len: u64,
    data: Data,
}

/// A checksum and how far into the expanded image it reaches.
#[derive(Debug, Clone, Copy)]
struct Checksum {
    of: ChecksumOf,
    until: u64,
    expected: u32,
}

/// The image that a sparse image expands to. Anything left out reads as zeros.
pub struct SparseImage {
    pieces: Vec<Arc<dyn ReadAt>>,
    len: u64,
    runs: Vec<Run>,
    /// Those of each piece, in order.
    checksums: Vec<Vec<Checksum>>,
}

impl fmt::Debug for SparseImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SparseImage").field("len", &self.len).field("runs", &self.runs.len()).finish_non_exhaustive()
    }
}

impl SparseImage {
    /// Reads all chunk headers; contents stay where they are. Memory grows with the number of chunks, each of which
    /// takes 12 bytes of the source.
    pub fn open(source: Arc<dyn ReadAt>) -> Result<Self, Error> {
        Self::open_pieces(vec![source])
    }

    /// Opens the pieces of a split image, in any order.
    ///
    /// # Errors
    /// If a piece is of another image, or two of them hold the same block.
    pub fn open_pieces(pieces: Vec<Arc<dyn ReadAt>>) -> Result<Self, Error> {
        let mut runs = Vec::new();
        let mut checksums = Vec::new();
        let mut first: Option<SparseHeader> = None;
        for (piece, source) in pieces.iter().enumerate() {
            let (header, of_piece) = read_piece(&**source, piece, &mut runs)?;
            let same = first.get_or_insert(header);
            for (field, found, expected) in [
                ("the block size", header.block_size, same.block_size),
                ("the number of blocks", header.blocks, same.blocks),
            ] {
                if found != expected {
                    return Err(Error::OtherImage { piece, field, found: found.into(), expected: expected.into() });
                }
            }
            checksums.push(of_piece);
        }
        let header = first.ok_or(Error::NotSparse)?;
        runs.sort_by_key(|run| run.start);
        if let Some([_, second]) = runs.array_windows().find(|[first, second]| first.start + first.len > second.start) {
            let piece = match second.data {
                Data::Raw { piece, .. } => piece,
                Data::Fill(_) => 0,
            };
            return Err(Error::Overlap { piece, at: second.start });
        }
        let len = u64::from(header.blocks) * u64::from(header.block_size);
        Ok(Self { pieces, len, runs, checksums })
    }

    /// Whether there is a checksum to verify.
    pub fn has_checksums(&self) -> bool {
        self.checksums.iter().any(|of_piece| !of_piece.is_empty())
    }

    /// Verifies the checksums of the image, where it has any: reads it to its end.
    ///
    /// A checksum chunk counts what is left out as zeros, or not at all, as the program that wrote it did: either is
    /// accepted.
    pub fn verify_checksums(&self) -> Result<(), Error> {
        for (piece, checksums) in self.checksums.iter().enumerate().filter(|(_, checksums)| !checksums.is_empty()) {
            let (mut with_zeros, mut stored_only) = (crc32fast::Hasher::new(), crc32fast::Hasher::new());
            let mut at = 0;
            for checksum in checksums {
                while at < checksum.until {
                    let (data, len) = self.run_at(at);
                    let len = len.min(checksum.until - at);
                    let own = match data {
                        Some((Data::Raw { piece: of, at }, skip)) if of == piece => Some((at + skip, len)),
                        Some((Data::Fill(word), skip)) => {
                            let bytes: Vec<u8> =
                                (skip..skip + len.min(1 << 16)).map(|at| word[(at % 4) as usize]).collect();
                            with_zeros.update(&bytes);
                            stored_only.update(&bytes);
                            at += bytes.len() as u64;
                            continue;
                        }
                        _ => None,
                    };
                    let Some((from, len)) = own else {
                        with_zeros.combine(&zeros(len));
                        at += len;
                        continue;
                    };
                    let len = len.min(1 << 20);
                    let bytes = bytes(&*self.pieces[piece], from, len as usize).map_err(Error::Io)?;
                    with_zeros.update(&bytes);
                    stored_only.update(&bytes);
                    at += len;
                }
                let found = with_zeros.clone().finalize();
                let other = stored_only.clone().finalize();
                let is_chunk = matches!(checksum.of, ChecksumOf::Chunk(_));
                if found != checksum.expected && !(is_chunk && other == checksum.expected) {
                    return Err(Error::Checksum { of: checksum.of, found, expected: checksum.expected });
                }
            }
        }
        Ok(())
    }

    /// The longest run from `offset` of the expanded image that is stored in one place: the piece and its first byte
    /// there (`None` if it is not stored), and its length. For a plan's mapping.
    pub fn map(&self, offset: u64) -> (Option<(usize, u64)>, u64) {
        let (data, len) = self.run_at(offset);
        match data {
            Some((Data::Raw { piece, at }, skip)) => (Some((piece, at + skip)), len),
            _ => (None, len),
        }
    }

    /// Whether the image leaves `offset` out.
    pub fn is_left_out(&self, offset: u64) -> bool {
        self.run_at(offset).0.is_none()
    }

    /// What is at `offset`, how far into its run that is, and the rest of the run's length.
    fn run_at(&self, offset: u64) -> (Option<(Data, u64)>, u64) {
        let at = self.runs.partition_point(|run| run.start + run.len <= offset);
        match self.runs.get(at) {
            Some(run) if run.start <= offset => {
                let skip = offset - run.start;
                (Some((run.data, skip)), run.len - skip)
            }
            Some(run) => (None, run.start - offset),
            None => (None, self.len.saturating_sub(offset)),
        }
    }
}

/// The CRC-32 of `len` zeros.
fn zeros(len: u64) -> crc32fast::Hasher {
    let mut all = crc32fast::Hasher::new();
    let mut power = crc32fast::Hasher::new();
    power.update(&[0]);
    for bit in 0..u64::BITS - len.leading_zeros() {
        if len >> bit & 1 == 1 {
            all.combine(&power);
        }
        power.combine(&power.clone());
    }
    all
}

/// Reads the header and chunk headers of a piece, and appends its runs.
fn read_piece(source: &dyn ReadAt, piece: usize, runs: &mut Vec<Run>) -> Result<(SparseHeader, Vec<Checksum>), Error> {
    let header = SparseHeader::parse(&bytes(source, 0, FILE_HEADER_LEN).map_err(Error::Io)?)?;
    let len = source.len().map_err(|source| Error::Io(partition::Error::Io { offset: 0, len: 0, source }))?;
    let total = u64::from(header.blocks) * u64::from(header.block_size);
    let mut checksums = Vec::new();
    let mut offset = u64::from(header.header_len);
    let mut start = 0u64;
    for chunk in 0..header.chunks {
        let corrupt = |reason| Error::Corrupt { chunk, offset, reason };
        let fields = bytes(source, offset, CHUNK_HEADER_LEN).map_err(Error::Io)?;
        if fields.len() < CHUNK_HEADER_LEN {
            return Err(corrupt("the file ends before its header"));
        }
        let (kind, blocks, size) = (le16(&fields, 0), le32(&fields, 4), le32(&fields, 8));
        let expanded = u64::from(blocks) * u64::from(header.block_size);
        let Some(stored) = u64::from(size).checked_sub(header.chunk_header_len.into()) else {
            return Err(corrupt("its size is less than its header's"));
        };
        let data_at = offset + u64::from(header.chunk_header_len);
        if stored > len.saturating_sub(data_at) {
            return Err(corrupt("it goes past the end of the file"));
        }
        let word = || -> Result<[u8; 4], Error> {
            let word = bytes(source, data_at, 4).map_err(Error::Io)?;
            word.try_into().map_err(|_| corrupt("it goes past the end of the file"))
        };
        let data = match kind {
            0xcac1 if stored == expanded => Some(Data::Raw { piece, at: data_at }),
            0xcac2 if stored == 4 => Some(Data::Fill(word()?)),
            0xcac3 if stored == 0 => None,
            // A checksum of the image so far; it covers no blocks.
            0xcac4 if stored == 4 && blocks == 0 => {
                let expected = u32::from_le_bytes(word()?);
                checksums.push(Checksum { of: ChecksumOf::Chunk(chunk), until: start, expected });
                None
            }
            0xcac1..=0xcac4 => return Err(corrupt("its size does not fit its kind")),
            _ => return Err(corrupt("its kind is unknown")),
        };
        if start + expanded > total {
            return Err(corrupt("it goes past the end of the image"));
        }
        if let Some(data) = data.filter(|_| expanded > 0) {
            runs.push(Run { start, len: expanded, data });
        }
        start += expanded;
        offset = data_at + stored;
    }
    if start != total {
        return Err(Error::Header { field: "number of blocks", value: header.blocks.into() });
    }
    if header.checksum != 0 {
        checksums.push(Checksum { of: ChecksumOf::Image, until: total, expected: header.checksum });
    }
    Ok((header, checksums))
}

impl ReadAt for SparseImage {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let (data, len) = self.run_at(offset);
        let n = usize::try_from(len).map_or(buf.len(), |len| len.min(buf.len()));
        let buf = &mut buf[..n];
        match data {
            Some((Data::Raw { piece, at }, skip)) => self.pieces[piece].read_at(buf, at + skip),
            Some((Data::Fill(word), skip)) => {
                for (byte, at) in buf.iter_mut().zip(skip..) {
                    *byte = word[(at % 4) as usize];
                }
                Ok(n)
            }
            None => {
                buf.fill(0);
                Ok(n)
            }
        }
    }
}

/// A sparse image whose left-out bytes cannot be read: what a file's contents are read through. A piece that was not given
/// would read as zeros otherwise.
#[derive(Clone, Debug)]
pub struct StoredOnly(pub Arc<SparseImage>);

/// `ENODATA`: the number that a read of left-out bytes fails with.
pub const LEFT_OUT_ERRNO: i32 = 61;

impl ReadAt for StoredOnly {
    fn len(&self) -> io::Result<u64> {
        ReadAt::len(&*self.0)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if !buf.is_empty() && offset < self.0.len && self.0.is_left_out(offset) {
            return Err(io::Error::from_raw_os_error(LEFT_OUT_ERRNO));
        }
        self.0.read_at(buf, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = 4096;

    /// A sparse image of chunks: kind, blocks, data.
    fn sparse(blocks: u32, checksum: u32, chunks: &[(u16, u32, Vec<u8>)]) -> Arc<dyn ReadAt> {
        let mut out = Vec::new();
        out.extend(SPARSE_MAGIC.to_le_bytes());
        out.extend([1, 0, 0, 0, 28, 0, 12, 0]);
        out.extend([BLOCK, blocks, chunks.len() as u32, checksum].iter().flat_map(|field| field.to_le_bytes()));
        for (kind, blocks, data) in chunks {
            out.extend(kind.to_le_bytes());
            out.extend([0, 0]);
            out.extend(blocks.to_le_bytes());
            out.extend((12 + data.len() as u32).to_le_bytes());
            out.extend(data);
        }
        Arc::new(out)
    }

    fn block(byte: u8) -> Vec<u8> {
        vec![byte; BLOCK as usize]
    }

    #[test]
    fn checksums_are_verified() {
        // Stored, filled, left out, stored.
        let expanded = [block(1), block(7), block(0), block(2)].concat();
        let crc = crc32fast::hash(&expanded);
        let so_far = crc32fast::hash(&expanded[..2 * BLOCK as usize]);
        let skipping = crc32fast::hash(&[block(1), block(7), block(2)].concat());
        let chunks = |so_far: u32, end: u32| {
            vec![
                (0xcac1, 1, block(1)),
                (0xcac2, 1, vec![7; 4]),
                (0xcac4, 0, so_far.to_le_bytes().to_vec()),
                (0xcac3, 1, Vec::new()),
                (0xcac1, 1, block(2)),
                (0xcac4, 0, end.to_le_bytes().to_vec()),
            ]
        };
        let verify = |checksum, so_far, end| {
            SparseImage::open(sparse(4, checksum, &chunks(so_far, end))).unwrap().verify_checksums()
        };
        verify(0, so_far, crc).unwrap();
        verify(crc, so_far, skipping).unwrap();
        assert!(matches!(verify(crc ^ 1, so_far, crc), Err(Error::Checksum { of: ChecksumOf::Image, .. })));
        assert!(matches!(verify(0, so_far ^ 1, crc), Err(Error::Checksum { of: ChecksumOf::Chunk(2), .. })));
        assert!(matches!(verify(0, so_far, crc ^ 1), Err(Error::Checksum { of: ChecksumOf::Chunk(5), .. })));
        assert_eq!(zeros(0).finalize(), crc32fast::hash(b""));
        for len in [1, 3, 4096, 100_001] {
            assert_eq!(zeros(len).finalize(), crc32fast::hash(&vec![0; len as usize]));
        }
    }

    #[test]
    fn pieces_make_one_image() {
        let first = || sparse(3, 0, &[(0xcac1, 1, block(1)), (0xcac3, 2, Vec::new())]);
        let second = || sparse(3, 0, &[(0xcac3, 2, Vec::new()), (0xcac1, 1, block(2))]);
        let image = Arc::new(SparseImage::open_pieces(vec![second(), first()]).unwrap());
        let mut byte = [9];
        for (block, expected) in [(0, 1), (1, 0), (2, 2)] {
            image.read_exact_at(&mut byte, block * u64::from(BLOCK)).unwrap();
            assert_eq!(byte[0], expected);
        }
        // Bytes that no piece holds are not zeros of a file.
        let stored = StoredOnly(image);
        stored.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(stored.read_at(&mut byte, u64::from(BLOCK)).unwrap_err().raw_os_error(), Some(LEFT_OUT_ERRNO));
        assert_eq!(stored.read_at(&mut byte, 3 * u64::from(BLOCK)).unwrap(), 0);
        let other = sparse(4, 0, &[(0xcac3, 4, Vec::new())]);
        let error = SparseImage::open_pieces(vec![first(), other]).unwrap_err();
        assert!(matches!(error, Error::OtherImage { piece: 1, found: 4, expected: 3, .. }), "{error}");
        assert!(matches!(SparseImage::open_pieces(vec![first(), first()]), Err(Error::Overlap { at: 0, .. })));
    }
}
