//! Owners, modes, times and extended attributes of what was extracted.

use std::io;
use std::ops::AddAssign;
use std::os::fd::{AsRawFd, BorrowedFd};

use postread_fsimage::ext4::{Inode, InodeFlags, Timestamp, Xattr, posix_acl_xattr};
use rustix::fs::{AtFlags, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use serde::Serialize;

/// How the names of access control lists begin.
const POSIX_ACL: &[u8] = b"system.posix_acl_";

/// What is put on a file besides its contents.
#[derive(Clone, Debug)]
pub(super) struct Attributes {
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    /// Names and values as Linux's calls take them.
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether it was immutable or append-only, which nothing here is made.
    pub(super) frozen: bool,
}

/// What was left out by design, not because anything failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct LeftOut {
    /// Device nodes that were not made.
    pub(crate) devices: u64,
    /// Files and directories without the set-id bits that they had.
    pub(crate) set_id: u64,
    /// Extended attributes other than `user.*` and access control lists: file capabilities, security labels.
    pub(crate) xattrs: u64,
    /// Files and directories that were immutable or append-only.
    pub(crate) flags: u64,
}

impl AddAssign for LeftOut {
    fn add_assign(&mut self, other: Self) {
        self.devices += other.devices;
        self.set_id += other.set_id;
        self.xattrs += other.xattrs;
        self.flags += other.flags;
    }
}

/// How putting attributes on a file went: each that can be put is.
#[derive(Debug, Default)]
pub(super) struct Put {
    pub(super) left_out: LeftOut,
    /// Extended attributes that the file system there does not take at all.
    pub(super) unsupported: Vec<Vec<u8>>,
    pub(super) failed: Vec<(String, io::Error)>,
}

impl Put {
    fn note(&mut self, what: &str, result: rustix::io::Result<()>) {
        if let Err(error) = result {
            self.failed.push((what.to_owned(), error.into()));
        }
    }

    fn note_xattr(&mut self, name: &[u8], result: rustix::io::Result<()>) {
        match result {
            Err(rustix::io::Errno::OPNOTSUPP) => self.unsupported.push(name.to_vec()),
            // An access control list that is none: the image's fault.
            Err(rustix::io::Errno::INVAL) => {
                let malformed = io::Error::new(io::ErrorKind::InvalidData, "the kernel takes no such value");
                self.failed.push((format!("extended attribute {}", name.escape_ascii()), malformed));
            }
            other => self.note(&format!("extended attribute {}", name.escape_ascii()), other),
        }
    }
}

/// What the caller's privileges and options allow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    /// Owners are set.
    pub(super) owners: bool,
    /// Set-id bits, device nodes and privileged extended attributes are made.
    pub(super) privileged: bool,
}

impl Attributes {
    pub(super) fn of(inode: &Inode, xattrs: &[Xattr]) -> Self {
        let named = xattrs.iter().filter_map(|xattr| {
            let name = xattr.full_name()?;
            let value = if matches!(xattr.index, 2 | 3) { posix_acl_xattr(&xattr.value)? } else { xattr.value.clone() };
            Some((name, value))
        });
        Self {
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            atime: inode.atime,
            mtime: inode.mtime,
            xattrs: named.collect(),
            frozen: inode.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND),
        }
    }

    /// The mode that a file gets. Set-id bits only where the owner or group that they would lend is the image's.
    fn mode(&self, allowed: Allowed, found: Option<&Stat>) -> Mode {
        let mut mask = 0o1777;
        if let Some(found) = found.filter(|_| allowed.privileged) {
            mask |= if found.st_uid == self.uid { 0o4000 } else { 0 };
            mask |= if found.st_gid == self.gid { 0o2000 } else { 0 };
        }
        Mode::from_raw_mode((self.mode & mask).into())
    }

    /// What is left out whatever the file system says.
    pub(super) fn left_out(&self, allowed: Allowed) -> LeftOut {
        let taken = self.xattrs(allowed).count();
        LeftOut {
            devices: 0,
            set_id: u64::from(self.mode & 0o6000 != 0 && !allowed.privileged),
            xattrs: (self.xattrs.len() - taken) as u64,
            flags: u64::from(self.frozen),
        }
    }

    fn xattrs(&self, allowed: Allowed) -> impl Iterator<Item = (&[u8], &[u8])> {
        let plain = |name: &[u8]| name.starts_with(b"user.") || name.starts_with(POSIX_ACL);
        self.xattrs
            .iter()
            .filter(move |(name, _)| allowed.privileged || plain(name))
            .map(|(name, value)| (name.as_slice(), value.as_slice()))
    }

    /// Puts them on an open file or directory.
    pub(super) fn put(&self, file: BorrowedFd<'_>, allowed: Allowed) -> Put {
        let mut put = Put { left_out: self.left_out(allowed), ..Put::default() };
        if allowed.owners {
            let (uid, gid) = self.owners();
            put.note("owner", rustix::fs::fchown(file, uid, gid));
            self.check_owners(allowed, &mut put);
        }
        // An access control list changes the mode, and that may forbid the owner to set the others.
        let (lists, others): (Vec<_>, _) = self.xattrs(allowed).partition(|(name, _)| name.starts_with(POSIX_ACL));
        for (name, value) in others.into_iter().chain(lists) {
            put.note_xattr(name, rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()));
        }
        // After the owner, which clears set-id bits, and after the access control list, whose mask is in the mode.
        let mode = self.mode(allowed, rustix::fs::fstat(file).ok().as_ref());
        self.note_set_id(mode, allowed, &mut put);
        put.note("mode", rustix::fs::fchmod(file, mode));
        put.note("times", rustix::fs::futimens(file, &self.times()));
        put
    }

    /// Puts them on what can't be opened: a link, a pipe, a socket, a device.
    pub(super) fn put_at(&self, dir: BorrowedFd<'_>, name: &[u8], link: bool, allowed: Allowed) -> Put {
        let mut put = Put::default();
        if allowed.owners {
            let (uid, gid) = self.owners();
            put.note("owner", rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW));
            self.check_owners(allowed, &mut put);
        }
        if allowed.privileged {
            let path = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name].concat();
            for (xattr, value) in self.xattrs(allowed) {
                put.note_xattr(xattr, rustix::fs::lsetxattr(&path[..], xattr, value, XattrFlags::empty()));
            }
        }
        if !link {
            put.left_out = self.left_out(allowed);
            let found = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok();
            let mode = self.mode(allowed, found.as_ref());
            self.note_set_id(mode, allowed, &mut put);
            // Made by us a moment ago, and no link.
            put.note("mode", rustix::fs::chmodat(dir, name, mode, AtFlags::empty()));
        }
        put.note("times", rustix::fs::utimensat(dir, name, &self.times(), AtFlags::SYMLINK_NOFOLLOW));
        put
    }

    /// Set-id bits that were asked for and are not set.
    fn note_set_id(&self, mode: Mode, allowed: Allowed, put: &mut Put) {
        if allowed.privileged && u32::from(self.mode) & 0o6000 != mode.as_raw_mode() & 0o6000 {
            put.left_out.set_id += 1;
        }
    }

    /// The owner and the group; none where it is the number that stands for none, which nothing can have.
    fn owners(&self) -> (Option<Uid>, Option<Gid>) {
        let some = |id: u32| (id != u32::MAX).then_some(id);
        (some(self.uid).map(Uid::from_raw), some(self.gid).map(Gid::from_raw))
    }

    fn check_owners(&self, allowed: Allowed, put: &mut Put) {
        if allowed.owners && matches!(self.owners(), (None, _) | (_, None)) {
            let what = format!("nothing can have the owner {} and the group {}", self.uid, self.gid);
            put.failed.push(("owner".to_owned(), io::Error::new(io::ErrorKind::InvalidData, what)));
        }
    }

    fn times(&self) -> Timestamps {
        Timestamps { last_access: timespec(self.atime), last_modification: timespec(self.mtime) }
    }

    /// Whether a finished file is there already: of this size, and with this time.
    pub(super) fn is_there(&self, dir: BorrowedFd<'_>, name: &[u8], size: u64) -> bool {
        let Ok(Some(found)) = super::beneath::stat(dir, name) else { return false };
        let regular = rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::RegularFile;
        let time = timespec(self.mtime);
        regular
            && u64::try_from(found.st_size).is_ok_and(|found| found == size)
            && found.st_mtime == time.tv_sec
            && i64::try_from(found.st_mtime_nsec).is_ok_and(|nsec| nsec == time.tv_nsec)
    }
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.min(999_999_999).into() }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// A list that takes the owner's right to write does not keep other attributes off.
    #[test]
    fn access_control_lists_come_last() {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("file")).unwrap();
        // Version 2; user::---, group::---, other::---.
        let none = |tag: u16| [&tag.to_le_bytes()[..], &[0, 0], &[0xff; 4]].concat();
        let list = [&2u32.to_le_bytes()[..], &none(1), &none(4), &none(0x20)].concat();
        let time = Timestamp { seconds: 0, nanoseconds: 0 };
        let xattrs = vec![(b"system.posix_acl_access".to_vec(), list), (b"user.after".to_vec(), b"value".to_vec())];
        let attributes = Attributes { mode: 0o100000, uid: 0, gid: 0, atime: time, mtime: time, xattrs, frozen: false };
        let allowed = Allowed { owners: false, privileged: false };
        // Root is never forbidden.
        let put = match rustix::process::geteuid().is_root() {
            false => attributes.put(file.as_fd(), allowed),
            true => std::thread::spawn(move || {
                let nobody = Uid::from_raw(65534);
                rustix::fs::fchown(&file, Some(nobody), None).unwrap();
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                attributes.put(file.as_fd(), allowed)
            })
            .join()
            .unwrap(),
        };
        assert!(put.failed.is_empty(), "{put:?}");
    }
}
