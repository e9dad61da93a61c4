//! The directories that are extracted into, as a tree of names, and the open ones on the current path.
//!
//! Paths are stored as one name per directory, so memory is linear in the length of the names even for thousands of
//! nested directories; and a directory is opened from one that is already open, so time is linear in their number. Few
//! stay open however deep the path is: all of the last levels, and fewer and fewer of those above.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::listing::Listing;
use crate::place::{Place, open_dir};

/// Of the last `SPACING` levels each directory stays open, of the last `SPACING` squared every `SPACING`th, and so on.
const SPACING: usize = 16;
/// How many times the spacing widens: 16 levels, 256, 4096; above, each 4096th stays.
const WIDENINGS: u32 = 3;
/// Longest path given to one call; longer ones are opened in steps.
const STEP_MAX: usize = 2048;

/// The most directories that a path of a few thousand levels keeps open, some of which it is about to close.
pub(crate) const OPEN_MAX: usize = 64;

/// A directory that is extracted into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirId(u32);

/// The directory that everything is created in.
pub(crate) const TOP: DirId = DirId(0);

#[derive(Debug)]
struct Node {
    above: DirId,
    level: usize,
    name: Box<[u8]>,
    /// What was in it before.
    before: Arc<Listing>,
    /// Which attributes it gets: a key that the tree's source knows. None of the top directory's.
    key: Option<u64>,
}

/// The tree.
#[derive(Debug)]
pub(crate) struct Directories {
    nodes: Vec<Node>,
}

impl Directories {
    pub(crate) fn new(before: Arc<Listing>) -> Self {
        Self { nodes: vec![Node { above: TOP, level: 0, name: Box::default(), before, key: None }] }
    }

    /// Adds a directory. `None` if there are more than any file system can have.
    pub(crate) fn add(&mut self, above: DirId, name: &[u8], before: Arc<Listing>, key: u64) -> Option<DirId> {
        let id = DirId(u32::try_from(self.nodes.len()).ok()?);
        let level = self.node(above).level + 1;
        self.nodes.push(Node { above, level, name: name.into(), before, key: Some(key) });
        Some(id)
    }

    fn node(&self, id: DirId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// The path of a name in a directory, from the top one.
    pub(crate) fn path(&self, mut dir: DirId, name: &[u8]) -> Vec<u8> {
        let mut names = vec![name];
        while dir != TOP {
            let node = self.node(dir);
            names.push(&node.name);
            dir = node.above;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// All but the top one, with the keys of their attributes, in reverse order of addition: each before its parent.
    pub(crate) fn last_first(&self) -> impl Iterator<Item = (DirId, u64)> {
        let all = (0..self.nodes.len()).rev();
        all.filter_map(|at| Some((DirId(at as u32), self.nodes[at].key?)))
    }

    /// A directory's own path.
    pub(crate) fn path_of(&self, dir: DirId) -> Vec<u8> {
        let node = self.node(dir);
        if dir == TOP { Vec::new() } else { self.path(node.above, &node.name) }
    }
}

/// The path from the top directory to the current one, partly open.
#[derive(Debug)]
pub(crate) struct OpenPath {
    /// The directories on the path, from the top one.
    ids: Vec<DirId>,
    /// Those of them that are open, by level.
    open: BTreeMap<usize, Arc<Place>>,
    /// Directories that were opened.
    #[cfg(test)]
    opened: usize,
}

/// Whether the directory at a level of a path stays open while the path ends at `last`.
fn stays(level: usize, last: usize) -> bool {
    let mut spacing = 1;
    for _ in 0..WIDENINGS {
        if level.is_multiple_of(spacing) && last - level < spacing * SPACING {
            return true;
        }
        spacing *= SPACING;
    }
    level.is_multiple_of(spacing)
}

impl OpenPath {
    pub(crate) fn new(top: Arc<Place>) -> Self {
        Self {
            ids: vec![TOP],
            open: BTreeMap::from([(0, top)]),
            #[cfg(test)]
            opened: 0,
        }
    }

    /// Opens a directory, below the top one and without following links.
    pub(crate) fn open(&mut self, all: &Directories, dir: DirId) -> io::Result<Arc<Place>> {
        let mut down = Vec::new();
        let mut at = dir;
        while self.ids.get(all.node(at).level) != Some(&at) {
            down.push(at);
            at = all.node(at).above;
        }
        let shared = all.node(at).level;
        self.ids.truncate(shared + 1);
        self.open.split_off(&(shared + 1));
        self.ids.extend(down.into_iter().rev());
        let last = self.ids.len() - 1;
        // The top one is always there.
        let (mut level, mut place) = self
            .open
            .last_key_value()
            .map(|(&level, place)| (level, place.clone()))
            .unwrap_or_else(|| unreachable!("the top directory is never closed"));
        while level < last {
            let mut path = Vec::new();
            loop {
                level += 1;
                path.extend_from_slice(&all.node(self.ids[level]).name);
                let next = self.ids.get(level + 1).map_or(0, |&next| all.node(next).name.len());
                if stays(level, last) || path.len() + 1 + next > STEP_MAX {
                    break;
                }
                path.push(b'/');
            }
            let fd = open_dir(place.dir(), &path)?;
            place = Arc::new(Place { fd, before: all.node(self.ids[level]).before.clone() });
            #[cfg(test)]
            {
                self.opened += path.split(|&b| b == b'/').count();
            }
            if stays(level, last) {
                self.open.insert(level, place.clone());
            }
        }
        if self.open.len() > OPEN_MAX + last / SPACING.pow(WIDENINGS) {
            self.open.retain(|&level, _| stays(level, last));
        }
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;
    use crate::top::Top;

    fn top(dir: &Path) -> (Top, Directories, OpenPath) {
        let top = Top::open(dir).unwrap();
        let path = OpenPath::new(top.place());
        let all = Directories::new(top.place().before.clone());
        (top, all, path)
    }

    fn add(all: &mut Directories, above: DirId, name: &[u8]) -> DirId {
        all.add(above, name, Arc::default(), 0).unwrap()
    }

    fn inode(place: &Place) -> u64 {
        rustix::fs::fstat(&place.fd).unwrap().st_ino
    }

    #[test]
    fn links_and_dots_do_not_lead_out() {
        let outside = tempfile::tempdir().unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("in")).unwrap();
        symlink(outside.path(), dir.path().join("link")).unwrap();
        symlink("in", dir.path().join("inner")).unwrap();
        let (top, mut all, mut path) = top(dir.path());
        let inner = add(&mut all, TOP, b"in");
        path.open(&all, inner).unwrap();
        let absolute = outside.path().as_os_str().as_bytes();
        for name in [&b"link"[..], b"inner", b"..", b"in/../..", absolute] {
            for above in [TOP, inner] {
                let bad = add(&mut all, above, name);
                assert!(path.open(&all, bad).is_err(), "{}", name.escape_ascii());
            }
        }
        // And after all that it still opens the same directory.
        path.open(&all, inner).unwrap();
        let here = path.open(&all, TOP).unwrap();
        assert!(here.directory(b"link").is_err());
        drop(top);
    }

    /// Down 700 levels, up again with a look into a neighbour at each, and leaps: always the right one, few open.
    #[test]
    fn deep_paths() {
        const DEEP: usize = 700;
        let dir = tempfile::tempdir().unwrap();
        let (top, mut all, mut path) = top(dir.path());
        let mut ids = vec![(TOP, inode(&path.open(&all, TOP).unwrap()))];
        let mut neighbours = Vec::new();
        for level in 0..DEEP {
            let (above, _) = ids[level];
            let here = path.open(&all, above).unwrap();
            // Some long names: a step has few of those.
            let name = if level % 100 == 7 { vec![b'l'; 200] } else { b"d".to_vec() };
            for name in [&name[..], b"n"] {
                here.directory(name).unwrap();
            }
            let id = add(&mut all, above, &name);
            ids.push((id, inode(&path.open(&all, id).unwrap())));
            neighbours.push(add(&mut all, above, b"n"));
            assert!(path.open.len() <= OPEN_MAX + 1);
        }
        assert!(path.opened <= 4 * DEEP, "{}", path.opened);
        path.opened = 0;
        for level in (0..DEEP).rev() {
            path.open(&all, neighbours[level]).unwrap();
            assert_eq!(inode(&path.open(&all, ids[level].0).unwrap()), ids[level].1, "{level}");
        }
        // Both directories of each level, and those between that were closed.
        assert!(path.opened <= 6 * DEEP, "{}", path.opened);
        for leap in (0..200).map(|i| i * 7919 % DEEP) {
            assert_eq!(inode(&path.open(&all, ids[leap].0).unwrap()), ids[leap].1, "{leap}");
            path.open(&all, neighbours[DEEP - 1 - leap]).unwrap();
        }
        let path = all.path_of(ids[DEEP].0);
        assert_eq!(path.split(|&b| b == b'/').count(), DEEP);
        assert_eq!(all.path(ids[DEEP].0, b"x"), [&path[..], b"/x"].concat());
        assert_eq!(all.last_first().count(), 2 * DEEP);
        // Of a million levels as few as of these.
        let open = (0..1_000_000).filter(|&level| stays(level, 999_999)).count();
        assert!(open <= OPEN_MAX + 1_000_000 / 4096, "{open}");
        drop(top);
    }
}
