//! How many files may be open at once.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files as far as it may be, and returns it. What this process starts inherits it.
pub(crate) fn raise_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    // None is no limit. Where it can't be raised it stays what it was.
    let limit = if current != maximum && setrlimit(Resource::Nofile, raised).is_ok() { maximum } else { current };
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_limit_is_raised_once() {
        let limit = super::raise_limit();
        assert!(limit > 0 && super::raise_limit() == limit);
    }
}
