//! Map files of GNU ddrescue: which ranges of a file are good and which are bad, for other tools to use.
//!
//! A status line (position, status, pass), then a line `pos size status` for each range; the ranges are contiguous.
//! Source: the ddrescue manual, "Mapfile structure".

use std::fmt::Write as _;

/// The most ranges read: bounds the memory that a hostile file can ask for.
pub const MAX_RANGES: usize = 1 << 20;

/// The status of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeStatus {
    /// `?`: not tried. Here: not verified, because it was not requested or the hash blocks above it are bad.
    NonTried,
    /// `*`: failed, not trimmed.
    NonTrimmed,
    /// `/`: failed, not scraped.
    NonScraped,
    /// `-`: bad. Here: it did not verify, or could not be read.
    Bad,
    /// `+`: finished. Here: verified.
    Finished,
}

impl RangeStatus {
    /// The character in the file.
    pub fn to_char(self) -> char {
        match self {
            Self::NonTried => '?',
            Self::NonTrimmed => '*',
            Self::NonScraped => '/',
            Self::Bad => '-',
            Self::Finished => '+',
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        [Self::NonTried, Self::NonTrimmed, Self::NonScraped, Self::Bad, Self::Finished]
            .into_iter()
            .find(|status| text.chars().eq([status.to_char()]))
    }
}

/// One line of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRange {
    /// Its first byte.
    pub pos: u64,
    /// Its length, in bytes; not 0.
    pub size: u64,
    /// What is known of it.
    pub status: RangeStatus,
}

/// A map file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RescueMap {
    /// Where the tool that wrote it was.
    pub current_pos: u64,
    /// What it was doing: `?` copying, `*` trimming, `/` scraping, `-` retrying, `F` filling, `G` generating,
    /// `+` finished.
    pub current_status: char,
    /// Which pass over the file it was in, from 1.
    pub current_pass: u32,
    ranges: Vec<MapRange>,
}

/// Why a text is not a map file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the map file: {kind}")]
pub struct MapError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub kind: MapErrorKind,
}

/// What is wrong with a line of a map file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapErrorKind {
    /// Not text.
    #[error("not text")]
    NotText,
    /// No status line.
    #[error("the status line is missing")]
    NoStatus,
    /// A malformed number.
    #[error("bad number {text:?}")]
    Number {
        /// What stands there.
        text: String,
    },
    /// An unknown status.
    #[error("bad status {text:?}")]
    Status {
        /// What stands there.
        text: String,
    },
    /// Too few or too many words.
    #[error("expected {wanted} words, found {found}")]
    Words {
        /// The number of words expected.
        wanted: &'static str,
        /// The number of words there are.
        found: usize,
    },
    /// A range of no bytes, or one that ends beyond 2^63 - 1.
    #[error("a range cannot have {size} bytes from {pos} on")]
    Range {
        /// Its first byte.
        pos: u64,
        /// Its length.
        size: u64,
    },
    /// A range that does not begin where the one before ends.
    #[error("the range begins at {found}, but the previous one ends at {wanted}")]
    Gap {
        /// Where it should begin.
        wanted: u64,
        /// Where it begins.
        found: u64,
    },
    /// More than [`MAX_RANGES`].
    #[error("more than {MAX_RANGES} ranges")]
    TooMany,
}

impl Default for RescueMap {
    fn default() -> Self {
        Self { current_pos: 0, current_status: '+', current_pass: 1, ranges: Vec::new() }
    }
}

impl RescueMap {
    /// An empty map of finished work.
    pub fn new() -> Self {
        Self::default()
    }

    /// The ranges, in order, without gaps; neighbours that were pushed with one status are one range.
    pub fn ranges(&self) -> &[MapRange] {
        &self.ranges
    }

    /// Where the last range ends.
    pub fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |last| last.pos + last.size)
    }

    /// Adds a range of `size` bytes at `pos`, which must not be before [`end`](Self::end); a gap counts as not tried.
    /// Adds nothing for 0 bytes, or for a range that would end beyond 2^63 - 1 (no file does).
    pub fn push(&mut self, pos: u64, size: u64, status: RangeStatus) {
        let end = self.end();
        if size == 0 || pos < end || pos.checked_add(size).is_none_or(|end| end > i64::MAX as u64) {
            return;
        }
        if pos > end {
            self.extend(end, pos - end, RangeStatus::NonTried);
        }
        self.extend(pos, size, status);
    }

    fn extend(&mut self, pos: u64, size: u64, status: RangeStatus) {
        match self.ranges.last_mut() {
            Some(last) if last.status == status => last.size += size,
            _ => self.ranges.push(MapRange { pos, size, status }),
        }
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        let mut out = format!(
            "# Mapfile. Created by postread {}\n# current_pos  current_status  current_pass\n",
            env!("CARGO_PKG_VERSION")
        );
        let _ =
            writeln!(out, "{:#010X}     {}               {}", self.current_pos, self.current_status, self.current_pass);
        out.push_str("#      pos        size  status\n");
        for range in &self.ranges {
            let _ = writeln!(out, "{:#010X}  {:#010X}  {}", range.pos, range.size, range.status.to_char());
        }
        out
    }

    /// Reads a map file. Numbers may be decimal, hexadecimal (0x) or octal (0); the pass may be missing, as old
    /// versions wrote it.
    pub fn parse(bytes: &[u8]) -> Result<Self, MapError> {
        let mut map: Option<Self> = None;
        let mut lines = 0;
        for (i, line) in bytes.split(|&b| b == b'\n').enumerate() {
            lines = i + 1;
            map = parse_line(map, line).map_err(|kind| MapError { line: i + 1, kind })?;
        }
        map.ok_or(MapError { line: lines, kind: MapErrorKind::NoStatus })
    }
}

fn parse_line(map: Option<RescueMap>, line: &[u8]) -> Result<Option<RescueMap>, MapErrorKind> {
    let line = std::str::from_utf8(line).map_err(|_| MapErrorKind::NotText)?;
    let line = line.split('#').next().unwrap_or("");
    let words: Vec<&str> = line.split_ascii_whitespace().take(4).collect();
    if words.is_empty() {
        return Ok(map);
    }
    let Some(mut map) = map else {
        return parse_status(&words).map(Some);
    };
    let [pos, size, status] = words[..] else {
        return Err(MapErrorKind::Words { wanted: "3", found: words.len() });
    };
    let (pos, size) = (number(pos)?, number(size)?);
    let status = RangeStatus::from_text(status).ok_or_else(|| MapErrorKind::Status { text: shorten(status) })?;
    if size == 0 || pos.checked_add(size).is_none_or(|end| end > i64::MAX as u64) {
        return Err(MapErrorKind::Range { pos, size });
    }
    // The first range need not begin at 0.
    if !map.ranges.is_empty() && pos != map.end() {
        return Err(MapErrorKind::Gap { wanted: map.end(), found: pos });
    }
    if map.ranges.len() == MAX_RANGES {
        return Err(MapErrorKind::TooMany);
    }
    map.ranges.push(MapRange { pos, size, status });
    Ok(Some(map))
}

fn parse_status(words: &[&str]) -> Result<RescueMap, MapErrorKind> {
    let (pos, status, pass) = match *words {
        [pos, status] => (pos, status, "1"),
        [pos, status, pass] => (pos, status, pass),
        _ => return Err(MapErrorKind::Words { wanted: "2 or 3", found: words.len() }),
    };
    let bad_status = || MapErrorKind::Status { text: shorten(status) };
    let current_status = status.parse::<char>().ok().filter(|c| "?*/-FG+".contains(*c)).ok_or_else(bad_status)?;
    let current_pass = pass.parse().map_err(|_| MapErrorKind::Number { text: shorten(pass) })?;
    Ok(RescueMap { current_pos: number(pos)?, current_status, current_pass, ranges: Vec::new() })
}

fn number(text: &str) -> Result<u64, MapErrorKind> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    // `from_str_radix` would take a sign.
    if digits.starts_with(['+', '-']) {
        return Err(MapErrorKind::Number { text: shorten(text) });
    }
    u64::from_str_radix(digits, radix).map_err(|_| MapErrorKind::Number { text: shorten(text) })
}

fn shorten(text: &str) -> String {
    text.chars().take(32).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // The example of the ddrescue manual.
    const MANUAL: &str = "\
# Mapfile. Created by GNU ddrescue version 1.27
# Command line: ddrescue -d -c18 /dev/fd0 fdimage mapfile
# Start time:   2015-07-21 09:37:44
# Current time: 2015-07-21 09:38:19
# Copying non-tried blocks... Pass 1 (forwards)
# current_pos  current_status  current_pass
0x00120000     ?               1
#      pos        size  status
0x00000000  0x00117000  +
0x00117000  0x00000200  -
0x00117200  0x00001000  /
0x00118200  0x00007E00  *
0x00120000  0x00048000  ?
";

    #[test]
    fn the_manual_s_example() {
        let map = RescueMap::parse(MANUAL.as_bytes()).unwrap();
        assert_eq!((map.current_pos, map.current_status, map.current_pass), (0x120000, '?', 1));
        assert_eq!(map.ranges().len(), 5);
        assert_eq!(map.ranges()[1], MapRange { pos: 0x117000, size: 0x200, status: RangeStatus::Bad });
        assert_eq!(map.end(), 1440 * 1024);
        let lines = |text: &str| text.lines().skip_while(|l| l.starts_with('#')).map(String::from).collect::<Vec<_>>();
        assert_eq!(lines(&map.to_text()), lines(MANUAL));
    }

    #[test]
    fn ranges_are_merged_and_gaps_filled() {
        let mut map = RescueMap::new();
        map.push(0, 4096, RangeStatus::Finished);
        map.push(4096, 4096, RangeStatus::Finished);
        map.push(8192, 0, RangeStatus::Bad);
        map.push(12288, 1, RangeStatus::Bad);
        map.push(0, 1, RangeStatus::Bad);
        let found: Vec<_> = map.ranges().iter().map(|r| (r.pos, r.size, r.status.to_char())).collect();
        assert_eq!(found, [(0, 8192, '+'), (8192, 4096, '?'), (12288, 1, '-')]);
        assert_eq!(RescueMap::parse(map.to_text().as_bytes()), Ok(map));
    }

    #[test]
    fn bad_lines_say_which_and_why() {
        let error = |text: &str| RescueMap::parse(text.as_bytes()).unwrap_err();
        let at = |line, kind| MapError { line, kind };
        assert_eq!(error("# nothing\n"), at(2, MapErrorKind::NoStatus));
        assert_eq!(error("0"), at(1, MapErrorKind::Words { wanted: "2 or 3", found: 1 }));
        assert_eq!(error("0 x"), at(1, MapErrorKind::Status { text: "x".into() }));
        assert_eq!(error("0 +\n0 0 +"), at(2, MapErrorKind::Range { pos: 0, size: 0 }));
        assert_eq!(error("0 +\n1 9223372036854775807 +"), at(2, MapErrorKind::Range { pos: 1, size: i64::MAX as u64 }));
        assert_eq!(error("0 +\n0 8 +\n9 1 -"), at(3, MapErrorKind::Gap { wanted: 8, found: 9 }));
        assert_eq!(error("0 +\n0 0x+8 +"), at(2, MapErrorKind::Number { text: "0x+8".into() }));
        assert_eq!(error("0 +\n0 8 ++"), at(2, MapErrorKind::Status { text: "++".into() }));
        assert_eq!(RescueMap::parse(b"0 +\n\xff").unwrap_err(), at(2, MapErrorKind::NotText));
        assert_eq!(RescueMap::parse(b"010 ?\n8 010 +").unwrap().end(), 16);
    }

    proptest! {
        #[test]
        fn any_map_comes_back(ranges in prop::collection::vec((0u64..1 << 40, 1u64..1 << 40, any::<bool>()), 0..20)) {
            let mut map = RescueMap::new();
            for (gap, size, bad) in ranges {
                map.push(map.end() + gap, size, if bad { RangeStatus::Bad } else { RangeStatus::Finished });
            }
            prop_assert_eq!(RescueMap::parse(map.to_text().as_bytes()), Ok(map));
        }

        #[test]
        fn any_text_is_answered(text in "[0-9x#?*/+ \\-\n]{0,120}") {
            let _ = RescueMap::parse(text.as_bytes());
        }
    }
}
