//! SmallBank: accounts of which each has savings and a checking balance, and six small transactions on them.
//!
//! After Alomari, Cahill, Fekete and Röhm, "The Cost of Serializability on Platforms That Use Snapshot Isolation" (ICDE 2008), with the sixth
//! transaction and the shares of H-Store's. Money is in cents; amounts are drawn. The transactions have an anomaly under snapshot isolation:
//! a write-check that does not see a withdrawal from the savings takes no penalty although somebody has seen the account without
//! funds.
//!
//! | transaction | share | what it does |
//! |---|---|---|
//! | balance | 15 % | reads both balances |
//! | deposit-checking | 15 % | pays into the checking balance |
//! | transact-savings | 15 % | pays into the savings, or out of them; rolls back if they do not suffice |
//! | amalgamate | 15 % | moves all that one account has to the checking balance of another |
//! | send-payment | 25 % | moves an amount between checking balances; rolls back if that does not suffice |
//! | write-check | 15 % | takes an amount from the checking balance, and a penalty if both together do not suffice |
//!
//! Accounts are named, and each transaction begins by looking its names up. They are drawn uniformly, or most of them from a few hot ones
//! ([`SmallBank::with_hotspot`]).

use super::key::{Key, KeyParts};
use super::mix::{between, kind};
use super::report::Examination;
use super::row::{Texts, row};
use super::{
    Access, Application, ApplicationStore, ApplicationTransaction, Client, Condition, Emit, Interruption,
    Row, each_record, find, read, read_for_update, write,
};
use crate::{BenchError, Random};
use std::sync::atomic::{AtomicI64, Ordering};

const ACCOUNTS: usize = 0;
const SAVINGS: usize = 1;
const CHECKING: usize = 2;

const TRANSACTIONS: &[(&str, u32)] = &[
    ("balance", 15),
    ("deposit-checking", 15),
    ("transact-savings", 15),
    ("amalgamate", 15),
    ("send-payment", 25),
    ("write-check", 15),
];

/// What a check costs that is not covered, in cents.
const PENALTY: i64 = 100;

row! {
    /// Leads from a name to an account.
    Account { account: u64 }
}
row! {
    /// In cents.
    Balance { cents: i64 }
}

/// The benchmark, with a number of accounts.
///
/// ```
/// use deuteron_bench::{Application, SmallBank};
/// assert_eq!(SmallBank::new(100).with_hotspot(10, 0.9).scale(), "100 accounts, 90 % of the draws from 10");
/// ```
#[derive(Debug)]
pub struct SmallBank {
    accounts: u64,
    hot_accounts: u64,
    hot_share: f64,
    /// All money, in cents: what was loaded, paid in and taken out by commits.
    money: AtomicI64,
}

impl SmallBank {
    /// With so many accounts, at least two, drawn uniformly.
    ///
    /// ```
    /// # use deuteron_bench::Application;
    /// assert_eq!(deuteron_bench::SmallBank::new(10).scale(), "10 accounts");
    /// ```
    pub fn new(accounts: u64) -> Self {
        Self { accounts: accounts.max(2), hot_accounts: 0, hot_share: 0.0, money: AtomicI64::new(0) }
    }

    /// A share of the draws, 0 to 1, is from so many accounts, two to all of them.
    ///
    /// ```
    /// let bank = deuteron_bench::SmallBank::new(18_000).with_hotspot(10, 0.9);
    /// # let _ = bank;
    /// ```
    pub fn with_hotspot(self, accounts: u64, share: f64) -> Self {
        Self { hot_accounts: accounts.clamp(2, self.accounts), hot_share: share, ..self }
    }

    /// An account that is not `other`.
    fn draw(&self, other: Option<u64>, random: &mut Random) -> u64 {
        loop {
            let hot = random.unit() < self.hot_share;
            let account = random.below(if hot { self.hot_accounts } else { self.accounts });
            if Some(account) != other {
                return account;
            }
        }
    }
}

fn name_of(account: u64) -> Key {
    Key::new().text(format!("{account:020}").as_bytes(), 20)
}

fn key(account: u64) -> Key {
    Key::new().u64(account)
}

fn balance(cents: i64) -> Balance {
    Balance { cents, texts: Texts::default() }
}

impl Application for SmallBank {
    fn name(&self) -> &'static str {
        "small-bank"
    }

    fn scale(&self) -> String {
        match self.hot_accounts {
            0 => format!("{} accounts", self.accounts),
            hot => {
                format!("{} accounts, {} % of the draws from {hot}", self.accounts, 100.0 * self.hot_share)
            }
        }
    }

    fn tables(&self) -> &'static [&'static str] {
        &["accounts", "savings", "checking"]
    }

    fn transactions(&self) -> &'static [(&'static str, u32)] {
        TRANSACTIONS
    }

    fn rows(&self, emit: Emit<'_>) -> Result<(), BenchError> {
        let random = &mut Random::new(LOAD_SEED);
        let mut money = 0;
        for account in 0..self.accounts {
            let row = Account { account, texts: Texts::default() };
            emit(ACCOUNTS, &name_of(account), &row.encode())?;
            for table in [SAVINGS, CHECKING] {
                let cents = between(1_000_000, 5_000_000, random) as i64;
                money += cents;
                emit(table, &key(account), &balance(cents).encode())?;
            }
        }
        self.money.store(money, Ordering::Relaxed);
        Ok(())
    }

    fn client(&self, seed: u64) -> Box<dyn Client + '_> {
        let request = Request { kind: 0, account: 0, other: 0, amount: 0 };
        Box::new(Teller { bank: self, random: Random::new(seed), request, money: 0 })
    }

    fn check(&self, store: &dyn ApplicationStore) -> Result<Vec<Condition>, BenchError> {
        let mut money = Examination::new("all money is what was loaded, paid in and taken out");
        let mut whole =
            Examination::new("every account has savings, which are not negative, and a checking balance");
        let mut sum = 0;
        for table in [SAVINGS, CHECKING] {
            let mut expected = 0;
            each_record(store, table, &mut |key, value| {
                let (account, cents) = (read_account(key)?, Balance::decode(value)?.cents);
                whole.expect(account == expected, || format!("{account} where {expected} should be"));
                whole.expect(table != SAVINGS || cents >= 0, || {
                    format!("{account} has savings of {cents} cents")
                });
                expected = account + 1;
                sum += cents;
                Ok(())
            })?;
            whole.expect(expected == self.accounts, || format!("{expected} accounts, not {}", self.accounts));
        }
        let expected = self.money.load(Ordering::Relaxed);
        money.expect(sum == expected, || format!("{sum} cents, not {expected}"));
        Ok([money, whole].into_iter().map(Examination::conclude).collect())
    }
}

/// Sets the rows, which are the same in each load.
const LOAD_SEED: u64 = 0x5ba4;

fn read_account(key: &[u8]) -> Result<u64, BenchError> {
    let mut parts = KeyParts(key);
    Ok(u64::from(parts.u32()?) << 32 | u64::from(parts.u32()?))
}

/// What a transaction is given.
#[derive(Clone, Copy, Debug)]
struct Request {
    kind: usize,
    account: u64,
    other: u64,
    /// In cents; negative is paid out.
    amount: i64,
}

/// The tellers of one thread.
struct Teller<'a> {
    bank: &'a SmallBank,
    random: Random,
    request: Request,
    /// Paid in less taken out by commits, in cents.
    money: i64,
}

impl Drop for Teller<'_> {
    fn drop(&mut self) {
        self.bank.money.fetch_add(self.money, Ordering::Relaxed);
    }
}

impl Client for Teller<'_> {
    fn draw(&mut self) -> usize {
        let random = &mut self.random;
        let kind = kind(TRANSACTIONS, random);
        let account = self.bank.draw(None, random);
        let other = self.bank.draw(Some(account), random);
        let amount = between(100, 10_000, random) as i64;
        // Savings are paid in as often as out.
        let amount = if kind == 2 && random.below(2) == 0 { -amount } else { amount };
        self.request = Request { kind, account, other, amount };
        kind
    }

    fn attempt(&mut self, store: &dyn ApplicationStore) -> Result<(), Interruption> {
        let request = &self.request;
        let mut money = 0;
        let access = if request.kind == 0 { Access::Read } else { Access::Write };
        store.transact(access, &mut |tx| {
            money = match request.kind {
                0 => request.balance(tx).map(|_| 0)?,
                1 => request.deposit_checking(tx)?,
                2 => request.transact_savings(tx)?,
                3 => request.amalgamate(tx)?,
                4 => request.send_payment(tx)?,
                _ => request.write_check(tx)?,
            };
            Ok(())
        })?;
        self.money += money;
        Ok(())
    }
}

type Transaction<'t> = &'t mut dyn ApplicationTransaction;

/// Each returns what it pays in, in cents, but for [`Request::balance`], which returns what it reads.
impl Request {
    fn balance(&self, tx: Transaction<'_>) -> Result<i64, Interruption> {
        let account = look_up(tx, self.account)?;
        Ok(read::<Balance>(tx, SAVINGS, &account)?.cents + read::<Balance>(tx, CHECKING, &account)?.cents)
    }

    fn deposit_checking(&self, tx: Transaction<'_>) -> Result<i64, Interruption> {
        let account = look_up(tx, self.account)?;
        let checking = read_for_update::<Balance>(tx, CHECKING, &account)?.cents;
        write(tx, CHECKING, &account, &balance(checking + self.amount))?;
        Ok(self.amount)
    }

    fn transact_savings(&self, tx: Transaction<'_>) -> Result<i64, Interruption> {
        let account = look_up(tx, self.account)?;
        let savings = read_for_update::<Balance>(tx, SAVINGS, &account)?.cents + self.amount;
        if savings < 0 {
            return Err(Interruption::RolledBack("insufficient funds"));
        }
        write(tx, SAVINGS, &account, &balance(savings))?;
        Ok(self.amount)
    }

    fn amalgamate(&self, tx: Transaction<'_>) -> Result<i64, Interruption> {
        let (account, other) = (look_up(tx, self.account)?, look_up(tx, self.other)?);
        let savings = read_for_update::<Balance>(tx, SAVINGS, &account)?.cents;
        let checking = read_for_update::<Balance>(tx, CHECKING, &account)?.cents;
        let receiver = read_for_update::<Balance>(tx, CHECKING, &other)?.cents;
        write(tx, SAVINGS, &account, &balance(0))?;
        write(tx, CHECKING, &account, &balance(0))?;
        write(tx, CHECKING, &other, &balance(receiver + savings + checking))?;
        Ok(0)
    }

    fn send_payment(&self, tx: Transaction<'_>) -> Result<i64, Interruption> {
        let (account, other) = (look_up(tx, self.account)?, look_up(tx, self.other)?);
        let sender = read_for_update::<Balance>(tx, CHECKING, &account)?.cents;
        if sender < self.amount {
            return Err(Interruption::RolledBack("insufficient funds"));
        }
        let receiver = read_for_update::<Balance>(tx, CHECKING, &other)?.cents;
        write(tx, CHECKING, &account, &balance(sender - self.amount))?;
        write(tx, CHECKING, &other, &balance(receiver + self.amount))?;
        Ok(0)
    }

    fn write_check(&self, tx: Transaction<'_>) -> Result<i64, Interruption> {
        let account = look_up(tx, self.account)?;
        let savings = read::<Balance>(tx, SAVINGS, &account)?.cents;
        let checking = read_for_update::<Balance>(tx, CHECKING, &account)?.cents;
        let covered = savings + checking >= self.amount;
        let taken = if covered { self.amount } else { self.amount + PENALTY };
        write(tx, CHECKING, &account, &balance(checking - taken))?;
        Ok(-taken)
    }
}

/// The account of a name.
fn look_up(tx: Transaction<'_>, account: u64) -> Result<Key, Interruption> {
    match find::<Account>(tx, ACCOUNTS, &name_of(account))? {
        Some(row) => Ok(key(row.account)),
        None => Err(Interruption::RolledBack("no such account")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{
        assert_shares, break_row, committed, empty, loaded, run_and_check, violated,
    };
    use super::*;
    use deuteron::Isolation;

    #[test]
    fn runs_on_several_threads_and_its_conditions_hold() {
        for bank in [SmallBank::new(200), SmallBank::new(200).with_hotspot(3, 0.9)] {
            let store = loaded(&bank);
            run_and_check(&bank, &store);
            store.close().unwrap();
        }
    }

    #[test]
    fn transactions_come_in_their_shares_and_hot_accounts_in_theirs() {
        let bank = SmallBank::new(1_000).with_hotspot(10, 0.9);
        assert_shares(&bank);
        let mut random = Random::new(1);
        let hot = (0..10_000).filter(|_| bank.draw(None, &mut random) < 10).count();
        assert!((8_900..9_200).contains(&hot), "{hot}");
        assert!((0..1_000).all(|_| bank.draw(Some(3), &mut random) != 3));
    }

    #[test]
    fn each_violation_is_named() {
        let bank = SmallBank::new(20);
        let store = loaded(&bank);
        assert_eq!(violated(&bank, &store), [""; 0]);
        break_row::<Balance>(&store, CHECKING, key(5), |row| row.cents += 1);
        let found = violated(&bank, &store);
        assert!(found.len() == 1 && found[0].starts_with("all money"), "{found:?}");
        break_row::<Balance>(&store, CHECKING, key(5), |row| row.cents -= 1);
        break_row::<Balance>(&store, SAVINGS, key(5), |row| row.cents = -1);
        let found = violated(&bank, &store);
        assert!(found.len() == 2 && found[1].contains("5 has savings of -1 cents"), "{found:?}");
        store.transact(Access::Write, &mut |tx| tx.delete(SAVINGS, &key(19))).unwrap();
        assert!(violated(&bank, &store)[1].contains("violate"));
        store.close().unwrap();
    }

    /// One account with 100.00 in savings and nothing in checking, and another.
    fn two_accounts(isolation: Isolation) -> (SmallBank, super::super::EmbeddedApplicationStore) {
        let bank = SmallBank::new(2);
        let store = empty(&bank).isolated(isolation);
        let filled = store.transact(Access::Write, &mut |tx| {
            for account in 0..2 {
                write(tx, ACCOUNTS, &name_of(account), &Account { account, texts: Texts::default() })?;
                write(tx, SAVINGS, &key(account), &balance(10_000))?;
                write(tx, CHECKING, &key(account), &balance(0))?;
            }
            Ok(())
        });
        filled.unwrap();
        (bank, store)
    }

    fn request(kind: usize, amount: i64) -> Request {
        Request { kind, account: 0, other: 1, amount }
    }

    #[test]
    fn rules_roll_back_and_penalties_are_taken() {
        let (bank, store) = two_accounts(Isolation::Serializable);
        let mut teller = Teller { bank: &bank, random: Random::new(1), request: request(4, 1), money: 0 };
        assert!(matches!(teller.attempt(&store), Err(Interruption::RolledBack("insufficient funds"))));
        teller.request = request(2, -10_001);
        assert!(matches!(teller.attempt(&store), Err(Interruption::RolledBack("insufficient funds"))));
        teller.request = Request { account: 7, ..request(1, 5) };
        assert!(matches!(teller.attempt(&store), Err(Interruption::RolledBack("no such account"))));
        for (kind, amount, money) in
            [(1, 30, 30), (2, -10_000, -9_970), (5, 30, -10_000), (5, 1, -10_101), (3, 0, -10_101)]
        {
            teller.request = request(kind, amount);
            teller.attempt(&store).unwrap();
            assert_eq!(teller.money, money, "{kind}");
        }
        // The other has its own, and what the first owed.
        let cents = |account| {
            let request = Request { account, ..request(0, 0) };
            committed(&store, Access::Read, |tx| request.balance(tx))
        };
        assert_eq!([0, 1].map(cents), [0, 9_899]);
        drop(teller);
        store.close().unwrap();
    }

    /// A check of 50.00 is written; between its reads and its write, another takes the savings of 100.00, and a third looks at
    /// the balance. Returns whether the check was refused at first, what the third saw, and what was taken for the check.
    fn skew(isolation: Isolation) -> (bool, i64, i64) {
        let (_, store) = two_accounts(isolation);
        let (mut seen, mut taken, mut attempts) = (0, 0, 0);
        let mut write_check = || {
            store.transact(Access::Write, &mut |tx| {
                attempts += 1;
                taken = -request(5, 5_000).write_check(tx)?;
                if attempts == 1 {
                    committed(&store, Access::Write, |tx| request(2, -10_000).transact_savings(tx));
                    seen = committed(&store, Access::Read, |tx| request(0, 0).balance(tx));
                }
                Ok(())
            })
        };
        let refused = match write_check() {
            Ok(()) => false,
            Err(Interruption::Conflict(_)) => {
                write_check().unwrap();
                true
            }
            Err(other) => panic!("{other:?}"),
        };
        store.close().unwrap();
        (refused, seen, taken)
    }

    #[test]
    fn write_skew_shows_under_snapshot_isolation_only() {
        // Somebody saw the account empty before the check was taken: it was not covered, and costs a penalty.
        assert_eq!(skew(Isolation::Serializable), (true, 0, 5_000 + PENALTY));
        assert_eq!(skew(Isolation::Snapshot), (false, 0, 5_000));
    }
}
