//! Owners, modes, times and extended attributes of extracted files.
//!
//! Each is set through a descriptor, so that it applies to the file that was created and not to another that takes its
//! name.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use postread::image::{Image, ImageError};
use postread::{Error, ErrorKind};
use postread_fsimage::ext4::{Inode, InodeFlags, Timestamp, Xattr, posix_acl_xattr};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::counts::LeftOut;
use crate::place::{kind_of, path_of_fd};

/// The prefix of the names of access control lists.
const POSIX_ACL: &[u8] = b"system.posix_acl_";

/// The most bytes of one inode's extended attributes.
const XATTRS_MAX: usize = 4 << 20;

/// A file's metadata.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Permissions, set-id bits, the sticky bit; the type's bits are ignored.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last change of the contents.
    pub mtime: Timestamp,
    /// Extended attributes: names and values as Linux's calls take them.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether it was immutable or append-only, which is never restored.
    pub frozen: bool,
}

/// The result of setting attributes: one that can't be set does not affect the others.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    pub(crate) left_out: LeftOut,
    /// Extended attributes that the file system does not support at all.
    pub(crate) unsupported: Vec<Vec<u8>>,
    pub(crate) failed: Vec<(String, io::Error)>,
}

impl Applied {
    fn note(&mut self, what: &str, result: rustix::io::Result<()>) {
        if let Err(error) = result {
            self.failed.push((what.to_owned(), error.into()));
        }
    }

    fn note_xattr(&mut self, name: &[u8], result: rustix::io::Result<()>) {
        match result {
            Err(Errno::OPNOTSUPP) => self.unsupported.push(name.to_vec()),
            // A malformed access control list: the image's fault.
            Err(Errno::INVAL) => {
                let malformed = io::Error::new(io::ErrorKind::InvalidData, "the kernel rejects its value");
                self.failed.push((format!("extended attribute {}", name.escape_ascii()), malformed));
            }
            other => self.note(&format!("extended attribute {}", name.escape_ascii()), other),
        }
    }
}

/// What the caller's privileges and options permit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    /// Owners are set.
    pub(crate) owners: bool,
    /// Set-id bits, device nodes and privileged extended attributes are made.
    pub(crate) privileged: bool,
}

/// What attributes are set on.
#[derive(Clone, Copy)]
pub(crate) enum Target<'f> {
    /// A file or directory that is open, and new.
    New(BorrowedFd<'f>),
    /// One from an earlier run, open as a path only: attributes that it has are not set again.
    Before(BorrowedFd<'f>),
    /// A symbolic link, open as a path only.
    Link(BorrowedFd<'f>),
    /// A pipe, socket or device, open as a path only.
    Special(BorrowedFd<'f>),
}

impl<'f> Target<'f> {
    fn fd(self) -> BorrowedFd<'f> {
        match self {
            Self::New(fd) | Self::Before(fd) | Self::Link(fd) | Self::Special(fd) => fd,
        }
    }

    fn set_owner(self, uid: Option<Uid>, gid: Option<Gid>) -> rustix::io::Result<()> {
        rustix::fs::chownat(self.fd(), "", uid, gid, AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)
    }

    fn set_xattr(self, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
        match self {
            Self::New(fd) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()),
            other => rustix::fs::setxattr(path_of_fd(other.fd()), name, value, XattrFlags::empty()),
        }
    }

    fn has_xattr(self, name: &[u8], value: &[u8]) -> rustix::io::Result<bool> {
        let mut found = vec![0; value.len() + 1];
        match rustix::fs::getxattr(path_of_fd(self.fd()), name, &mut found[..]) {
            Ok(len) => Ok(found[..len] == *value),
            Err(Errno::NODATA | Errno::RANGE) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn set_mode(self, mode: Mode) -> rustix::io::Result<()> {
        match self {
            Self::New(fd) => rustix::fs::fchmod(fd, mode),
            other => rustix::fs::chmod(path_of_fd(other.fd()), mode),
        }
    }

    fn set_times(self, times: &Timestamps) -> rustix::io::Result<()> {
        match self {
            Self::New(fd) => rustix::fs::futimens(fd, times),
            other => rustix::fs::utimensat(other.fd(), "", times, AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW),
        }
    }
}

impl Attributes {
    /// An inode's attributes, from the image. Errors of unreadable ones are passed to `failed`; the others are still
    /// returned.
    pub fn read(image: &Image, inode: &Inode, failed: &mut dyn FnMut(Error)) -> Self {
        let mut xattrs = Vec::new();
        let mut room = XATTRS_MAX;
        for xattr in image.fs().xattrs(inode) {
            let xattr = match xattr {
                Ok(xattr) => xattr,
                Err(error) => {
                    failed(ImageError::from(error).into());
                    continue;
                }
            };
            // Many entries may share one large value, so they may take more memory here than in the image.
            let Some(left) = room.checked_sub(xattr.value.len()) else {
                let what = format!("its extended attributes have more than {XATTRS_MAX} bytes: the rest is left out");
                failed(Error::new(ErrorKind::Unsupported, what));
                break;
            };
            room = left;
            xattrs.extend(named(xattr));
        }
        Self {
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            atime: inode.atime,
            mtime: inode.mtime,
            xattrs,
            frozen: inode.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND),
        }
    }

    /// The mode that a file gets. Set-id bits are set only if the file has the owner or group that they grant.
    fn mode(&self, allowed: Allowed, found: Option<&Stat>) -> Mode {
        let mut mask = 0o1777;
        if let Some(found) = found.filter(|_| allowed.privileged) {
            mask |= if found.st_uid == self.uid { 0o4000 } else { 0 };
            mask |= if found.st_gid == self.gid { 0o2000 } else { 0 };
        }
        Mode::from_raw_mode((self.mode & mask).into())
    }

    /// What is left out regardless of what the file system supports.
    fn left_out(&self, allowed: Allowed) -> LeftOut {
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

    /// Sets all of them; on a file from an earlier run only the missing ones.
    pub(crate) fn apply(&self, target: Target<'_>, allowed: Allowed) -> Applied {
        let (link, special) = (matches!(target, Target::Link(_)), matches!(target, Target::Special(_)));
        let mut applied = Applied { left_out: self.left_out(allowed), ..Applied::default() };
        let before = match target {
            Target::Before(fd) => rustix::fs::fstat(fd).ok(),
            _ => None,
        };
        if allowed.owners {
            self.apply_owner(target, before.as_ref(), &mut applied);
        }
        // Linux allows `user.*` only on files and directories.
        if !(link || special) || allowed.privileged {
            self.apply_xattrs(target, before.as_ref(), allowed, &mut applied);
        }
        if link {
            // A link has no mode of its own.
            applied.left_out = LeftOut::default();
        } else {
            // After the owner, which clears set-id bits, and after the access control list, whose mask is in the mode.
            let found = rustix::fs::fstat(target.fd()).ok();
            let mode = self.mode(allowed, found.as_ref());
            if allowed.privileged && u32::from(self.mode) & 0o6000 != mode.as_raw_mode() & 0o6000 {
                applied.left_out.set_id += 1;
            }
            let has = |found: Stat| Mode::from_raw_mode(found.st_mode & 0o7777) == mode;
            if !(before.is_some() && found.is_some_and(has)) {
                applied.note("mode", target.set_mode(mode));
            }
        }
        if before.is_none() {
            applied.note("times", target.set_times(&self.times()));
        }
        applied
    }

    fn apply_owner(&self, target: Target<'_>, before: Option<&Stat>, applied: &mut Applied) {
        // This number means no user and no group.
        let some = |id: u32| (id != u32::MAX).then_some(id);
        let (uid, gid) = (some(self.uid).map(Uid::from_raw), some(self.gid).map(Gid::from_raw));
        if before.is_none_or(|found| (found.st_uid, found.st_gid) != (self.uid, self.gid)) {
            applied.note("owner", target.set_owner(uid, gid));
        }
        if uid.is_none() || gid.is_none() {
            let what = format!("nothing can have the owner {} and the group {}", self.uid, self.gid);
            applied.failed.push(("owner".to_owned(), io::Error::new(io::ErrorKind::InvalidData, what)));
        }
    }

    fn apply_xattrs(&self, target: Target<'_>, before: Option<&Stat>, allowed: Allowed, applied: &mut Applied) {
        // An access control list changes the mode, and that may forbid the owner to set the others.
        let (lists, others): (Vec<_>, _) = self.xattrs(allowed).partition(|(name, _)| name.starts_with(POSIX_ACL));
        for (name, value) in others.into_iter().chain(lists) {
            let set = || target.set_xattr(name, value);
            let result = match before.map(|found| (found, target.has_xattr(name, value))) {
                None | Some((_, Ok(false))) => set(),
                Some((_, Ok(true))) => Ok(()),
                // The mode, which is set again below, denies access to the owner.
                Some((found, Err(Errno::ACCESS))) => {
                    let mode = Mode::from_raw_mode(found.st_mode & 0o7777) | Mode::RUSR | Mode::WUSR;
                    target.set_mode(mode).and_then(|()| set())
                }
                Some((_, Err(error))) => Err(error),
            };
            applied.note_xattr(name, result);
        }
    }

    fn times(&self) -> Timestamps {
        Timestamps { last_access: timespec(self.atime), last_modification: timespec(self.mtime) }
    }
}

/// An extended attribute in the form that Linux's system calls take; `None` if Linux hides it, or it is malformed.
fn named(xattr: Xattr) -> Option<(Vec<u8>, Vec<u8>)> {
    let name = xattr.full_name()?;
    let value = if matches!(xattr.index, 2 | 3) { posix_acl_xattr(&xattr.value)? } else { xattr.value };
    Some((name, value))
}

/// Whether the file found is a finished one of an earlier run: of this size, and last modified at this time.
pub(crate) fn is_finished(found: &Stat, size: u64, mtime: Timestamp) -> bool {
    let time = timespec(mtime);
    kind_of(found) == rustix::fs::FileType::RegularFile
        && u64::try_from(found.st_size).is_ok_and(|found| found == size)
        && found.st_mtime == time.tv_sec
        && i64::try_from(found.st_mtime_nsec).is_ok_and(|nsec| nsec == time.tv_nsec)
}

/// Reopens a path descriptor for reading, without changing the access time if possible.
pub(crate) fn open_for_reading(path: BorrowedFd<'_>) -> io::Result<std::fs::File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |more| rustix::fs::open(path_of_fd(path.as_fd()), flags | more, Mode::empty());
    Ok(open(OFlags::NOATIME).or_else(|_| open(OFlags::empty()))?.into())
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.min(999_999_999).into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::open_path;

    fn attributes(mode: u16, xattrs: Vec<(Vec<u8>, Vec<u8>)>) -> Attributes {
        let time = Timestamp { seconds: 0, nanoseconds: 0 };
        Attributes { mode, uid: 0, gid: 0, atime: time, mtime: time, xattrs, frozen: false }
    }

    /// Runs as an ordinary user, so that modes apply.
    fn as_nobody<T: Send + 'static>(file: std::fs::File, run: impl FnOnce(std::fs::File) -> T + Send + 'static) -> T {
        if !rustix::process::geteuid().is_root() {
            return run(file);
        }
        let thread = std::thread::spawn(move || {
            let nobody = Uid::from_raw(65534);
            rustix::fs::fchown(&file, Some(nobody), None).unwrap();
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            run(file)
        });
        thread.join().unwrap()
    }

    const PLAIN: Allowed = Allowed { owners: false, privileged: false };

    /// A list that denies the owner write access does not prevent other attributes from being set.
    #[test]
    fn access_control_lists_come_last() {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("file")).unwrap();
        // Version 2; user::---, group::---, other::---.
        let none = |tag: u16| [&tag.to_le_bytes()[..], &[0, 0], &[0xff; 4]].concat();
        let list = [&2u32.to_le_bytes()[..], &none(1), &none(4), &none(0x20)].concat();
        let xattrs = vec![(b"system.posix_acl_access".to_vec(), list), (b"user.after".to_vec(), b"value".to_vec())];
        let applied = as_nobody(file, move |file| attributes(0o100000, xattrs).apply(Target::New(file.as_fd()), PLAIN));
        assert!(applied.failed.is_empty(), "{applied:?}");
    }

    /// The next run sets what an earlier run could not, although the mode denies access to the owner.
    #[test]
    fn what_is_missing_is_set_later() {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("file")).unwrap();
        let one = vec![(b"user.one".to_vec(), b"1".to_vec())];
        let two = [&one[..], &[(b"user.two".to_vec(), b"2".to_vec())]].concat();
        rustix::fs::chmod(dir.path(), Mode::from_raw_mode(0o755)).unwrap();
        let top: std::os::fd::OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
        let name = dir.path().join("file");
        let failed = as_nobody(file, move |file| {
            let first = attributes(0o100000, one).apply(Target::New(file.as_fd()), PLAIN);
            let path = open_path(top.as_fd(), b"file").unwrap();
            let second = attributes(0o100000, two).apply(Target::Before(path.as_fd()), PLAIN);
            first.failed.len() + second.failed.len()
        });
        assert_eq!(failed, 0);
        let found = rustix::fs::stat(&name).unwrap();
        assert_eq!(found.st_mode & 0o7777, 0);
        if rustix::process::geteuid().is_root() {
            let mut value = [0; 8];
            assert_eq!(rustix::fs::getxattr(&name, "user.two", &mut value[..]), Ok(1));
        }
    }
}
