//! Everything that a reader finds in an image, by inode number: the kernel through a mount, and ours.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use postread_fsimage::ext4::{Ext4, FileType, ROOT_INO, Timestamp};
use rustix::fs::{lgetxattr, llistxattr, makedev};

/// Contents are compared in pieces of this size, so that a piece that cannot be read costs no other.
const PIECE: u64 = 1024;
/// Pieces of a file that are compared.
const PIECES: u64 = 512;
/// Bounds for images whose directories lead anywhere.
const DEPTH: usize = 12;
const INODES: usize = 5000;

/// What was found; nothing at all where the image was refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found(pub(super) BTreeMap<u64, Inode>);

/// An inode. What is missing was refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Inode {
    pub(super) stat: Option<String>,
    pub(super) names: BTreeMap<Vec<u8>, u64>,
    /// Some of the names could not be read.
    pub(super) names_failed: bool,
    pub(super) target: Option<Vec<u8>>,
    /// A hash of each piece.
    pub(super) pieces: Vec<Option<u64>>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Some of the extended attributes could not be listed.
    pub(super) xattrs_failed: bool,
}

/// Attributes that both sides show as they are stored, whatever the kernel was built with.
fn plain(name: &[u8]) -> bool {
    [&b"user."[..], b"trusted."].iter().any(|prefix| name.starts_with(prefix))
}

/// Nanoseconds since 1970. Some kernels show more nanoseconds than a second has, if the disk does.
fn moment(seconds: i64, nanoseconds: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
}

fn hash(piece: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    piece.hash(&mut hasher);
    hasher.finish()
}

fn pieces(size: u64, read: impl Fn(&mut [u8], u64) -> bool) -> Vec<Option<u64>> {
    let count = size.div_ceil(PIECE).min(PIECES);
    // Mostly all of it can be read at once.
    let mut all = vec![0; size.min(PIECES * PIECE) as usize];
    if read(&mut all, 0) {
        return all.chunks(PIECE as usize).map(|piece| Some(hash(piece))).collect();
    }
    let piece = |i: u64| {
        let mut buf = vec![0; PIECE.min(size - i * PIECE) as usize];
        read(&mut buf, i * PIECE).then(|| hash(&buf))
    };
    (0..count).map(piece).collect()
}

/// What the kernel shows of a mounted image.
pub(super) fn by_kernel(root: &Path) -> Found {
    let mut found = Found::default();
    kernel_visit(root, 0, &mut found);
    found
}

fn kernel_visit(path: &Path, depth: usize, found: &mut Found) {
    let Ok(meta) = fs::symlink_metadata(path) else { return };
    if found.0.contains_key(&meta.ino()) || found.0.len() > INODES {
        return;
    }
    let stat = (meta.mode(), meta.nlink(), meta.uid(), meta.gid(), meta.size(), meta.rdev());
    let times = (moment(meta.mtime(), meta.mtime_nsec()), moment(meta.ctime(), meta.ctime_nsec()));
    let mut inode = Inode { stat: Some(format!("{stat:?} {times:?}")), ..Inode::default() };
    let mut below = Vec::new();
    if meta.is_dir() {
        match fs::read_dir(path) {
            Err(_) => inode.names_failed = true,
            Ok(entries) => {
                for entry in entries.take(INODES) {
                    let Ok(entry) = entry else {
                        inode.names_failed = true;
                        break;
                    };
                    inode.names.insert(entry.file_name().as_bytes().to_vec(), entry.ino());
                    below.push(entry.path());
                }
            }
        }
    } else if meta.is_symlink() {
        inode.target = fs::read_link(path).ok().map(|target| target.as_os_str().as_bytes().to_vec());
    } else if meta.is_file() {
        let file = fs::File::options().read(true).custom_flags(0o400_000).open(path);
        inode.pieces = pieces(meta.size(), |buf, at| {
            file.as_ref().is_ok_and(|file| FileExt::read_exact_at(file, buf, at).is_ok())
        });
    }
    // Small buffers: a guest pays for each page that it touches for the first time.
    let mut names = [0; 4096];
    match llistxattr(path, &mut names) {
        Err(_) => inode.xattrs_failed = true,
        Ok(len) => {
            for name in names[..len].split(|&byte| byte == 0).filter(|name| plain(name)) {
                let mut value = [0; 4096];
                let read = lgetxattr(path, name, &mut value).ok();
                inode.xattrs.insert(name.to_vec(), read.map(|len| value[..len].to_vec()));
            }
        }
    }
    found.0.insert(meta.ino(), inode);
    if depth < DEPTH {
        below.iter().for_each(|path| kernel_visit(path, depth + 1, found));
    }
}

/// What our reader finds.
pub(super) fn by_us(fs: &Ext4) -> Found {
    let mut found = Found::default();
    if fs.root().is_ok() {
        our_visit(fs, ROOT_INO, 0, &mut found);
    }
    found
}

fn our_visit(fs: &Ext4, ino: u32, depth: usize, found: &mut Found) {
    if found.0.contains_key(&ino.into()) || found.0.len() > INODES {
        return;
    }
    let Ok(node) = (if ino == ROOT_INO { fs.root() } else { fs.inode(ino) }) else { return };
    let rdev = node.device().map_or(0, |(major, minor)| makedev(major, minor));
    let stat = (u32::from(node.mode), u64::from(node.nlink), node.uid, node.gid, node.size, rdev);
    let time = |time: Timestamp| moment(time.seconds, time.nanoseconds.into());
    let times = (time(node.mtime), time(node.ctime));
    let mut inode = Inode { stat: Some(format!("{stat:?} {times:?}")), ..Inode::default() };
    match node.file_type {
        FileType::Directory => match fs.read_dir(&node) {
            Err(_) => inode.names_failed = true,
            Ok(entries) => {
                for entry in entries.take(INODES) {
                    match entry {
                        Err(_) => inode.names_failed = true,
                        Ok(entry) if entry.is_dot_or_dotdot() => {}
                        // The kernel's system call gives up at such a name.
                        Ok(entry) if entry.name.contains(&b'/') => {}
                        Ok(entry) => {
                            // To a program a name ends at a zero byte.
                            let name = entry.name.split(|&byte| byte == 0).next().unwrap_or_default();
                            inode.names.insert(name.to_vec(), entry.ino.into());
                        }
                    }
                }
            }
        },
        FileType::Symlink => inode.target = fs.symlink_target(&node).ok(),
        FileType::Regular => {
            let file = fs.open_raw(&node);
            inode.pieces =
                pieces(node.size, |buf, at| file.as_ref().is_ok_and(|file| file.read_raw_at(buf, at).is_ok()));
        }
        _ => {}
    }
    for xattr in fs.xattrs(&node) {
        match xattr {
            Err(_) => inode.xattrs_failed = true,
            Ok(xattr) => {
                if let Some(name) = xattr.full_name().filter(|name| plain(name)) {
                    inode.xattrs.entry(name).or_insert(Some(xattr.value));
                }
            }
        }
    }
    let below: Vec<u64> = inode.names.values().copied().collect();
    found.0.insert(ino.into(), inode);
    if depth < DEPTH {
        below.into_iter().for_each(|ino| our_visit(fs, ino as u32, depth + 1, found));
    }
}

impl Found {
    /// As lines of text, which [`Found::parse`] reads.
    pub(super) fn to_text(&self) -> String {
        let mut out = String::new();
        for (ino, inode) in &self.0 {
            if let Some(stat) = &inode.stat {
                writeln!(out, "I {ino} {stat}").unwrap();
            }
            for (name, to) in &inode.names {
                writeln!(out, "N {ino} {} {to}", hex::encode(name)).unwrap();
            }
            if let Some(target) = &inode.target {
                writeln!(out, "L {ino} {}", hex::encode(target)).unwrap();
            }
            for piece in &inode.pieces {
                writeln!(out, "P {ino} {}", piece.map_or("-".into(), |piece| piece.to_string())).unwrap();
            }
            for (name, value) in &inode.xattrs {
                let value = value.as_ref().map_or("-".into(), |value| format!("={}", hex::encode(value)));
                writeln!(out, "X {ino} {} {value}", hex::encode(name)).unwrap();
            }
            for (letter, failed) in [("n", inode.names_failed), ("x", inode.xattrs_failed)] {
                if failed {
                    writeln!(out, "{letter} {ino}").unwrap();
                }
            }
        }
        out
    }

    pub(super) fn parse(text: &str) -> Self {
        let mut found = Self::default();
        let bytes = |text: &str| hex::decode(text).expect("hexadecimal");
        for line in text.lines() {
            let mut parts = line.splitn(3, ' ');
            let mut part = || parts.next().unwrap_or_default();
            let (kind, ino, rest) = (part(), part(), part());
            let inode = found.0.entry(ino.parse().expect("an inode number")).or_default();
            let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
            match kind {
                "I" => inode.stat = Some(rest.into()),
                "N" => drop(inode.names.insert(bytes(first), second.parse().expect("an inode number"))),
                "L" => inode.target = Some(bytes(first)),
                "P" => inode.pieces.push(first.parse().ok()),
                "X" => drop(inode.xattrs.insert(bytes(first), second.strip_prefix('=').map(bytes))),
                "n" => inode.names_failed = true,
                "x" => inode.xattrs_failed = true,
                _ => panic!("{line}"),
            }
        }
        found
    }
}
