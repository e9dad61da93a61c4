//! Keys of v1 policies. Nothing ties a key to such a policy, so only the decrypted data can show whether it is the
//! right one. Names and link targets can; contents can be anything.
//!
//! Contents may be where no name gives evidence for their key: Linux lets encrypted files be moved and linked into
//! directories that are not encrypted. So the whole image is searched for evidence, once per descriptor and within
//! bounds.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use postread_fscrypt::{Context, KeySpecifier, MasterKey, NameEvidence, NameKey, Policy};
use postread_fsimage::ext4::{FileType, Inode, ROOT_INO};

use super::Image;

/// The most names of one directory that are looked at, to leave room for other directories.
const DIR_NAMES_MAX: usize = 16;
/// The most inodes that are looked at for evidence.
const INODES_MAX: usize = 200_000;

/// What is known about the keys of v1 policies, by descriptor.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    known: Mutex<HashMap<KeySpecifier, Choice>>,
    /// Keys already reported as impossible to judge.
    told: Mutex<Vec<KeySpecifier>>,
}

/// One of the keys that a policy names, by its place among them.
#[derive(Clone, Copy, Debug)]
struct Choice {
    candidate: usize,
    /// Whether it is the right one; `None` if there is no evidence.
    right: Option<bool>,
}

/// The evidence so far for and against each key that a policy names.
struct Tally<'a> {
    image: &'a Image,
    policy: &'a Policy,
    candidates: Vec<(&'a MasterKey, NameEvidence)>,
}

impl Tally<'_> {
    /// Counts the evidence of a directory or a link, if it is under the same key.
    fn add(&mut self, inode: &Inode, context: &Context) {
        if context.policy.key != self.policy.key {
            return;
        }
        // Errors are reported when it is read.
        let (names, target) = match inode.file_type {
            FileType::Directory => {
                let entries = self.image.fs.read_dir(inode).into_iter().flatten().take(DIR_NAMES_MAX);
                (entries.filter_map(Result::ok).map(|entry| entry.name).collect(), None)
            }
            FileType::Symlink => (Vec::new(), self.image.fs.symlink_target(inode).ok()),
            _ => return,
        };
        let facts = self.image.facts(inode);
        for (master, evidence) in &mut self.candidates {
            let Ok(key) = NameKey::derive(master, context, &facts) else { continue };
            names.iter().for_each(|name| evidence.add(&key, name));
            target.iter().for_each(|target| evidence.add_link(&key, target));
        }
    }

    /// Searches the rest of the image until the result is clear.
    fn search(&mut self, but: Option<&Inode>) {
        let root = self.image.fs.root().into_iter();
        let walk = self.image.fs.walk(ROOT_INO).filter_map(|visit| visit.inode.ok());
        for inode in root.chain(walk).take(INODES_MAX) {
            if !inode.is_encrypted() || but.is_some_and(|but| but.ino == inode.ino) {
                continue;
            }
            if let Ok(Some(context)) = self.image.context(&inode) {
                self.add(&inode, &context);
            }
            if self.convincing().is_some() || self.candidates.iter().all(|(_, evidence)| evidence.is_enough()) {
                return;
            }
        }
    }

    fn convincing(&self) -> Option<Choice> {
        let candidate = self.candidates.iter().position(|(_, evidence)| evidence.is_convincing())?;
        Some(Choice { candidate, right: Some(true) })
    }

    fn choice(&self) -> Choice {
        let verdicts = || self.candidates.iter().enumerate().map(|(i, (_, evidence))| (i, evidence));
        let right = verdicts().filter(|(_, evidence)| evidence.verdict() == Some(true));
        match right.max_by_key(|(_, evidence)| evidence.sound()) {
            Some((candidate, _)) => Choice { candidate, right: Some(true) },
            None => {
                // A key without evidence against it comes before one that does not fit.
                let open = verdicts().find(|(_, evidence)| evidence.verdict().is_none()).map(|(i, _)| i);
                Choice { candidate: open.unwrap_or(0), right: if open.is_some() { None } else { Some(false) } }
            }
        }
    }
}

impl Image {
    /// The key for a policy, and whether it is the right one, as far as known; `None` if no key was given. `at`, a
    /// directory or a link, is examined first.
    ///
    /// An empty directory needs no verdict, so it does not start a search.
    pub(super) fn choose(&self, policy: &Policy, at: Option<(&Inode, &Context)>) -> Option<(&MasterKey, Option<bool>)> {
        let first = self.keys.candidates(policy).next()?;
        let KeySpecifier::Descriptor(descriptor) = policy.key else {
            // The identifier is derived from the key.
            return Some((first, Some(true)));
        };
        // Held throughout, so that no other thread does the same search.
        let mut known = self.verdicts.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.get(&policy.key).copied();
        let chosen = |choice: Choice| Some((self.keys.candidates(policy).nth(choice.candidate)?, choice.right));
        if let Some(choice) = before.filter(|choice| choice.right == Some(true) || at.is_none()) {
            return chosen(choice);
        }
        let candidates: Vec<_> = self.keys.candidates(policy).map(|key| (key, NameEvidence::new())).collect();
        // The conventional descriptor is derived from the key as well.
        let proven = candidates.iter().position(
            |(key, _)| matches!(key.conventional_descriptor(), KeySpecifier::Descriptor(own) if own == descriptor),
        );
        let mut tally = Tally { image: self, policy, candidates };
        if let Some((inode, context)) = at {
            tally.add(inode, context);
        }
        let here = tally.choice();
        let choice = match (proven, tally.convincing(), before) {
            (Some(candidate), _, _) => Choice { candidate, right: Some(true) },
            (None, Some(choice), _) => choice,
            // Not reached by the search.
            (None, None, Some(Choice { right: None, .. })) if here.right.is_some() => here,
            (None, None, Some(choice)) => return chosen(choice),
            (None, None, None) if at.is_some() && here.right.is_none() => return chosen(here),
            (None, None, None) => {
                tally.search(at.map(|(inode, _)| inode));
                tally.choice()
            }
        };
        known.insert(policy.key, choice);
        chosen(choice)
    }

    /// Reports once per key that contents are decrypted with it although there is no evidence for or against it.
    pub(super) fn tell_unjudged(&self, policy: &Policy) {
        let mut told = self.verdicts.told.lock().unwrap_or_else(PoisonError::into_inner);
        if !told.contains(&policy.key) {
            told.push(policy.key);
            if let Some(tell) = &self.on_unjudged {
                tell(policy.key);
            }
        }
    }
}
