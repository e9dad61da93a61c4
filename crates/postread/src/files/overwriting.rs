//! Refuses outputs that would overwrite an input or each other, before anything is written.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::error::{FilesError, Problem};

/// The most links that are followed, as in Linux.
const LINKS_MAX: usize = 40;

/// What a path leads to, under any name.
#[derive(PartialEq, Eq)]
enum Place {
    File {
        device: u64,
        inode: u64,
    },
    BlockDevice {
        number: u64,
    },
    /// Does not exist yet: the name it would get.
    Name(PathBuf),
}

/// Where a path leads. None where writing overwrites nothing: a pipe, a terminal, `/dev/null`.
fn place(path: &Path) -> Option<Place> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_block_device() => Some(Place::BlockDevice { number: metadata.rdev() }),
        Ok(metadata) if metadata.is_file() || metadata.is_dir() => {
            Some(Place::File { device: metadata.dev(), inode: metadata.ino() })
        }
        Ok(_) => None,
        Err(_) => Some(Place::Name(future_name(path))),
    }
}

/// The symbolic links from a path on, in order.
pub(super) fn links(path: &Path) -> impl Iterator<Item = PathBuf> {
    let follow = |link: &PathBuf| Some(link.parent().unwrap_or(Path::new("")).join(fs::read_link(link).ok()?));
    std::iter::successors(Some(path.to_owned()), follow).take(LINKS_MAX).filter(|path| path.is_symlink())
}

/// The name that a file created at this path would get.
pub(super) fn future_name(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match (fs::canonicalize(parent), path.file_name()) {
        (Ok(parent), Some(name)) => parent.join(name),
        _ => path,
    }
}

/// Refuses an output that is one of the inputs or another output, under any name: a hard link, a symbolic link, another
/// path to the same device. Each comes with what the caller calls it, such as its option.
///
/// # Errors
/// [`FilesError`] with [`Problem::Overwrites`] about the first such output.
pub fn refuse_overwriting(outputs: &[(&str, &Path)], inputs: &[(&str, &Path)]) -> Result<(), FilesError> {
    let inputs: Vec<_> = inputs.iter().map(|&(what, path)| (what, place(path))).collect();
    let mut taken: Vec<(&str, Place)> = Vec::new();
    for &(what, path) in outputs {
        let Some(found) = place(path) else { continue };
        let same = |place: &Place| *place == found;
        let input = inputs.iter().find(|(_, place)| place.as_ref().is_some_and(same)).map(|(what, _)| what);
        let output = taken.iter().find(|(_, place)| same(place)).map(|(what, _)| what);
        if let Some(other) = input.or(output) {
            let problem = Problem::Overwrites { output: what.to_owned(), other: (*other).to_owned() };
            return Err(FilesError::new(path, problem));
        }
        taken.push((what, found));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn one_file_by_any_name() {
        let dir = std::env::temp_dir().join(format!("postread-places-{}", std::process::id()));
        fs::create_dir_all(dir.join("sub")).unwrap();
        fs::write(dir.join("f"), "x").unwrap();
        let _ = fs::hard_link(dir.join("f"), dir.join("hard"));
        let _ = symlink("f", dir.join("soft"));
        let _ = symlink("../new", dir.join("sub/dangling"));
        let refused = |out: &str, input: &str| {
            refuse_overwriting(&[("out", &dir.join(out))], &[("in", &dir.join(input))]).is_err()
        };
        for (out, input) in [
            ("f", "f"),
            ("hard", "f"),
            ("soft", "hard"),
            ("sub/../f", "f"),
            ("new", "sub/../new"),
            ("sub/dangling", "new"),
        ] {
            assert!(refused(out, input), "{out} {input}");
        }
        assert!(!refused("new", "f") && !refused("f", "sub/f") && !refused("no/dir/f", "f"));
        let null = Path::new("/dev/null");
        assert!(refuse_overwriting(&[("a", null), ("b", null)], &[("in", null)]).is_ok());
        let new = dir.join("new");
        assert!(refuse_overwriting(&[("a", &new), ("b", &dir.join("./new"))], &[]).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
