//! [`Held`]: memory that a transaction keeps for itself until it ends, as the [account](crate::memory) knows it: what it has read
//! and must look at again, the changes that it has noted, what savepoints bring back, what was read ahead.
//!
//! The account hears of it in steps, so that whoever reads writes no line that others use, but for one time in many.

use crate::memory::Account;

/// Of so many bytes, or a sixteenth of a small budget.
const STEP_BYTES_MAX: usize = 64 << 10;
const STEP_BYTES_MIN: usize = 1 << 10;

/// Of one transaction. See the [module](self).
#[derive(Default)]
pub(crate) struct Held {
    bytes: usize,
    /// What of it the account has been told.
    told: usize,
    /// With so many it is told again: a step more than it has been told, once the step is known.
    tells_at: usize,
}

impl Held {
    /// So many more bytes; whether the account was told of them, and of those before.
    #[inline]
    pub(crate) fn add(&mut self, bytes: usize, account: &Account) -> bool {
        self.bytes += bytes;
        self.bytes >= self.tells_at && self.tell(account)
    }

    #[cold]
    fn tell(&mut self, account: &Account) -> bool {
        let step = Self::step(account);
        self.tells_at = self.told + step;
        if self.bytes < self.tells_at {
            // The first time: only now is the step known.
            return false;
        }
        account.add(self.bytes - self.told);
        self.told = self.bytes;
        self.tells_at = self.bytes + step;
        true
    }

    fn step(account: &Account) -> usize {
        (account.budget() as usize / 16).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX)
    }

    /// So many bytes fewer.
    pub(crate) fn subtract(&mut self, bytes: usize, account: &Account) {
        self.bytes = self.bytes.saturating_sub(bytes);
        if self.told > self.bytes {
            account.subtract(self.told - self.bytes);
            self.told = self.bytes;
            self.tells_at = self.bytes + Self::step(account);
        }
    }

    /// All of it has been given back.
    #[inline]
    pub(crate) fn clear(&mut self, account: &Account) {
        if self.told > 0 {
            account.subtract(self.told);
        }
        // As far ahead as before.
        self.tells_at -= self.told;
        (self.bytes, self.told) = (0, 0);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::counted::stores;

    #[test]
    fn the_account_hears_of_it_in_steps_and_when_it_is_given_back() {
        // Counted to the byte, with steps of a kilobyte.
        let account = Account::new(1000);
        let mut held = Held::default();
        for number in 1..=10_000 {
            let before = stores();
            let told = held.add(1, &account);
            assert_eq!((told, account.used()), (number % 1024 == 0, number / 1024 * 1024));
            assert_eq!(stores() > before, told);
        }
        let before = account.used() as usize;
        held.subtract(10_000 - before, &account);
        assert_eq!(account.used() as usize, before, "as much as it knows of");
        held.subtract(100, &account);
        assert_eq!(account.used() as usize, before - 100);
        assert!(!held.add(1023, &account) && held.add(1, &account));
        held.clear(&account);
        assert_eq!((account.used(), held.bytes), (0, 0));
        assert!(!held.add(1, &account));
    }
}
