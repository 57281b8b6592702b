//! [`Turns`]: one persist at a time, and none while a backup copies files.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Turns {
    is_taken: Mutex<bool>,
    told: Condvar,
}

/// Somebody's turn, until it is dropped.
pub(crate) struct Turn<'t>(&'t Turns);

impl Turns {
    fn is_taken(&self) -> MutexGuard<'_, bool> {
        self.is_taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn.
    pub(crate) fn wait(&self) -> Turn<'_> {
        loop {
            if let Some(turn) = self.wait_unless(|| false) {
                return turn;
            }
        }
    }

    /// Waits for a turn, unless it is needless or [becomes so](Turn::tell).
    pub(crate) fn wait_unless(&self, is_needless: impl Fn() -> bool) -> Option<Turn<'_>> {
        let mut is_taken = self.is_taken();
        while !is_needless() {
            if !*is_taken {
                *is_taken = true;
                return Some(Turn(self));
            }
            is_taken = self.told.wait(is_taken).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// A turn, if it is nobody's.
    pub(crate) fn try_take(&self) -> Option<Turn<'_>> {
        let mut is_taken = self.is_taken();
        (!std::mem::replace(&mut *is_taken, true)).then(|| Turn(self))
    }
}

impl Turn<'_> {
    /// Has those who wait look again whether they need to.
    pub(crate) fn tell(&self) {
        // Under the lock: nobody is between looking and waiting.
        let _is_taken = self.0.is_taken();
        self.0.told.notify_all();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.is_taken() = false;
        self.0.told.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn who_need_not_wait_any_more_goes_on_while_others_have_their_turn() {
        let (turns, is_needless) = (Turns::default(), AtomicBool::new(false));
        let turn = turns.wait();
        assert!(turns.try_take().is_none());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| turns.wait_unless(|| is_needless.load(Ordering::SeqCst)).is_none());
            let next = scope.spawn(|| drop(turns.wait()));
            is_needless.store(true, Ordering::SeqCst);
            turn.tell();
            assert!(waiter.join().expect("no panic"), "it got no turn");
            drop(turn);
            next.join().expect("no panic");
        });
        assert!(turns.try_take().is_some());
        assert!(turns.wait_unless(|| true).is_none());
    }
}
