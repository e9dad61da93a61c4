//! Our reader against the kernel, over a damaged image. A difference is allowed if ours refuses, or if ours reads what the
//! image held before it was damaged.

use super::found::{Found, Inode};

/// What was compared.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Things that both read, and that are equal.
    pub(super) equal: usize,
    /// Things that the kernel reads and ours refuses.
    pub(super) refused: usize,
    /// Things that ours reads as they were, and the kernel refuses.
    pub(super) more: usize,
}

/// Compares one image. `original` is what the kernel read before the damage. `strict` is false if several places are
/// damaged: then what ours reads more may be damaged too.
pub(super) fn judge(ours: &Found, kernel: &Found, original: &Found, strict: bool, tally: &mut Tally) -> Vec<String> {
    let mut judge = Judge { strict, tally, wrong: Vec::new() };
    let nothing = Inode::default();
    // An image that the kernel does not mount is refused as a whole.
    for (ino, inode) in &ours.0 {
        let theirs = kernel.0.get(ino);
        let before = original.0.get(ino).unwrap_or(&nothing);
        judge.inode(*ino, inode, theirs, before);
    }
    for (ino, theirs) in &kernel.0 {
        // What no directory of ours leads to, where one could not be read, is refused.
        if !ours.0.contains_key(ino) && theirs.stat.is_some() {
            judge.tally.refused += 1;
        }
    }
    judge.wrong
}

struct Judge<'a> {
    strict: bool,
    tally: &'a mut Tally,
    wrong: Vec<String>,
}

impl Judge<'_> {
    fn inode(&mut self, ino: u64, ours: &Inode, theirs: Option<&Inode>, before: &Inode) {
        let nothing = Inode { names_failed: true, xattrs_failed: true, ..Inode::default() };
        let theirs = theirs.unwrap_or(&nothing);
        self.value(format!("inode {ino}"), ours.stat.as_ref(), theirs.stat.as_ref(), before.stat.as_ref());
        // Where the kernel sees no such inode, or one of another kind, there is nothing to compare but the original.
        self.value(
            format!("the target of {ino}"),
            ours.target.as_ref(),
            theirs.target.as_ref(),
            before.target.as_ref(),
        );
        for (i, piece) in ours.pieces.iter().enumerate() {
            let at = |inode: &Inode| inode.pieces.get(i).copied().flatten();
            let (theirs, before) = (at(theirs), at(before));
            self.value(format!("piece {i} of {ino}"), piece.as_ref(), theirs.as_ref(), before.as_ref());
        }
        for (name, to) in &ours.names {
            let shown = format!("the name {} of {ino}", name.escape_ascii());
            let there = theirs.names.get(name);
            if there.is_none() && !theirs.names_failed && before.names.get(name) != Some(to) {
                self.wrong.push(format!("{shown}: only ours has it"));
            } else {
                self.value(shown, Some(to), there, before.names.get(name));
            }
        }
        for name in theirs.names.keys().filter(|name| !ours.names.contains_key(*name)) {
            match ours.names_failed {
                true => self.tally.refused += 1,
                false => self.wrong.push(format!("the name {} of {ino}: ours lacks it", name.escape_ascii())),
            }
        }
        for (name, value) in &ours.xattrs {
            let shown = format!("the attribute {} of {ino}", name.escape_ascii());
            let get = |inode: &'_ Inode| inode.xattrs.get(name).cloned().flatten();
            let (there, was) = (get(theirs), get(before));
            if !theirs.xattrs.contains_key(name) && !theirs.xattrs_failed && was != *value {
                self.wrong.push(format!("{shown}: only ours has it"));
            } else {
                self.value(shown, value.as_ref(), there.as_ref(), was.as_ref());
            }
        }
        // A name that Linux lists without being able to read its value need not be there.
        let readable = theirs.xattrs.iter().filter(|(_, value)| value.is_some());
        for name in readable.map(|(name, _)| name).filter(|name| !ours.xattrs.contains_key(*name)) {
            match ours.xattrs_failed {
                true => self.tally.refused += 1,
                false => self.wrong.push(format!("the attribute {} of {ino}: ours lacks it", name.escape_ascii())),
            }
        }
    }

    fn value<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: String,
        ours: Option<&T>,
        theirs: Option<&T>,
        before: Option<&T>,
    ) {
        match (ours, theirs) {
            (Some(ours), Some(theirs)) if ours == theirs => self.tally.equal += 1,
            (Some(ours), Some(theirs)) => self.wrong.push(format!("{what}: ours {ours:?}, the kernel's {theirs:?}")),
            (None, Some(_)) => self.tally.refused += 1,
            (Some(ours), None) if before == Some(ours) => self.tally.more += 1,
            (Some(ours), None) if self.strict => {
                self.wrong.push(format!("{what}: the kernel refuses it, ours {ours:?}, before the damage {before:?}"));
            }
            _ => {}
        }
    }
}
