//! Keys of v1 policies: whoever gives a key for such a policy says that it is the one, and only what it decrypts can
//! tell. Names and link targets do; contents can be anything.
//!
//! Contents may lie where no name speaks for their key: Linux lets encrypted files be moved and linked into directories
//! that are not encrypted. So evidence is looked for in the whole image, once for a descriptor and within bounds.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use postread_fscrypt::{Context, KeySpecifier, MasterKey, NameEvidence, NameKey, Policy};
use postread_fsimage::ext4::{FileType, Inode, ROOT_INO};

use super::Image;

/// The most names of one directory that are looked at: other directories are to be heard as well.
const DIR_NAMES_MAX: usize = 16;
/// The most inodes that are looked at for evidence.
const INODES_MAX: usize = 200_000;

/// What is known of the keys of v1 policies, by the descriptor.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    known: Mutex<HashMap<KeySpecifier, Choice>>,
    /// Those that were told to be beyond judgement.
    told: Mutex<Vec<KeySpecifier>>,
}

/// One of the keys that a policy names, by its place among them.
#[derive(Clone, Copy, Debug)]
struct Choice {
    candidate: usize,
    /// Whether it is the right one; none where nothing tells.
    right: Option<bool>,
}

/// What was found so far for or against each key that a policy names.
struct Tally<'a> {
    image: &'a Image,
    policy: &'a Policy,
    candidates: Vec<(&'a MasterKey, NameEvidence)>,
}

impl Tally<'_> {
    /// Counts what a directory or a link says, if it is under the same key.
    fn add(&mut self, inode: &Inode, context: &Context) {
        if context.policy.key != self.policy.key {
            return;
        }
        // What is broken is told where it is read.
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

    /// The rest of the image, until it is clear.
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
                // One that nothing speaks against comes before one that does not fit.
                let open = verdicts().find(|(_, evidence)| evidence.verdict().is_none()).map(|(i, _)| i);
                Choice { candidate: open.unwrap_or(0), right: if open.is_some() { None } else { Some(false) } }
            }
        }
    }
}

impl Image {
    /// The key for a policy, and whether it is the right one as far as anything tells: none where no key is at hand.
    /// `at`, a directory or a link, is heard first.
    ///
    /// An empty directory needs no verdict, and is no reason to look for one.
    pub(super) fn choose(&self, policy: &Policy, at: Option<(&Inode, &Context)>) -> Option<(&MasterKey, Option<bool>)> {
        let first = self.keys.candidates(policy).next()?;
        let KeySpecifier::Descriptor(descriptor) = policy.key else {
            // The identifier is made of the key.
            return Some((first, Some(true)));
        };
        // Held all along, so that no other thread looks for the same.
        let mut known = self.verdicts.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.get(&policy.key).copied();
        let chosen = |choice: Choice| Some((self.keys.candidates(policy).nth(choice.candidate)?, choice.right));
        if let Some(choice) = before.filter(|choice| choice.right == Some(true) || at.is_none()) {
            return chosen(choice);
        }
        let candidates: Vec<_> = self.keys.candidates(policy).map(|key| (key, NameEvidence::new())).collect();
        // The conventional descriptor is made of the key as well.
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
            // What the search did not come to.
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

    /// Tells that contents are decrypted with a key that nothing speaks for or against, once for each.
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
