//! How many files may be open at once, and how many threads that is enough for.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files as far as it may be, and returns it. What this process starts inherits it.
pub(crate) fn raise_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    // None is no limit. Where it can't be raised it stays what it was.
    let limit = if current != maximum && setrlimit(Resource::Nofile, raised).is_ok() { maximum } else { current };
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// How many threads may work at once, each with `each` open files, where `reserved` are open besides. At least one: it
/// tells what it can't open.
pub(crate) fn threads(wanted: usize, limit: usize, reserved: usize, each: usize) -> usize {
    (limit.saturating_sub(reserved) / each.max(1)).clamp(1, wanted.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_fit_in_the_limit() {
        assert_eq!(threads(1024, 1 << 20, 300, 4), 1024);
        assert_eq!(threads(1024, 1024, 304, 4), 180);
        assert_eq!(threads(8, 100, 300, 4), 1);
        assert_eq!(threads(0, usize::MAX, 300, 4), 1);
        assert!(raise_limit() > 0);
    }
}
