//! How many files this process may have open at once.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files (`RLIMIT_NOFILE`) to its hard limit, and returns the limit in force; `usize::MAX` if
/// there is none. Child processes inherit it.
pub fn raise_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    // None means no limit. If it can't be raised, it stays as it was.
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
