//! The manifest of saved ciphertext: encrypted inodes as they are on disk, with everything but the key that is needed
//! to restore them.
//!
//! `docs/ciphertext-layout.md` describes the layout. The manifest has a line of JSON for each name of an inode, so that
//! it can be written and read piece by piece; the first line identifies the file system. The file is untrusted: each
//! line is checked as far as that is possible for a line alone.

use serde::{Deserialize, Serialize};

/// The format named in the first line.
pub const FORMAT: &str = "postread-ciphertext-4";
/// The previous version, whose lines have no `lost`. It is still accepted.
const FORMAT_BEFORE: &str = "postread-ciphertext-3";
/// The longest line that is written or accepted, in bytes: a file with very many extents.
pub const LINE_MAX: usize = 64 << 20;

/// Seconds since 1970, nanoseconds: as stored in the file system, so they may exceed a second.
pub type Time = (i64, u32);

/// The manifest's first line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The file system's UUID: keys may depend on it.
    pub fs_uuid: [u8; 16],
    /// Bytes in a block, the default size of a data unit: a power of two, 512 to 65536.
    pub block_size: u32,
    /// Inode number of the directory that contains the entries.
    pub root: u32,
    /// Its encryption context, as stored; without one, the names of its entries are plain.
    pub root_context: Option<Vec<u8>>,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
}

impl Kind {
    /// The type bits of `st_mode`.
    pub fn file_type(self) -> u16 {
        match self {
            Self::Pipe => 0o010_000,
            Self::CharacterDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::File => 0o100_000,
            Self::Link => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }

    /// Whether it has a device number.
    pub fn is_device(self) -> bool {
        matches!(self, Self::CharacterDevice | Self::BlockDevice)
    }
}

/// A line of the manifest: a name of an inode. A directory comes before what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Inode number.
    pub inode: u32,
    /// What it is.
    pub kind: Kind,
    /// Inode number of its directory.
    pub directory: u32,
    /// Its name there, as stored: ciphertext where the directory has a context.
    pub raw_name: Vec<u8>,
    /// Type and permissions, as `stat` gives them.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub links: u16,
    /// Of a file: length of its plaintext in bytes, at most `i64::MAX`.
    pub size: u64,
    /// Time of the last access.
    pub atime: Time,
    /// Time of the last change of the contents.
    pub mtime: Time,
    /// The encryption context, as stored. A file and a link have one.
    pub context: Option<Vec<u8>>,
    /// A link's target, as stored: the ciphertext after its 2-byte length. A link has one.
    pub target: Option<Vec<u8>>,
    /// The ranges of a file that hold ciphertext, start and length in bytes: whole blocks, not empty, ascending, none
    /// overlapping another, none past `i64::MAX`. The rest reads as zeros, which are not decrypted.
    pub data: Vec<(u64, u64)>,
    /// The ranges of a file that could not be saved: they could not be read, or a damaged part of the file's map covers
    /// them. Start and length in bytes, as those of `data`, none of which they overlap.
    pub lost: Vec<(u64, u64)>,
    /// Of a device, which has one: major and minor number.
    pub device: Option<(u32, u32)>,
    /// Of a file: the SHA-256 of those ranges, one after the other.
    pub sha256: Option<[u8; 32]>,
    /// Extended attributes: name and value in the form that Linux's system calls take.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The manifest's last line, which covers those before it. A manifest without it was truncated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Lines before this one, the first one included.
    pub lines: u64,
    /// The SHA-256 of all their bytes, newlines included.
    pub sha256: [u8; 32],
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// It is not a JSON object with the fields that it must have.
    #[error("{0}")]
    Json(String),
    /// The first line is of another layout.
    #[error("expected format {FORMAT:?}, found {found:?}")]
    Format {
        /// The format found.
        found: String,
    },
    /// A block size that no file system has.
    #[error("blocks of {block_size} bytes")]
    BlockSize {
        /// Bytes.
        block_size: u32,
    },
    /// A field is not hexadecimal, or not of the right length.
    #[error("its {field} is not {wanted} in hexadecimal")]
    Hex {
        /// The field's name.
        field: &'static str,
        /// What was expected.
        wanted: &'static str,
    },
    /// A field that this kind of entry must have.
    #[error("a {what} without a {field}")]
    Missing {
        /// What the entry is.
        what: &'static str,
        /// The field's name.
        field: &'static str,
    },
    /// A range that is empty, not whole blocks, past the end of any file, or not after the one before.
    #[error("a range of {length} bytes at {start}, where blocks are {block_size} bytes and ranges ascend")]
    Range {
        /// First byte.
        start: u64,
        /// Bytes.
        length: u64,
        /// Bytes of a block.
        block_size: u32,
    },
    /// A length that no file has.
    #[error("a size of {size} bytes")]
    Size {
        /// Bytes.
        size: u64,
    },
}

/// The first line, as JSON.
#[derive(Serialize, Deserialize)]
struct RawHeader {
    format: String,
    fs_uuid: String,
    block_size: u32,
    root: u32,
    root_context: Option<String>,
}

/// Any other line, as JSON: bytes in hexadecimal.
#[derive(Serialize, Deserialize)]
struct RawEntry {
    inode: u32,
    #[serde(rename = "type")]
    kind: Kind,
    directory: u32,
    raw_name: String,
    mode: u16,
    uid: u32,
    gid: u32,
    links: u16,
    size: u64,
    atime: Time,
    mtime: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    context: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<(u32, u32)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    data: Vec<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lost: Vec<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    xattrs: Vec<(String, String)>,
}

/// The last line, as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTrailer {
    lines: u64,
    sha256: String,
}

/// The inode that a line is about, if it can be parsed: for messages about a line that is broken otherwise.
pub fn inode_of(line: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct Loose {
        inode: u32,
    }
    serde_json::from_slice(line).ok().map(|Loose { inode }| inode)
}

impl Trailer {
    /// Parses a manifest's last line, with or without its newline.
    pub fn parse(line: &[u8]) -> Result<Self, LineError> {
        let raw: RawTrailer = serde_json::from_slice(line).map_err(json)?;
        Ok(Self { lines: raw.lines, sha256: array("sha256", "32 bytes", &raw.sha256)? })
    }

    /// The line, with its newline.
    pub fn to_line(&self) -> Vec<u8> {
        line(&RawTrailer { lines: self.lines, sha256: hex::encode(self.sha256) })
    }
}

fn json(error: serde_json::Error) -> LineError {
    LineError::Json(error.to_string())
}

fn bytes(field: &'static str, text: &str) -> Result<Vec<u8>, LineError> {
    hex::decode(text).map_err(|_| LineError::Hex { field, wanted: "bytes" })
}

fn some_bytes(field: &'static str, text: Option<&String>) -> Result<Option<Vec<u8>>, LineError> {
    text.map(|text| bytes(field, text)).transpose()
}

fn array<const N: usize>(field: &'static str, wanted: &'static str, text: &str) -> Result<[u8; N], LineError> {
    let mut array = [0; N];
    hex::decode_to_slice(text, &mut array).map_err(|_| LineError::Hex { field, wanted })?;
    Ok(array)
}

/// A value as a line of JSON. Numbers, strings and lists of them always are one.
fn line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

impl Header {
    /// Parses a manifest's first line, with or without its newline.
    pub fn parse(line: &[u8]) -> Result<Self, LineError> {
        let raw: RawHeader = serde_json::from_slice(line).map_err(json)?;
        if raw.format != FORMAT && raw.format != FORMAT_BEFORE {
            return Err(LineError::Format { found: raw.format });
        }
        let block_size = raw.block_size;
        if !block_size.is_power_of_two() || !(512..=65536).contains(&block_size) {
            return Err(LineError::BlockSize { block_size });
        }
        Ok(Self {
            fs_uuid: array("fs_uuid", "16 bytes", &raw.fs_uuid)?,
            block_size,
            root: raw.root,
            root_context: some_bytes("root_context", raw.root_context.as_ref())?,
        })
    }

    /// The line, with its newline.
    pub fn to_line(&self) -> Vec<u8> {
        line(&RawHeader {
            format: FORMAT.to_owned(),
            fs_uuid: hex::encode(self.fs_uuid),
            block_size: self.block_size,
            root: self.root,
            root_context: self.root_context.as_ref().map(hex::encode),
        })
    }
}

impl Entry {
    /// Parses one of the lines after the first, with or without its newline, of a file system of such blocks.
    pub fn parse(line: &[u8], block_size: u32) -> Result<Self, LineError> {
        let raw: RawEntry = serde_json::from_slice(line).map_err(json)?;
        let xattrs = raw.xattrs.iter().map(|(name, value)| Ok((bytes("xattrs", name)?, bytes("xattrs", value)?)));
        let sha256 = raw.sha256.as_deref().map(|text| array("sha256", "32 bytes", text)).transpose()?;
        let entry = Self {
            inode: raw.inode,
            kind: raw.kind,
            directory: raw.directory,
            raw_name: bytes("raw_name", &raw.raw_name)?,
            mode: raw.mode,
            uid: raw.uid,
            gid: raw.gid,
            links: raw.links,
            size: raw.size,
            atime: raw.atime,
            mtime: raw.mtime,
            context: some_bytes("context", raw.context.as_ref())?,
            target: some_bytes("target", raw.target.as_ref())?,
            device: raw.device,
            sha256,
            xattrs: xattrs.collect::<Result<_, LineError>>()?,
            data: raw.data,
            lost: raw.lost,
        };
        entry.check(block_size)?;
        Ok(entry)
    }

    /// The line, with its newline.
    pub fn to_line(&self) -> Vec<u8> {
        line(&RawEntry {
            inode: self.inode,
            kind: self.kind,
            directory: self.directory,
            raw_name: hex::encode(&self.raw_name),
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            links: self.links,
            size: self.size,
            atime: self.atime,
            mtime: self.mtime,
            context: self.context.as_ref().map(hex::encode),
            target: self.target.as_ref().map(hex::encode),
            device: self.device,
            data: self.data.clone(),
            lost: self.lost.clone(),
            sha256: self.sha256.map(hex::encode),
            xattrs: self.xattrs.iter().map(|(name, value)| (hex::encode(name), hex::encode(value))).collect(),
        })
    }

    /// Bytes of the saved file: where its last range ends.
    pub fn saved_len(&self) -> u64 {
        self.data.last().map_or(0, |(start, length)| start.saturating_add(*length))
    }

    fn check(&self, block_size: u32) -> Result<(), LineError> {
        let must = |there: bool, what, field| if there { Ok(()) } else { Err(LineError::Missing { what, field }) };
        match self.kind {
            Kind::Directory | Kind::Pipe | Kind::Socket => {}
            Kind::CharacterDevice | Kind::BlockDevice => must(self.device.is_some(), "device", "device")?,
            Kind::File => {
                must(self.context.is_some(), "file", "context")?;
                must(self.sha256.is_some(), "file", "sha256")?;
            }
            Kind::Link => {
                must(self.context.is_some(), "link", "context")?;
                must(self.target.is_some(), "link", "target")?;
            }
        }
        // A directory has a size too, and nothing uses it.
        if self.kind == Kind::File && i64::try_from(self.size).is_err() {
            return Err(LineError::Size { size: self.size });
        }
        check_ranges(self.data.iter().copied(), block_size)?;
        check_ranges(self.lost.iter().copied(), block_size)?;
        let mut all = [&self.data[..], &self.lost].concat();
        all.sort_unstable();
        check_ranges(all.into_iter(), block_size)
    }
}

/// Ranges are whole blocks, not empty, and ascend without overlapping.
fn check_ranges(ranges: impl Iterator<Item = (u64, u64)>, block_size: u32) -> Result<(), LineError> {
    let whole = |bytes: u64| bytes.is_multiple_of(u64::from(block_size.max(1)));
    let mut before = 0;
    for (start, length) in ranges {
        let end = start.checked_add(length).filter(|end| i64::try_from(*end).is_ok());
        match end {
            Some(end) if length > 0 && whole(start) && whole(length) && start >= before => before = end,
            _ => return Err(LineError::Range { start, length, block_size }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"{"format":"postread-ciphertext-4","fs_uuid":"00112233445566778899aabbccddeeff","block_size":4096,"root":2,"root_context":null}"#;
    const FILE: &str = r#"{"inode":13,"type":"file","directory":12,"raw_name":"c0ffee","mode":33188,"uid":0,"gid":7,"links":1,"size":5000,"atime":[1,2],"mtime":[-3,4],"context":"0201","data":[[0,8192],[16384,4096]],"sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","xattrs":[["75","00ff"]]}"#;

    fn parsed(text: &str) -> Result<Entry, LineError> {
        Entry::parse(text.as_bytes(), 4096)
    }

    #[test]
    fn lines_round_trip() {
        let header = Header::parse(HEADER.as_bytes()).unwrap();
        assert_eq!(header.fs_uuid[15], 0xff);
        assert_eq!(header.to_line(), format!("{HEADER}\n").into_bytes());
        assert_eq!(Header::parse(HEADER.replace("text-4", "text-3").as_bytes()).unwrap(), header);
        let entry = parsed(FILE).unwrap();
        assert_eq!((entry.saved_len(), entry.raw_name.as_slice()), (20480, &b"\xc0\xff\xee"[..]));
        assert_eq!(entry.to_line(), format!("{FILE}\n").into_bytes());
    }

    #[test]
    fn the_last_line_and_devices() {
        let trailer = Trailer { lines: 7, sha256: [0xab; 32] };
        assert_eq!(Trailer::parse(&trailer.to_line()).unwrap(), trailer);
        assert!(parsed(std::str::from_utf8(&trailer.to_line()).unwrap()).is_err());
        for other in [HEADER, FILE, "{}", r#"{"lines":1,"sha256":"00"}"#, r#"{"lines":-1,"sha256":""}"#] {
            assert!(Trailer::parse(other.as_bytes()).is_err(), "{other}");
        }
        let device =
            FILE.replacen("\"file\"", "\"character_device\"", 1).replacen("\"data\"", "\"device\":[1,3],\"data\"", 1);
        let device = parsed(&device).unwrap();
        assert_eq!((device.device, device.kind.file_type()), (Some((1, 3)), 0o020_000));
        assert_eq!(Entry::parse(&device.to_line(), 4096).unwrap(), device);
        assert_eq!((inode_of(br#"{"inode":9,"type":7}"#), inode_of(b"{"), inode_of(b"{}")), (Some(9), None, None));
    }

    #[test]
    fn what_a_line_must_have() {
        for (from, to, what) in [
            ("c0ffee", "c0ffe", "its raw_name is not bytes in hexadecimal"),
            ("\"e3b0", "\"e3", "its sha256 is not 32 bytes in hexadecimal"),
            (",\"context\":\"0201\"", "", "a file without a context"),
            ("\"file\"", "\"link\"", "a link without a target"),
            ("5000", "9223372036854775808", "a size of 9223372036854775808 bytes"),
            ("\"file\"", "\"block_device\"", "a device without a device"),
            ("\"file\"", "\"door\"", "unknown variant `door`"),
            ("\"inode\":13", "\"inode\":4294967296", "invalid value"),
        ] {
            assert!(FILE.contains(from), "{from}");
            let error = parsed(&FILE.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.starts_with(what), "{from} -> {to}: {error}");
        }
    }

    #[test]
    fn ranges_are_whole_blocks_that_ascend() {
        for bad in ["0,0", "1,4096", "0,1", "8192,4096", "18446744073709547520,8192", "9223372036854775808,4096"] {
            let text = FILE.replacen("16384,4096", bad, 1).replacen("0,8192", "4096,8192", 1);
            assert!(matches!(parsed(&text), Err(LineError::Range { .. })), "{bad}");
        }
        // Lost ranges are between the others.
        for (lost, good) in
            [("[8192,8192]", true), ("[20480,4096]", true), ("[8192,12288]", false), ("[0,4096]", false)]
        {
            let text = FILE.replacen("\"sha256\"", &format!("\"lost\":[{lost}],\"sha256\""), 1);
            assert_eq!(parsed(&text).is_ok(), good, "{lost}");
        }
    }

    #[test]
    fn headers_of_others() {
        for (from, to, what) in [
            ("text-4", "text-2", "expected format"),
            ("4096", "4097", "blocks of 4097 bytes"),
            ("4096", "131072", "blocks of 131072 bytes"),
            ("0011", "11", "its fs_uuid is not 16 bytes"),
            ("null", "\"x\"", "its root_context is not bytes"),
            ("{", "", ""),
        ] {
            assert!(HEADER.contains(from), "{from}");
            let error = Header::parse(HEADER.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(what), "{from} -> {to}: {error}");
        }
    }
}
