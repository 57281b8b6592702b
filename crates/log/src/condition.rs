//! Whether the log is fit for work: one byte that every append looks at, and the reason if it is not.

use crate::sync::{AtomicU8, Mutex, Ordering};
use crate::{AppendError, LogError, Poison};
use std::sync::{Arc, PoisonError};

const FIT: u8 = 0;
const SPACE_LOW: u8 = 1;
const POISONED: u8 = 2;

/// Poison is for ever; a shortage of disk space comes and goes.
#[derive(Default)]
pub(crate) struct Condition {
    state: AtomicU8,
    poison: Mutex<Option<Arc<Poison>>>,
}

impl Condition {
    /// Refuses if the log is poisoned, or if the disk is full and the record is not `essential`.
    #[inline]
    pub(crate) fn admit(&self, essential: bool) -> Result<(), AppendError> {
        match self.state.load(Ordering::Relaxed) {
            FIT => Ok(()),
            state => self.refuse(state, essential),
        }
    }

    #[cold]
    fn refuse(&self, state: u8, essential: bool) -> Result<(), AppendError> {
        match self.poison() {
            Some(poison) => Err(AppendError::Poisoned(poison)),
            None if state == SPACE_LOW && !essential => Err(AppendError::DiskFull),
            None => Ok(()),
        }
    }

    /// What stopped the log, if something did.
    pub(crate) fn poison(&self) -> Option<Arc<Poison>> {
        // Acquire pairs with `stop`.
        if self.state.load(Ordering::Acquire) != POISONED {
            return None;
        }
        self.poison.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn check(&self) -> Result<(), LogError> {
        self.poison().map_or(Ok(()), |poison| Err(LogError::Poisoned(poison)))
    }

    /// Stops the log for ever. The first reason counts.
    pub(crate) fn stop(&self, error: &LogError) {
        let mut poison = self.poison.lock().unwrap_or_else(PoisonError::into_inner);
        poison.get_or_insert_with(|| Arc::new(error.to_poison()));
        self.state.store(POISONED, Ordering::Release);
    }

    pub(crate) fn set_space_low(&self, low: bool) {
        let (from, to) = if low { (FIT, SPACE_LOW) } else { (SPACE_LOW, FIT) };
        let _ = self.state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn is_space_low(&self) -> bool {
        self.state.load(Ordering::Relaxed) == SPACE_LOW
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use deuteron_contract::Lsn;

    #[test]
    fn shortage_goes_and_poison_stays() {
        let condition = Condition::default();
        condition.set_space_low(true);
        assert_eq!(condition.admit(false), Err(AppendError::DiskFull));
        assert_eq!(condition.admit(true), Ok(()));
        condition.set_space_low(false);
        assert_eq!(condition.admit(false), Ok(()));
        condition.stop(&LogError::NotARecord { lsn: Lsn(5) });
        condition.stop(&LogError::NotARecord { lsn: Lsn(6) });
        condition.set_space_low(true);
        let Err(AppendError::Poisoned(poison)) = condition.admit(true) else { panic!("admitted") };
        assert_eq!(poison.reason, "no log record starts at 5");
        assert!(condition.check().is_err());
    }
}
