//! Digest lists: a line `ALG:HEX PATH` for each file, as `fsverity digest` prints it, read back by `postread check`.
//!
//! A name is bytes. One with a backslash, a newline or a carriage return is escaped as `sha256sum` does it: these
//! become `\\`, `\n` and `\r`, and the line begins with a backslash to say so.

use crate::digest::{DigestParseError, FileDigest};

/// The longest line accepted: enough for the longest digest and a path of `PATH_MAX` bytes with every byte escaped.
pub const MAX_LINE: usize = 16384;

/// One line of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListEntry {
    /// The expected digest.
    pub digest: FileDigest,
    /// The file's name, as bytes.
    pub name: Vec<u8>,
}

/// Why a line does not belong to a digest list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListLineError {
    /// No space between digest and name.
    #[error("no space after the digest (expected ALG:HEX PATH)")]
    NoSpace,
    /// Only digits, as `digest --compact` prints them.
    #[error("only a digest (expected ALG:HEX PATH, as `digest` prints it without --compact)")]
    Compact,
    /// Digits and a name, as `sha256sum` and `sha512sum` print them.
    #[error(
        "a digest of {digits} digits without its algorithm, as {by} prints it: it is the digest of the bytes, not of the fs-verity tree (expected ALG:HEX PATH)"
    )]
    NoAlgorithm {
        /// Digits of the digest.
        digits: usize,
        /// The program that prints such a line.
        by: &'static str,
    },
    /// No name after the digest.
    #[error("no file name after the digest")]
    NoName,
    /// The digest is malformed.
    #[error(transparent)]
    Digest(#[from] DigestParseError),
    /// The digest is not text.
    #[error("the digest is not text")]
    NotText,
    /// An unknown escape, in a line that begins with a backslash.
    #[error("unknown escape at byte {at} of the file name")]
    Escape {
        /// Where in the escaped name, in bytes.
        at: usize,
    },
    /// A zero byte: no file has such a name.
    #[error("zero byte in the file name")]
    ZeroByte,
    /// A line that is too long.
    #[error("line of {len} bytes is longer than {MAX_LINE}")]
    TooLong {
        /// Its length, in bytes.
        len: usize,
    },
}

/// The line of a file, with its newline.
pub fn format_line(digest: &FileDigest, name: &[u8]) -> Vec<u8> {
    let (escaped, name) = escape_name(name);
    let mut line = Vec::with_capacity(name.len() + 140);
    if escaped {
        line.push(b'\\');
    }
    line.extend_from_slice(digest.to_string().as_bytes());
    line.push(b' ');
    line.extend_from_slice(&name);
    line.push(b'\n');
    line
}

/// A name as written in a list, and whether it had to be escaped.
pub fn escape_name(name: &[u8]) -> (bool, Vec<u8>) {
    let mut out = Vec::with_capacity(name.len());
    for &byte in name {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            other => out.push(other),
        }
    }
    (out.len() != name.len(), out)
}

fn unescape_name(name: &[u8]) -> Result<Vec<u8>, ListLineError> {
    let mut out = Vec::with_capacity(name.len());
    let mut bytes = name.iter().enumerate();
    while let Some((at, &byte)) = bytes.next() {
        out.push(match byte {
            b'\\' => match bytes.next() {
                Some((_, b'\\')) => b'\\',
                Some((_, b'n')) => b'\n',
                Some((_, b'r')) => b'\r',
                _ => return Err(ListLineError::Escape { at }),
            },
            other => other,
        });
    }
    Ok(out)
}

/// The coreutils' program that prints digests of so many digits, if that is what this is.
fn program(digits: &[u8]) -> Option<&'static str> {
    let by = match digits.len() {
        64 => "sha256sum",
        128 => "sha512sum",
        _ => return None,
    };
    digits.iter().all(u8::is_ascii_hexdigit).then_some(by)
}

/// Reads one line, with or without its newline (or carriage return and newline). `Ok(None)` for an empty line and for
/// a comment, which begins with `#`.
pub fn parse_line(line: &[u8]) -> Result<Option<ListEntry>, ListLineError> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    // Some editors begin a file with a byte order mark, which no digest starts with.
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    if line.is_empty() || line[0] == b'#' {
        return Ok(None);
    }
    if line.len() > MAX_LINE {
        return Err(ListLineError::TooLong { len: line.len() });
    }
    let (escaped, line) = match line.strip_prefix(b"\\") {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let Some(space) = line.iter().position(|&b| b == b' ') else {
        return Err(if program(line).is_some() { ListLineError::Compact } else { ListLineError::NoSpace });
    };
    let (digest, name) = (&line[..space], &line[space + 1..]);
    if let Some(by) = program(digest) {
        return Err(ListLineError::NoAlgorithm { digits: digest.len(), by });
    }
    let digest: FileDigest = std::str::from_utf8(digest).map_err(|_| ListLineError::NotText)?.parse()?;
    if name.is_empty() {
        return Err(ListLineError::NoName);
    }
    let name = if escaped { unescape_name(name)? } else { name.to_vec() };
    if name.contains(&0) {
        return Err(ListLineError::ZeroByte);
    }
    Ok(Some(ListEntry { digest, name }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "sha256:3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95";

    fn name_of(line: &str) -> Vec<u8> {
        parse_line(line.as_bytes()).unwrap().unwrap().name
    }

    #[test]
    fn plain_and_escaped_names() {
        let digest = DIGEST.parse().unwrap();
        assert_eq!(format_line(&digest, b"a b"), format!("{DIGEST} a b\n").as_bytes());
        // As `sha256sum` prints these names.
        assert_eq!(format_line(&digest, b"a\nb"), format!("\\{DIGEST} a\\nb\n").as_bytes());
        assert_eq!(format_line(&digest, b"c\\d"), format!("\\{DIGEST} c\\\\d\n").as_bytes());
        assert_eq!(format_line(&digest, b"g\rh"), format!("\\{DIGEST} g\\rh\n").as_bytes());
        assert_eq!(name_of(&format!("{DIGEST}  two spaces ")), b" two spaces ");
        assert_eq!(name_of(&format!("{DIGEST} c\\d\n")), b"c\\d");
        assert_eq!(name_of(&format!("{DIGEST} a\r\n")), b"a");
    }

    #[test]
    fn comments_and_empty_lines() {
        for line in ["", "\n", "\r\n", "# sha256", "#"] {
            assert_eq!(parse_line(line.as_bytes()), Ok(None));
        }
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        let error = |line: &[u8]| parse_line(line).unwrap_err();
        assert_eq!(error(DIGEST.as_bytes()), ListLineError::NoSpace);
        assert_eq!(error(format!("{DIGEST} ").as_bytes()), ListLineError::NoName);
        let digits = &DIGEST[7..];
        assert_eq!(error(digits.as_bytes()), ListLineError::Compact);
        assert_eq!(error(digits.repeat(2).as_bytes()), ListLineError::Compact);
        assert_eq!(
            error(format!("{digits}  file").as_bytes()),
            ListLineError::NoAlgorithm { digits: 64, by: "sha256sum" }
        );
        assert_eq!(error(b"\xff file"), ListLineError::NotText);
        assert_eq!(error(b"3d24 file"), ListLineError::Digest(DigestParseError::NoAlgorithm));
        assert_eq!(error(format!("\\{DIGEST} a\\tb").as_bytes()), ListLineError::Escape { at: 1 });
        assert_eq!(error(format!("\\{DIGEST} a\\").as_bytes()), ListLineError::Escape { at: 1 });
        assert_eq!(error(format!("{DIGEST} a\0").as_bytes()), ListLineError::ZeroByte);
        assert_eq!(error(&[b'x'; MAX_LINE + 1]), ListLineError::TooLong { len: MAX_LINE + 1 });
    }

    proptest! {
        #[test]
        fn any_name_comes_back(name in prop::collection::vec(1u8..=255, 1..300)) {
            let digest = DIGEST.parse().unwrap();
            let line = format_line(&digest, &name);
            prop_assert_eq!(line.iter().filter(|&&b| b == b'\n').count(), 1);
            prop_assert_eq!(parse_line(&line).unwrap(), Some(ListEntry { digest, name }));
        }

        #[test]
        fn any_line_is_answered(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_line(&line);
        }
    }
}
