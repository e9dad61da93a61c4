//! The end of a bio: reported exactly once.

use std::fmt;
use std::sync::{Arc, Mutex};

use postread_sys::contain;

use crate::bio::Bio;

/// Receives the end of a bio.
pub trait BioEnd: Send + Sync {
    /// The bio of `slot` has ended on `cpu`. `bio` is `None` if the source lost it. Called exactly once per completion,
    /// on the completing thread, which may be the submitting one before `submit` returns. A panic in here is contained:
    /// the completing thread has other bios to complete.
    fn end(self: Arc<Self>, slot: u32, bio: Option<Bio>, cpu: u32);
}

/// The right and the duty to complete one bio. Completing consumes it; dropping it completes the bio as lost.
#[must_use = "dropping a completion completes its bio as lost"]
pub struct Completion {
    target: Option<Arc<dyn BioEnd>>,
    slot: u32,
}

impl Completion {
    /// A completion that reports the end of the bio of `slot` to `target`.
    pub fn new(target: Arc<dyn BioEnd>, slot: u32) -> Self {
        Self { target: Some(target), slot }
    }

    /// A completion that calls a function with the bio (none: lost) and the completing CPU.
    pub fn from_fn(f: impl FnOnce(Option<Bio>, u32) + Send + 'static) -> Self {
        Self::new(Arc::new(Once(Mutex::new(Some(f)))), 0)
    }

    /// Completes the bio on `cpu`.
    pub fn complete(mut self, bio: Bio, cpu: u32) {
        self.end(Some(bio), cpu);
    }

    fn end(&mut self, bio: Option<Bio>, cpu: u32) {
        if let Some(target) = self.target.take() {
            let _ = contain(|| target.end(self.slot, bio, cpu));
        }
    }

    /// Completes the bio on the CPU that this thread runs on.
    pub fn complete_here(self, bio: Bio) {
        self.complete(bio, crate::current_cpu());
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if self.target.is_some() {
            self.end(None, crate::current_cpu());
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("slot", &self.slot).finish_non_exhaustive()
    }
}

struct Once<F>(Mutex<Option<F>>);

impl<F: FnOnce(Option<Bio>, u32) + Send> BioEnd for Once<F> {
    fn end(self: Arc<Self>, _slot: u32, bio: Option<Bio>, cpu: u32) {
        let f = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(f) = f {
            f(bio, cpu);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::Buf;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn once_and_only_once() {
        let ends = Arc::new(AtomicU32::new(0));
        let lost = Arc::new(AtomicU32::new(0));
        let make = || {
            let (ends, lost) = (ends.clone(), lost.clone());
            Completion::from_fn(move |bio, _| {
                ends.fetch_add(1, Ordering::Relaxed);
                lost.fetch_add(u32::from(bio.is_none()), Ordering::Relaxed);
            })
        };
        make().complete_here(Bio::new(0, Buf::new(1)));
        assert_eq!((ends.load(Ordering::Relaxed), lost.load(Ordering::Relaxed)), (1, 0));
        drop(make());
        assert_eq!((ends.load(Ordering::Relaxed), lost.load(Ordering::Relaxed)), (2, 1));
    }

    #[test]
    fn a_panic_stays_inside() {
        Completion::from_fn(|_, _| std::panic::resume_unwind(Box::new(0))).complete_here(Bio::new(0, Buf::new(1)));
        drop(Completion::from_fn(|_, _| std::panic::resume_unwind(Box::new(0))));
        // While another panic unwinds, a second one would abort the process.
        let unwound = contain(|| {
            let _dropped_on_the_way = Completion::from_fn(|_, _| std::panic::resume_unwind(Box::new(0)));
            std::panic::resume_unwind(Box::new(1));
        });
        assert!(unwound.is_none());
    }
}
