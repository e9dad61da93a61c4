//! Owners, modes, times and extended attributes of what was extracted.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use postread_fsimage::ext4::{Inode, Timestamp, Xattr, posix_acl_xattr};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};

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
        }
    }

    fn mode(&self, allowed: Allowed) -> Mode {
        let mask = if allowed.privileged { 0o7777 } else { 0o1777 };
        Mode::from_raw_mode((self.mode & mask).into())
    }

    fn xattrs(&self, allowed: Allowed) -> impl Iterator<Item = (&[u8], &[u8])> {
        let plain = |name: &[u8]| name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_");
        self.xattrs
            .iter()
            .filter(move |(name, _)| allowed.privileged || plain(name))
            .map(|(name, value)| (name.as_slice(), value.as_slice()))
    }

    /// Puts them on an open file or directory. Returns the attributes that the file system there does not take.
    pub(super) fn put(&self, file: BorrowedFd<'_>, allowed: Allowed) -> io::Result<Vec<Vec<u8>>> {
        if allowed.owners {
            let (uid, gid) = self.owners();
            rustix::fs::fchown(file, uid, gid)?;
        }
        let mut left_out = Vec::new();
        for (name, value) in self.xattrs(allowed) {
            match rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()) {
                Err(rustix::io::Errno::OPNOTSUPP) => left_out.push(name.to_vec()),
                other => other?,
            }
        }
        // After the owner, which clears set-id bits, and after the access control list, whose mask is in the mode.
        rustix::fs::fchmod(file, self.mode(allowed))?;
        rustix::fs::futimens(file, &self.times())?;
        self.check_owners(allowed)?;
        Ok(left_out)
    }

    /// Puts them on what can't be opened: a link, a pipe, a socket, a device.
    pub(super) fn put_at(&self, dir: BorrowedFd<'_>, name: &[u8], link: bool, allowed: Allowed) -> io::Result<()> {
        if allowed.owners {
            let (uid, gid) = self.owners();
            rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if allowed.privileged {
            let path = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name].concat();
            for (xattr, value) in self.xattrs(allowed) {
                rustix::fs::lsetxattr(&path[..], xattr, value, XattrFlags::empty())?;
            }
        }
        if !link {
            // Made by us a moment ago, and no link.
            rustix::fs::chmodat(dir, name, self.mode(allowed), AtFlags::empty())?;
        }
        rustix::fs::utimensat(dir, name, &self.times(), AtFlags::SYMLINK_NOFOLLOW)?;
        self.check_owners(allowed)
    }

    /// The owner and the group; none where it is the number that stands for none, which nothing can have.
    fn owners(&self) -> (Option<Uid>, Option<Gid>) {
        let some = |id: u32| (id != u32::MAX).then_some(id);
        (some(self.uid).map(Uid::from_raw), some(self.gid).map(Gid::from_raw))
    }

    fn check_owners(&self, allowed: Allowed) -> io::Result<()> {
        if allowed.owners && matches!(self.owners(), (None, _) | (_, None)) {
            let what = format!("nothing can have the owner {} and the group {}", self.uid, self.gid);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(())
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
