//! Inodes as listings show them.

use postread_fsimage::ext4::{FileType, Inode, Timestamp};

/// `drwxr-xr-x`, as `ls -l` shows it.
pub(crate) fn mode_string(inode: &Inode) -> String {
    let kind = match inode.file_type {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        _ => '?',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = inode.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, inode.mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// A moment in UTC, `2024-02-29T12:34:56Z`: listings don't depend on where they are made.
pub(crate) fn time_string(time: Timestamp) -> String {
    let days = time.seconds.div_euclid(86400);
    let second = time.seconds.rem_euclid(86400);
    // Civil date from days since 1970: years of 400-year cycles that begin in March.
    let shifted = days + 719_468;
    let cycle = shifted.div_euclid(146_097);
    let day_of_cycle = shifted.rem_euclid(146_097);
    let year_of_cycle = (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_cycle + cycle * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_civil() {
        let text = |seconds| time_string(Timestamp { seconds, nanoseconds: 0 });
        assert_eq!(text(0), "1970-01-01T00:00:00Z");
        assert_eq!(text(-1), "1969-12-31T23:59:59Z");
        assert_eq!(text(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(text(4_102_444_800), "2100-01-01T00:00:00Z");
    }
}
