//! The system workqueues: queues that any part of a program may use for items that need no queue of their own.

use std::sync::{Mutex, OnceLock};

use crate::error::AllocError;
use crate::flags::WqFlags;
use crate::queue::Workqueue;
use crate::sync::lock;

struct System {
    name: &'static str,
    flags: WqFlags,
    wq: OnceLock<Workqueue>,
}

impl System {
    const fn new(name: &'static str, flags: WqFlags) -> System {
        System { name, flags, wq: OnceLock::new() }
    }

    fn get(&self) -> Result<&Workqueue, AllocError> {
        static MAKING: Mutex<()> = Mutex::new(());
        if let Some(wq) = self.wq.get() {
            return Ok(wq);
        }
        let _one_at_a_time = lock(&MAKING);
        if let Some(wq) = self.wq.get() {
            return Ok(wq);
        }
        let wq = Workqueue::alloc(self.name, self.flags, 0)?;
        Ok(self.wq.get_or_init(|| wq))
    }
}

/// The bound system queue, for short items. Made on first use.
///
/// # Errors
/// As [`Workqueue::alloc`], where it cannot be made.
pub fn system_percpu_wq() -> Result<&'static Workqueue, AllocError> {
    static WQ: System = System::new("system_percpu_wq", WqFlags::PERCPU);
    WQ.get()
}

/// The unbound system queue, for everything else.
///
/// # Errors
/// As [`system_percpu_wq`].
pub fn system_dfl_wq() -> Result<&'static Workqueue, AllocError> {
    static WQ: System = System::new("system_dfl_wq", WqFlags::UNBOUND);
    WQ.get()
}

/// The bound system queue of high priority.
///
/// # Errors
/// As [`system_percpu_wq`].
pub fn system_highpri_wq() -> Result<&'static Workqueue, AllocError> {
    static WQ: System = System::new("system_highpri_wq", WqFlags::PERCPU.union(WqFlags::HIGHPRI));
    WQ.get()
}

/// The bound system queue for items that may take long: they do not delay the short ones of [`system_percpu_wq`].
///
/// # Errors
/// As [`system_percpu_wq`].
pub fn system_long_wq() -> Result<&'static Workqueue, AllocError> {
    static WQ: System = System::new("system_long_wq", WqFlags::PERCPU);
    WQ.get()
}

/// The unbound system queue for items that may take long.
///
/// # Errors
/// As [`system_percpu_wq`].
pub fn system_dfl_long_wq() -> Result<&'static Workqueue, AllocError> {
    static WQ: System = System::new("system_dfl_long_wq", WqFlags::UNBOUND);
    WQ.get()
}
