//! Where a ready bio's steps run: the only code here that knows about workqueues.

use postread_workqueue::{Pools, Work, Workqueue, WqFlags};

use crate::auto::{Auto, Way};
use crate::error::EngineError;
use crate::policy::QueuePolicy;

/// A policy with the workqueue that it needs.
pub(crate) enum Dispatch {
    Inline,
    Bound(Workqueue),
    Unbound(Workqueue),
    Auto(Box<Auto>),
}

impl Dispatch {
    pub(crate) fn new(policy: QueuePolicy, pools: Option<&Pools>) -> Result<Self, EngineError> {
        let alloc = |name: &str, flags: WqFlags, high: bool, max_active: usize| {
            let online = || postread_sys::online_cpus().map_or(1, |set| set.len().max(1));
            let max_active = if max_active == 0 { online() } else { max_active };
            let flags = if high { flags | WqFlags::HIGHPRI } else { flags };
            let wq = match pools {
                Some(pools) => pools.alloc(name, flags, max_active),
                None => Workqueue::alloc(name, flags, max_active),
            };
            wq.map_err(|error| EngineError::Workqueue(Box::new(error)))
        };
        Ok(match policy {
            QueuePolicy::Inline => Self::Inline,
            QueuePolicy::Bound { high_priority, max_active } => {
                Self::Bound(alloc("postread_bound", WqFlags::PERCPU, high_priority, max_active)?)
            }
            QueuePolicy::Unbound { high_priority, max_active } => {
                Self::Unbound(alloc("postread_unbound", WqFlags::UNBOUND, high_priority, max_active)?)
            }
            QueuePolicy::Auto => Self::Auto(Box::new(Auto::new(pools, |bound, max_active| {
                let (name, flags) =
                    if bound { ("postread_bound", WqFlags::PERCPU) } else { ("postread_unbound", WqFlags::UNBOUND) };
                alloc(name, flags, false, max_active)
            })?)),
        })
    }

    /// Queues `work`, bound to `cpu` if the policy is; with `auto`, the way that was decided on. False if it is not
    /// queued: the caller must run it.
    pub(crate) fn queue(&self, cpu: u32, work: &Work, decided: Option<Way>) -> bool {
        // A CPU outside the affinity mask has no pool: the item runs near the one that queues it.
        let bound = |wq: &Workqueue| wq.queue_on(cpu, work).unwrap_or_else(|_| wq.queue(work));
        match (self, decided) {
            (Self::Inline, _) | (Self::Auto(_), None) => false,
            (Self::Bound(wq), _) => bound(wq),
            (Self::Unbound(wq), _) => wq.queue(work),
            (Self::Auto(auto), Some(Way::Bound)) => bound(auto.queue(Way::Bound)),
            (Self::Auto(auto), Some(way)) => auto.queue(way).queue(work),
        }
    }

    /// The state of the policy `auto`.
    pub(crate) fn auto(&self) -> Option<&Auto> {
        match self {
            Self::Auto(auto) => Some(auto),
            _ => None,
        }
    }

    pub(crate) fn workqueue(&self) -> Option<&Workqueue> {
        match self {
            Self::Inline => None,
            Self::Bound(wq) | Self::Unbound(wq) => Some(wq),
            Self::Auto(auto) => Some(auto.queue(Way::Unbound)),
        }
    }
}
