//! How a command ended, and the program's exit status.

use std::fmt;
use std::process::ExitCode;

use postread::files::{FilesError, Problem};
use postread::{FileError, Remedy};

/// How a command, or one of many things it did, ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Done, and everything was good: 0.
    #[default]
    Good,
    /// Something did not verify: 1.
    Integrity,
    /// A usage error or malformed input: 2.
    Usage,
    /// A key is missing or wrong: 3.
    Key,
    /// The environment failed (I/O, permission): 4.
    Environment,
    /// There was nothing to verify: 5.
    Nothing,
}

impl Outcome {
    /// The exit status.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Good => 0,
            Self::Integrity => 1,
            Self::Usage => 2,
            Self::Key => 3,
            Self::Environment => 4,
            Self::Nothing => 5,
        }
    }

    /// What a file of the system that could not be read means: one that is missing is a matter of the environment.
    pub(crate) fn of_file(error: &FileError) -> Self {
        if error.is_not_found() { Self::Environment } else { error.kind().into() }
    }

    /// Which of two the exit status reports: 1 wins over 3, 4, 2 and 5, in this order.
    pub(crate) fn worst(self, other: Self) -> Self {
        const ORDER: [Outcome; 6] =
            [Outcome::Integrity, Outcome::Key, Outcome::Environment, Outcome::Usage, Outcome::Nothing, Outcome::Good];
        ORDER.into_iter().find(|&o| o == self || o == other).unwrap_or_default()
    }
}

impl From<postread::ErrorKind> for Outcome {
    fn from(kind: postread::ErrorKind) -> Self {
        use postread::ErrorKind;
        match kind {
            ErrorKind::Corrupt => Self::Integrity,
            ErrorKind::Key => Self::Key,
            ErrorKind::Io => Self::Environment,
            ErrorKind::NothingToVerify => Self::Nothing,
            _ => Self::Usage,
        }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        ExitCode::from(outcome.code())
    }
}

/// What ends a command before its work is done.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) outcome: Outcome,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(outcome: Outcome, message: impl fmt::Display) -> Self {
        Self { outcome, message: message.to_string() }
    }

    /// A usage error or malformed input.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Outcome::Usage, message)
    }

    /// The environment failed.
    pub(crate) fn environment(message: impl fmt::Display) -> Self {
        Self::new(Outcome::Environment, message)
    }
}

impl From<postread::Error> for Failure {
    fn from(error: postread::Error) -> Self {
        let outcome = match error.downcast_ref::<FileError>() {
            Some(cause) => Outcome::of_file(cause),
            None => error.kind().into(),
        };
        let hint = error.remedy().map_or_else(String::new, hint);
        match error.subject() {
            Some(subject) => {
                let name = crate::text::name_for_stderr(std::path::Path::new(subject));
                Self::new(outcome, format_args!("{name}: {}{hint}", error.message()))
            }
            None => Self::new(outcome, format_args!("{error}{hint}")),
        }
    }
}

impl From<FilesError> for Failure {
    fn from(error: FilesError) -> Self {
        let outcome = match error.problem {
            Problem::Io(_) => Outcome::Environment,
            _ => Outcome::Usage,
        };
        Self::new(outcome, format_args!("{}: {}", crate::text::name_for_stderr(&error.path), error.problem))
    }
}

/// The option of this program that helps, as the end of a message.
fn hint(remedy: Remedy) -> String {
    match remedy {
        Remedy::IgnoreJournal => "; --ignore-journal reads the file system without its journal".to_owned(),
        Remedy::GiveJournal => {
            "; give the journal with --journal FILE, or read without it with --ignore-journal".to_owned()
        }
        Remedy::UseSuperblock { block } => format!("; --superblock {block} uses it"),
        Remedy::IgnoreChecksums => "; --ignore-checksums reads metadata with wrong checksums".to_owned(),
        Remedy::ChoosePartition => "; choose one with --part".to_owned(),
        Remedy::ChooseVolume => "; choose one with --volume".to_owned(),
        Remedy::GivePassphrase => "; give its passphrase with --passphrase-file".to_owned(),
        _ => String::new(),
    }
}

/// What a command returns.
pub(crate) type CommandResult = Result<Outcome, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wins_over_three_four_two_five() {
        let order = [1, 3, 4, 2, 5, 0];
        let of = |code: u8| {
            [Outcome::Good, Outcome::Integrity, Outcome::Usage, Outcome::Key, Outcome::Environment, Outcome::Nothing]
                .into_iter()
                .find(|o| o.code() == code)
                .unwrap()
        };
        for (i, &a) in order.iter().enumerate() {
            for &b in &order[i..] {
                assert_eq!(of(a).worst(of(b)).code(), a);
                assert_eq!(of(b).worst(of(a)).code(), a);
            }
        }
    }
}
