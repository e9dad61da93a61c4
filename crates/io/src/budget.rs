//! The budget of bytes in flight: one per process, checked when a bio is submitted.
//!
//! Three kinds of requests: read-ahead gets at most half of the budget, and so yields first; a demand bio may use all
//! of it; and a demand bio of one block (with its inputs) is always admitted, so that every reader makes progress
//! however full the budget is.

use std::fmt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The default limit of the process's budget, in bytes.
const DEFAULT_LIMIT: u64 = 64 << 20;

#[derive(Debug)]
struct Inner {
    limit: AtomicU64,
    used: AtomicU64,
    peak: AtomicU64,
    refused: AtomicU64,
}

/// A budget of bytes in flight. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

impl Budget {
    /// A separate budget, for tests and for embedders that keep several.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Inner {
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// The process's budget: 64 MiB unless changed with [`Budget::set_limit`].
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<Budget> = OnceLock::new();
        GLOBAL.get_or_init(|| Self::new(DEFAULT_LIMIT))
    }

    /// Sets the limit in bytes. What is in flight stays in flight.
    pub fn set_limit(&self, bytes: u64) {
        self.0.limit.store(bytes, Ordering::Relaxed);
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// Bytes in flight now.
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// The most bytes that were in flight at once.
    pub fn peak(&self) -> u64 {
        self.0.peak.load(Ordering::Relaxed)
    }

    /// How many requests were refused.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Admits a demand bio of `bytes`, or refuses it while the budget is full.
    pub fn demand(&self, bytes: u64) -> Option<Permit> {
        self.admit(bytes, self.limit())
    }

    /// Admits a read-ahead bio of `bytes` if at most half of the budget is then in use.
    pub fn read_ahead(&self, bytes: u64) -> Option<Permit> {
        self.admit(bytes, self.limit() / 2)
    }

    /// Admits one block and its inputs, always.
    pub fn always(&self, bytes: u64) -> Permit {
        let used = self.0.used.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
        self.0.peak.fetch_max(used, Ordering::Relaxed);
        Permit { budget: self.clone(), bytes }
    }

    fn admit(&self, bytes: u64, limit: u64) -> Option<Permit> {
        let mut used = self.used();
        loop {
            let Some(after) = used.checked_add(bytes).filter(|after| *after <= limit) else {
                self.0.refused.fetch_add(1, Ordering::Relaxed);
                return None;
            };
            match self.0.used.compare_exchange_weak(used, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    if self.peak() < after {
                        self.0.peak.fetch_max(after, Ordering::Relaxed);
                    }
                    return Some(Permit { budget: self.clone(), bytes });
                }
                Err(now) => used = now,
            }
        }
    }
}

/// Bytes admitted; dropping it gives them back.
pub struct Permit {
    budget: Budget,
    bytes: u64,
}

impl Permit {
    /// Bytes admitted.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({})", self.bytes)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_yields_first_and_one_block_always_passes() {
        let budget = Budget::new(100);
        let first = budget.read_ahead(50).expect("half is for read-ahead");
        assert!(budget.read_ahead(1).is_none());
        let second = budget.demand(50).expect("demand may use the rest");
        assert!(budget.demand(1).is_none());
        let third = budget.always(10);
        assert_eq!((budget.used(), budget.peak(), budget.refused()), (110, 110, 2));
        drop((first, second, third));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_huge_request_does_not_overflow() {
        let budget = Budget::new(u64::MAX);
        let _some = budget.demand(10);
        assert!(budget.demand(u64::MAX).is_none());
    }
}
