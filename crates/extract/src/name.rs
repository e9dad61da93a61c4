//! Names that an image may give to extracted files.

use std::fmt;

/// Why a name from an image is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadName {
    Empty,
    Dots,
    Slash,
    Nul,
    TooLong,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "refused: its name is empty",
            Self::Dots => "refused: its name is . or ..",
            Self::Slash => "refused: its name contains a slash",
            Self::Nul => "refused: its name contains a NUL byte",
            Self::TooLong => "refused: its name is longer than 255 bytes",
        })
    }
}

/// Whether something may be created under this name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), BadName> {
    match name {
        b"" => Err(BadName::Empty),
        b"." | b".." => Err(BadName::Dots),
        _ if name.contains(&b'/') => Err(BadName::Slash),
        _ if name.contains(&0) => Err(BadName::Nul),
        _ if name.len() > 255 => Err(BadName::TooLong),
        _ => Ok(()),
    }
}

/// A path's last name.
pub(crate) fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&b| b == b'/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for (name, wanted) in [
            (&b""[..], BadName::Empty),
            (b".", BadName::Dots),
            (b"..", BadName::Dots),
            (b"a/b", BadName::Slash),
            (b"/", BadName::Slash),
            (b"a\0b", BadName::Nul),
            (&[b'x'; 256], BadName::TooLong),
        ] {
            assert_eq!(check_name(name), Err(wanted));
        }
        for name in [&b"..."[..], b" ", b"\x1b[31m", b"\xff", &[b'x'; 255]] {
            assert_eq!(check_name(name), Ok(()));
        }
    }
}
