//! A tree as it is listed: sorted as one directory is, each before what is in it. What is kept are names, not paths: of
//! thousands of nested directories these would take the square.

use std::ops::Range;

/// What a walk found.
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// The directories that the walk is in: the lengths of their paths, and which they are.
    within: Vec<(usize, u32)>,
}

struct Node {
    above: u32,
    name: Box<[u8]>,
    no_key: bool,
    ino: u32,
}

impl Tree {
    pub(super) fn new() -> Self {
        let top = Node { above: 0, name: Box::default(), no_key: false, ino: 0 };
        Self { nodes: vec![top], within: vec![(0, 0)] }
    }

    /// One more, in the order of a walk: each after the directory that contains it. `path` ends with the name.
    pub(super) fn add(&mut self, path: &[u8], name: &[u8], no_key: bool, ino: u32) {
        let above = path.len().saturating_sub(name.len() + 1);
        self.within.truncate(self.within.partition_point(|(len, _)| *len <= above).max(1));
        let above = self.within.last().map_or(0, |&(_, at)| at);
        // An inode has 32 bits, and a walk enters each directory once; names beyond are not listed.
        let Ok(at) = u32::try_from(self.nodes.len()) else { return };
        self.nodes.push(Node { above, name: name.into(), no_key, ino });
        self.within.push((path.len(), at));
    }

    /// Gives each with its path, whether its name is a no-key name, and its inode.
    pub(super) fn each<E>(&self, mut give: impl FnMut(&[u8], bool, u32) -> Result<(), E>) -> Result<(), E> {
        let node = |at: u32| &self.nodes[at as usize];
        let mut order: Vec<u32> = (1..self.nodes.len() as u32).collect();
        order.sort_unstable_by_key(|&at| (node(at).above, &node(at).name, node(at).ino));
        let in_dir = |dir: u32| -> Range<usize> {
            order.partition_point(|&at| node(at).above < dir)..order.partition_point(|&at| node(at).above <= dir)
        };
        let mut path = Vec::new();
        let mut stack = vec![(in_dir(0), 0)];
        while let Some((rest, len)) = stack.last_mut() {
            path.truncate(*len);
            let Some(next) = rest.next() else {
                stack.pop();
                continue;
            };
            let at = order[next];
            if *len > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(&node(at).name);
            give(&path, node(at).no_key, node(at).ino)?;
            let beneath = in_dir(at);
            if !beneath.is_empty() {
                stack.push((beneath, path.len()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postread::image::compare_paths;

    #[test]
    fn as_sorted_paths() {
        let mut state = 7u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % n
        };
        // A random walk: down, beside, or up again.
        let mut tree = Tree::new();
        let mut paths: Vec<Vec<u8>> = Vec::new();
        let mut here: Vec<Vec<u8>> = Vec::new();
        for i in 0..2000 {
            here.truncate(here.len() - random(here.len() as u64 + 1) as usize * random(2) as usize);
            let name = format!("{}{i}", ["a", "a.", "b-", "\u{e9}"][random(4) as usize]).into_bytes();
            let path = [here.concat(), name.clone()].concat();
            tree.add(&path, &name, i % 3 == 0, i);
            paths.push(path);
            if random(3) > 0 {
                here.push([name, b"/".to_vec()].concat());
            }
        }
        let mut listed = Vec::new();
        let all: Result<(), ()> = tree.each(|path, no_key, ino| {
            assert_eq!(no_key, ino % 3 == 0);
            assert_eq!(paths[ino as usize], path);
            listed.push(path.to_vec());
            Ok(())
        });
        all.unwrap();
        let mut sorted = paths.clone();
        sorted.sort_by(|a, b| compare_paths(a, b));
        assert_eq!(listed, sorted);
        assert_eq!(tree.each(|_, _, _| Err("enough")), Err("enough"));
    }
}
