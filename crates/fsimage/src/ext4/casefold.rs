//! Names in directories that fold case: which names are equal to Linux.
//!
//! ext4 has one encoding, UTF-8 by Unicode 12.1 (`utf8-12.1.0`). Two names are equal if they have the same form, which
//! the kernel calls NFDICF: canonically decomposed, without the code points that Unicode allows to be ignored, and fully
//! case-folded (statuses C and F of `CaseFolding.txt`; the dotless i is a letter of its own). Names that are not valid
//! UTF-8 have no such form: they are equal if their bytes are. There is one exception: Linux skips continuation
//! bytes that continue nothing.
//!
//! **Later versions of Unicode.** The tables come from crates that follow Unicode. What a code point of 12.1 decomposes
//! and folds to never changes (Unicode's stability policies), so only code points assigned later have to be left
//! unchanged, as Linux does: [`LATER`] lists those that the crates' tables would change. The tests compare
//! the whole code space with a kernel, and check that the crates have the versions that the list was made for.

use std::collections::BTreeSet;
use std::iter::once;

use caseless::Caseless;
use unicode_normalization::char::{canonical_combining_class, decompose_canonical};

/// The longest name of a directory entry, in bytes.
const NAME_MAX: usize = 255;

/// The form of a name that case folding compares; nothing if the name is not valid UTF-8.
pub fn casefold(name: &[u8]) -> Option<Vec<u8>> {
    if name.is_ascii() {
        return Some(name.to_ascii_lowercase());
    }
    let mut form = Form { out: Vec::with_capacity(name.len().saturating_mul(2)), run: Vec::new() };
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if ignorable(c) {
                // It only leaves a boundary that combining marks are not ordered across.
                form.end_run();
            } else {
                form.add(c);
            }
        }
        match *chunk.invalid() {
            [] => {}
            [byte @ 0x80..=0xbf] => form.stray(byte),
            _ => return None,
        }
    }
    form.end_run();
    Some(form.out)
}

/// The bytes that ext4 hashes of a name in a directory that folds case and is encrypted.
///
/// This is the form of the name's form, if that is shorter than the longest name. Most forms are their own form; marks on
/// both sides of something ignorable come together in the first and are ordered in the second. A name without a form is
/// hashed as it is.
pub fn casefold_for_hash(name: &[u8]) -> Vec<u8> {
    match casefold(name) {
        Some(form) if form.len() < NAME_MAX => casefold(&form).unwrap_or(form),
        Some(form) => form,
        None => name.to_vec(),
    }
}

/// A folded name in the making.
struct Form {
    out: Vec<u8>,
    /// Everything since the last starter, from the first combining mark on.
    run: Vec<Part>,
}

#[derive(Clone, Copy)]
enum Part {
    /// A combining mark and its class.
    Mark(u8, char),
    /// A continuation byte that continues nothing.
    Stray(u8),
}

impl Form {
    /// Adds everything that `c` folds and decomposes to.
    fn add(&mut self, c: char) {
        if later(c) {
            return self.start(c);
        }
        // One step at a time: what a character folds to may decompose, and what it decomposes to may fold. No case
        // folding has more than three characters.
        let mut folded = ['\0'; 3];
        let mut len = 0usize;
        for (slot, f) in folded.iter_mut().zip(once(c).default_case_fold()) {
            *slot = f;
            len = len.saturating_add(1);
        }
        if folded[..len] != [c] {
            return folded[..len].iter().for_each(|&f| self.add(f));
        }
        let mut whole = false;
        decompose_canonical(c, |part| {
            if part == c {
                whole = true;
            } else {
                self.add(part);
            }
        });
        if whole {
            match canonical_combining_class(c) {
                0 => self.start(c),
                class => self.run.push(Part::Mark(class, c)),
            }
        }
    }

    fn start(&mut self, c: char) {
        self.end_run();
        self.push(c);
    }

    fn push(&mut self, c: char) {
        self.out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }

    fn stray(&mut self, byte: u8) {
        if self.run.is_empty() {
            self.out.push(byte);
        } else {
            self.run.push(Part::Stray(byte));
        }
    }

    /// Orders the marks by their classes. The kernel passes over them once to find the classes, and once for each class;
    /// every pass gives the stray bytes again.
    fn end_run(&mut self) {
        let mut run = std::mem::take(&mut self.run);
        if run.iter().all(|part| matches!(part, Part::Mark(..))) {
            run.sort_by_key(|part| match part {
                Part::Mark(class, _) => *class,
                Part::Stray(_) => 0,
            });
            self.pass(&run, |_| true);
        } else {
            self.pass(&run, |_| false);
            let classes: BTreeSet<u8> = run
                .iter()
                .filter_map(|part| match part {
                    Part::Mark(class, _) => Some(*class),
                    Part::Stray(_) => None,
                })
                .collect();
            for class in classes {
                self.pass(&run, |other| other == class);
            }
        }
        run.clear();
        self.run = run;
    }

    fn pass(&mut self, run: &[Part], wanted: impl Fn(u8) -> bool) {
        for part in run {
            match *part {
                Part::Mark(class, c) if wanted(class) => self.push(c),
                Part::Mark(..) => {}
                Part::Stray(byte) => self.out.push(byte),
            }
        }
    }
}

/// `Default_Ignorable_Code_Point` of Unicode 12.1 (`DerivedCoreProperties.txt`), those not assigned yet included.
fn ignorable(c: char) -> bool {
    matches!(u32::from(c),
        0xad | 0x34f | 0x61c | 0x115f..=0x1160 | 0x17b4..=0x17b5 | 0x180b..=0x180e | 0x200b..=0x200f
        | 0x202a..=0x202e | 0x2060..=0x206f | 0x3164 | 0xfe00..=0xfe0f | 0xfeff | 0xffa0 | 0xfff0..=0xfff8
        | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a | 0xe0000..=0xe0fff)
}

/// Whether a code point was assigned after Unicode 12.1, and the crates' tables would change it.
fn later(c: char) -> bool {
    let c = u32::from(c);
    let after = LATER.partition_point(|&(first, _)| first <= c);
    after.checked_sub(1).is_some_and(|i| c <= LATER[i].1)
}

/// See the head of this file. Ranges, both ends included.
const LATER: [(u32, u32); 62] = [
    (0x5c8, 0x5c9),
    (0x897, 0x89f),
    (0x8ca, 0x8d2),
    (0xc3c, 0xc3c),
    (0x1715, 0x1715),
    (0x1abf, 0x1af0),
    (0x1c89, 0x1c89),
    (0x1dfa, 0x1dfa),
    (0x2c2f, 0x2c2f),
    (0xa7c0, 0xa7c0),
    (0xa7c7, 0xa7c7),
    (0xa7c9, 0xa7c9),
    (0xa7cb, 0xa7cc),
    (0xa7d0, 0xa7d0),
    (0xa7d6, 0xa7d6),
    (0xa7d8, 0xa7d8),
    (0xa7da, 0xa7da),
    (0xa7dc, 0xa7dc),
    (0xa7f5, 0xa7f5),
    (0xa82c, 0xa82c),
    (0x10570, 0x1057a),
    (0x1057c, 0x1058a),
    (0x1058c, 0x10592),
    (0x10594, 0x10595),
    (0x105c9, 0x105c9),
    (0x105e4, 0x105e4),
    (0x10d50, 0x10d65),
    (0x10d69, 0x10d6d),
    (0x10eab, 0x10eac),
    (0x10ecb, 0x10ecf),
    (0x10ef0, 0x10efb),
    (0x10efd, 0x10eff),
    (0x10f82, 0x10f85),
    (0x11070, 0x11070),
    (0x11383, 0x11383),
    (0x11385, 0x11385),
    (0x1138e, 0x1138e),
    (0x11391, 0x11391),
    (0x113c5, 0x113c5),
    (0x113c7, 0x113c8),
    (0x113ce, 0x113d0),
    (0x11938, 0x11938),
    (0x1193d, 0x1193e),
    (0x11943, 0x11943),
    (0x11f41, 0x11f42),
    (0x16121, 0x16128),
    (0x1612f, 0x1612f),
    (0x16d68, 0x16d6a),
    (0x16ff0, 0x16ff1),
    (0x1d127, 0x1d128),
    (0x1d250, 0x1d252),
    (0x1d25b, 0x1d25c),
    (0x1d25f, 0x1d25f),
    (0x1d280, 0x1d281),
    (0x1e08f, 0x1e08f),
    (0x1e2ae, 0x1e2ae),
    (0x1e4ec, 0x1e4ef),
    (0x1e5ee, 0x1e5ef),
    (0x1e6e3, 0x1e6e3),
    (0x1e6e6, 0x1e6e6),
    (0x1e6ee, 0x1e6ef),
    (0x1e6f5, 0x1e6f5),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The list was made for these versions: others need another look at it (`tests/tests/casefold.rs` asks a
    /// kernel).
    #[test]
    fn the_tables_are_those_that_the_list_was_made_for() {
        assert_eq!((caseless::UNICODE_VERSION.0, unicode_normalization::UNICODE_VERSION.0), (16, 18));
    }

    /// Unicode 13 to 18 brought these.
    #[test]
    fn what_came_later_is_left_as_it_is() {
        assert!(LATER.is_sorted() && LATER.iter().all(|(first, last)| first <= last));
        for name in ["\u{a7c7}", "\u{2c2f}", "\u{10570}", "\u{1c89}", "\u{11938}", "a\u{301}\u{1dfa}\u{323}"] {
            assert_eq!(casefold(name.as_bytes()).unwrap(), name.as_bytes());
        }
        assert_eq!(casefold("Ꙁ".as_bytes()).unwrap(), "ꙁ".as_bytes());
    }

    #[test]
    fn marks_are_ordered_up_to_what_is_ignored() {
        let fold = |name: &str| String::from_utf8(casefold(name.as_bytes()).unwrap()).unwrap();
        assert_eq!(fold("Ậ"), "a\u{323}\u{302}");
        assert_eq!(fold("A\u{302}\u{323}"), "a\u{323}\u{302}");
        assert_eq!(fold("A\u{302}\u{34f}\u{323}"), "a\u{302}\u{323}");
        assert_eq!(fold("Straße\u{ad}"), "strasse");
    }
}
