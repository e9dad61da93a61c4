//! Queue policies: where a completed bio's steps run.

use std::fmt;

/// Where the steps of a completed bio run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueuePolicy {
    /// Decided for each bio, from what has been measured: see [`auto`](crate::auto).
    Auto,
    /// On the thread that completed the bio.
    #[default]
    Inline,
    /// Queued to the CPU that completed it.
    Bound {
        /// In the high-priority pools.
        high_priority: bool,
        /// The most items at once per CPU; 0 means the number of online CPUs.
        max_active: usize,
    },
    /// Queued to whatever CPU is free.
    Unbound {
        /// In the high-priority pools.
        high_priority: bool,
        /// The most items at once; 0 means the number of online CPUs.
        max_active: usize,
    },
}

impl QueuePolicy {
    /// Bound, at normal priority, as many items at once as there are CPUs.
    pub const BOUND: Self = Self::Bound { high_priority: false, max_active: 0 };
    /// Unbound, at normal priority, as many items at once as there are CPUs.
    pub const UNBOUND: Self = Self::Unbound { high_priority: false, max_active: 0 };

    /// The same policy in the high-priority pools (`Inline` and `Auto` have none, and stay what they are).
    #[must_use]
    pub fn high_priority(self) -> Self {
        match self {
            Self::Inline | Self::Auto => self,
            Self::Bound { max_active, .. } => Self::Bound { high_priority: true, max_active },
            Self::Unbound { max_active, .. } => Self::Unbound { high_priority: true, max_active },
        }
    }

    /// The same policy with another max_active (`Inline` and `Auto` have none, and stay what they are).
    #[must_use]
    pub fn max_active(self, max_active: usize) -> Self {
        match self {
            Self::Inline | Self::Auto => self,
            Self::Bound { high_priority, .. } => Self::Bound { high_priority, max_active },
            Self::Unbound { high_priority, .. } => Self::Unbound { high_priority, max_active },
        }
    }
}

impl fmt::Display for QueuePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, high) = match self {
            Self::Auto => ("auto", false),
            Self::Inline => ("inline", false),
            Self::Bound { high_priority, .. } => ("bound", *high_priority),
            Self::Unbound { high_priority, .. } => ("unbound", *high_priority),
        };
        write!(f, "{name}{}", if high { " high-priority" } else { "" })
    }
}
