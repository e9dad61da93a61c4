//! Paths stored one name at a time, so that files in deeply nested directories take memory only for their names, not
//! for whole paths.

use std::cmp::Ordering;

/// A directory of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dir(u32);

/// The parent of every first name.
pub(crate) const NO_DIR: Dir = Dir(0);

/// The directories on the paths that were added.
#[derive(Debug)]
pub(crate) struct PathTree {
    /// The parent directory, and the name.
    dirs: Vec<(Dir, Box<[u8]>)>,
    /// The directories of the path added last.
    last: Vec<Dir>,
}

/// A path: a name in a directory.
#[derive(Clone, Debug)]
pub(crate) struct TreePath {
    dir: Dir,
    name: Box<[u8]>,
}

impl PathTree {
    pub(crate) fn new() -> Self {
        Self { dirs: vec![(NO_DIR, Box::default())], last: Vec::new() }
    }

    /// Adds a path. A directory is stored once if its paths are added one after the other, as a walk finds them.
    pub(crate) fn add(&mut self, path: &[u8]) -> TreePath {
        let (above, name) = match path.iter().rposition(|&byte| byte == b'/') {
            Some(at) => (Some(&path[..at]), &path[at + 1..]),
            None => (None, path),
        };
        let mut level = 0;
        for part in above.into_iter().flat_map(|above| above.split(|&byte| byte == b'/')) {
            let known = self.last.get(level).is_some_and(|dir| *self.dirs[dir.0 as usize].1 == *part);
            if !known {
                self.last.truncate(level);
                let dir = Dir(self.dirs.len() as u32);
                self.dirs.push((self.last.last().copied().unwrap_or(NO_DIR), part.into()));
                self.last.push(dir);
            }
            level += 1;
        }
        self.last.truncate(level);
        TreePath { dir: self.last.last().copied().unwrap_or(NO_DIR), name: name.into() }
    }

    /// The names of a path.
    fn names<'t>(&'t self, path: &'t TreePath) -> Vec<&'t [u8]> {
        let mut names = vec![&*path.name];
        let mut dir = path.dir;
        while dir != NO_DIR {
            let (above, name) = &self.dirs[dir.0 as usize];
            names.push(name);
            dir = *above;
        }
        names.reverse();
        names
    }

    /// The path as it was added.
    pub(crate) fn path(&self, path: &TreePath) -> Vec<u8> {
        self.names(path).join(&b'/')
    }

    /// Orders a directory before its contents, and its contents before its next sibling.
    pub(crate) fn compare(&self, a: &TreePath, b: &TreePath) -> Ordering {
        if a.dir == b.dir { a.name.cmp(&b.name) } else { self.names(a).cmp(&self.names(b)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_come_back_and_directories_are_kept_once() {
        let mut tree = PathTree::new();
        let paths: [&[u8]; 7] = [b"/a", b"/d/a", b"/d/b", b"/d/e/f", b"/d/c", b"/b", b"plain"];
        let added: Vec<_> = paths.iter().map(|path| tree.add(path)).collect();
        for (path, added) in paths.iter().zip(&added) {
            assert_eq!(tree.path(added), *path);
        }
        // The one that none has above it, the empty name before the first slash (again after `plain`), `d`, `e`.
        assert_eq!(tree.dirs.len(), 4);
        assert_eq!(tree.compare(&added[3], &added[4]), Ordering::Greater);
        assert_eq!(tree.compare(&added[0], &added[1]), Ordering::Less);
    }
}
