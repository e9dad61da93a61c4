//! Filling a bio from a plain positional read, and finding its unreadable blocks.

use std::io;

use postread_sys::contain;

use crate::bio::Bio;
use crate::read_at::ReadAt;
use crate::status::BlockStatus;

/// Fills `bio` from `from`. Bytes past the end are zeroed and fail as short. If the read fails, the rest is read again
/// unit by unit, so that only unreadable blocks fail. If `from` panics, the whole bio fails as lost, since the contents
/// of the buffer are unknown then.
pub fn fill_from(bio: &mut Bio, from: &(impl ReadAt + ?Sized)) {
    bio.mark_begun();
    if contain(|| fill(bio, from)).is_none() {
        bio.fail_all(&BlockStatus::Lost);
    }
}

fn fill(bio: &mut Bio, from: &(impl ReadAt + ?Sized)) {
    let offset = bio.offset();
    let (done, end) = read_run(bio.buf_mut(), offset, from);
    match end {
        End::Full => {}
        End::Eof => short(bio, done),
        // Reading the bad block again reproduces the error.
        End::Error(_) => isolate(bio, done, from),
    }
}

/// Marks everything from `at` on as past the end of the source.
pub(crate) fn short(bio: &mut Bio, at: usize) {
    let len = bio.len();
    bio.buf_mut()[at..].fill(0);
    bio.statuses_mut().fail(at..len, &BlockStatus::Short);
}

enum End {
    Full,
    Eof,
    Error(io::Error),
}

fn read_run(buf: &mut [u8], offset: u64, from: &(impl ReadAt + ?Sized)) -> (usize, End) {
    let mut done = 0;
    while done < buf.len() {
        let Some(at) = offset.checked_add(done as u64) else { return (done, End::Eof) };
        match from.read_at(&mut buf[done..], at) {
            Ok(0) => return (done, End::Eof),
            // Do not trust a source that claims more bytes than fit.
            Ok(n) => done += n.min(buf.len() - done),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (done, End::Error(error)),
        }
    }
    (done, End::Full)
}

/// The read failed at `done`: reads on unit by unit (units count from offset 0 of the source).
pub(crate) fn isolate(bio: &mut Bio, done: usize, from: &(impl ReadAt + ?Sized)) {
    let unit = u64::from(bio.unit());
    let (offset, len) = (bio.offset(), bio.len());
    let mut at = done;
    while at < len {
        let position = offset.saturating_add(at as u64);
        let in_unit = usize::try_from(unit - position % unit).unwrap_or(len);
        let until = at.saturating_add(in_unit).min(len);
        let (n, end) = read_run(&mut bio.buf_mut()[at..until], position, from);
        match end {
            End::Full => {}
            End::Eof => return short(bio, at + n),
            End::Error(error) => {
                bio.buf_mut()[at..until].fill(0);
                bio.statuses_mut().fail(at..until, &BlockStatus::from_io(&error));
            }
        }
        at = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::Buf;

    /// Bytes 0..len, some of them unreadable.
    struct Holey(usize, std::ops::Range<usize>);

    impl ReadAt for Holey {
        fn len(&self) -> io::Result<u64> {
            Ok(self.0 as u64)
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            let at = offset as usize;
            let n = buf.len().min(self.0.saturating_sub(at));
            if at < self.1.end && at + n > self.1.start {
                return Err(io::Error::from_raw_os_error(5));
            }
            for (i, b) in buf[..n].iter_mut().enumerate() {
                *b = (at + i) as u8;
            }
            Ok(n)
        }
    }

    #[test]
    fn only_the_blocks_that_do_not_read_fail() {
        let mut bio = Bio::new(100, Buf::new(1000)).with_unit(64);
        fill_from(&mut bio, &Holey(900, 300..310));
        let bad: Vec<_> = bio.statuses().bad().to_vec();
        // Units of 64 from offset 0: the one with 300..310 is 256..320, that is 156..220 of the bio.
        assert_eq!(bad[0].range, 156..220);
        assert!(matches!(bad[0].status, BlockStatus::Io { errno: Some(5), .. }));
        assert_eq!(bad[1].range, 800..1000);
        assert_eq!(bad[1].status, BlockStatus::Short);
        assert_eq!(bad.len(), 2);
        assert!((0..156).chain(220..800).all(|i| bio.buf()[i] == (100 + i) as u8));
    }

    #[test]
    fn the_end_of_the_offset_space_is_an_end() {
        let mut bio = Bio::new(u64::MAX - 1, Buf::new(10));
        fill_from(&mut bio, &Holey(10, 0..0));
        assert_eq!(bio.statuses().at(0), &BlockStatus::Short);
    }

    struct Panics;

    impl ReadAt for Panics {
        fn len(&self) -> io::Result<u64> {
            Ok(1000)
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            assert!(offset < 100, "on purpose");
            let n = buf.len().min(100);
            buf[..n].fill(1);
            Ok(n)
        }
    }

    #[test]
    fn a_source_that_panics_loses_the_bio() {
        let mut bio = Bio::new(0, Buf::new(200)).with_unit(64);
        fill_from(&mut bio, &Panics);
        assert_eq!(bio.statuses().bad()[0].range, 0..200);
        assert_eq!(bio.statuses().at(0), &BlockStatus::Lost);
    }
}
