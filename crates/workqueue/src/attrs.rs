//! The attributes of an unbound queue, and the pools that follow from them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use postread_sys::CpuSet;

use crate::pods::AffnScope;
use crate::pool::Pool;

/// The attributes of an unbound queue, as the kernel's `workqueue_attrs`. [`Workqueue::apply_attrs`] changes them while
/// the queue is in use.
///
/// ```
/// use postread_workqueue::{AffnScope, Workqueue, WqAttrs, WqFlags};
///
/// let wq = Workqueue::alloc("hashing", WqFlags::UNBOUND, 0)?;
/// wq.apply_attrs(&WqAttrs::new().affn_scope(AffnScope::Cache).affn_strict(true))?;
/// assert_eq!(wq.attrs().affn_scope, AffnScope::Cache);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Workqueue::apply_attrs`]: crate::Workqueue::apply_attrs
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WqAttrs {
    /// The nice value of the workers. `None`: the queue's `HIGHPRI` flag decides. A value below the process's own needs
    /// a privilege (`CAP_SYS_NICE` or `RLIMIT_NICE`); without it the workers keep the process's value.
    pub nice: Option<i32>,
    /// The CPUs that workers may run on. `None`: all CPUs of the pools.
    pub cpumask: Option<CpuSet>,
    /// Which CPUs are kept together.
    pub affn_scope: AffnScope,
    /// Workers never leave their pod.
    pub affn_strict: bool,
}

impl WqAttrs {
    /// The defaults: all CPUs, [`AffnScope::CacheShard`], non-strict.
    pub fn new() -> WqAttrs {
        WqAttrs::default()
    }

    /// Sets the nice value of the workers, -20 to 19.
    #[must_use]
    pub fn nice(mut self, nice: i32) -> WqAttrs {
        self.nice = Some(nice);
        self
    }

    /// Sets the CPUs that workers may run on.
    #[must_use]
    pub fn cpumask(mut self, cpus: CpuSet) -> WqAttrs {
        self.cpumask = Some(cpus);
        self
    }

    /// Sets the affinity scope.
    #[must_use]
    pub fn affn_scope(mut self, scope: AffnScope) -> WqAttrs {
        self.affn_scope = scope;
        self
    }

    /// Sets whether workers are confined to their pod.
    #[must_use]
    pub fn affn_strict(mut self, strict: bool) -> WqAttrs {
        self.affn_strict = strict;
        self
    }
}

/// The pools that a queue's items go to.
pub(crate) struct Layout {
    pub(crate) attrs: WqAttrs,
    /// One per CPU of a bound queue, one per pod of an unbound one.
    pub(crate) pools: Vec<Arc<Pool>>,
    /// By CPU index: which of the pools.
    pub(crate) by_cpu: Box<[u16]>,
}

impl Layout {
    pub(crate) fn pool_of(&self, cpu: usize) -> &Arc<Pool> {
        &self.pools[usize::from(self.by_cpu[cpu])]
    }
}

/// All layouts that a queue has had, one for each set of attributes, so that reading the current one takes no lock and
/// items still on the pools of an old one can be found.
pub(crate) struct Layouts {
    first: Entry,
    current: AtomicUsize,
}

struct Entry {
    layout: Layout,
    next: OnceLock<Box<Entry>>,
}

impl Layouts {
    pub(crate) fn new(layout: Layout) -> Layouts {
        Layouts { first: Entry { layout, next: OnceLock::new() }, current: AtomicUsize::new(0) }
    }

    pub(crate) fn current(&self) -> &Layout {
        let mut entry = &self.first;
        for _ in 0..self.current.load(Ordering::Acquire) {
            match entry.next.get() {
                Some(next) => entry = next,
                None => break,
            }
        }
        &entry.layout
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        std::iter::successors(Some(&self.first), |entry| entry.next.get().map(Box::as_ref))
    }

    /// Every pool that an item of the queue may be on.
    pub(crate) fn pools(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.entries().flat_map(|entry| entry.layout.pools.iter())
    }

    /// Makes the layout with these attributes current, creating it with `make` if needed. Callers must serialise.
    pub(crate) fn switch<E>(&self, attrs: &WqAttrs, make: impl FnOnce() -> Result<Layout, E>) -> Result<(), E> {
        let place = match self.entries().position(|entry| entry.layout.attrs == *attrs) {
            Some(place) => place,
            None => {
                let made = Box::new(Entry { layout: make()?, next: OnceLock::new() });
                let (place, last) = self.entries().enumerate().last().unwrap_or((0, &self.first));
                let _ = last.next.set(made);
                place + 1
            }
        };
        self.current.store(place, Ordering::Release);
        Ok(())
    }
}
