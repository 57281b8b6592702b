//! Voter: votes by telephone for the contestants of a show, so many from each telephone, counted as they come.
//!
//! After the benchmark of VoltDB and H-Store. One transaction: it looks whether there is such a contestant, whether the caller has votes left,
//! and in which state he is; then it stores the vote, and counts it for the caller and for the contestant in that state. What these
//! systems keep as views are tables here. The area codes and their states are made up: 306 codes, six for each of 51 states.
//! One vote in a hundred is for nobody.

use super::key::{Key, KeyParts};
use super::mix::between;
use super::report::Examination;
use super::row::{Texts, row};
use super::{
    Access, Application, ApplicationStore, ApplicationTransaction, Client, Condition, Emit, Interruption,
    Row, each_record, find, find_for_update, read, write,
};
use crate::{BenchError, Random};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const CONTESTANTS: usize = 0;
const AREA_CODE_STATE: usize = 1;
const VOTES: usize = 2;
const VOTES_BY_TELEPHONE: usize = 3;
const VOTES_BY_CONTESTANT: usize = 4;

const TRANSACTIONS: &[(&str, u32)] = &[("vote", 100)];

const AREA_CODES: u64 = 306;
const AREA_CODE_FIRST: u64 = 201;
const STATES: u64 = 51;

/// Votes that each telephone may give.
const VOTES_MAX: u32 = 2;

/// Telephones of one area code, unless said otherwise.
const TELEPHONES: u64 = 10_000_000;

row! {
    /// Its texts: name.
    Contestant {}
}
row! {
    /// The state in which an area code is.
    AreaCode { state: u8 }
}
row! {
    Vote { telephone: u64, contestant: u8, state: u8 }
}
row! {
    /// How many votes.
    Count { votes: u32 }
}

/// The benchmark, with a number of contestants.
///
/// ```
/// use deuteron_bench::{Application, Voter};
/// assert_eq!(Voter::new(6).scale(), "6 contestants");
/// ```
#[derive(Debug)]
pub struct Voter {
    contestants: u8,
    /// Of each area code.
    telephones: u64,
    /// The next client's number, which makes its votes different from the others'.
    clients: AtomicU32,
    /// Votes that were accepted, by commits.
    accepted: AtomicU64,
}

impl Voter {
    /// With so many contestants, 1 to 200.
    ///
    /// ```
    /// # use deuteron_bench::Application;
    /// assert_eq!(deuteron_bench::Voter::new(6).name(), "voter");
    /// ```
    pub fn new(contestants: u8) -> Self {
        let contestants = contestants.clamp(1, 200);
        Self { contestants, telephones: TELEPHONES, clients: AtomicU32::new(0), accepted: AtomicU64::new(0) }
    }

    /// With so many telephones in each area, so that callers come to their limit.
    ///
    /// ```
    /// let voter = deuteron_bench::Voter::new(6).with_telephones(100);
    /// # let _ = voter;
    /// ```
    pub fn with_telephones(self, telephones: u64) -> Self {
        Self { telephones: telephones.clamp(1, TELEPHONES), ..self }
    }
}

fn contestant_key(contestant: u8) -> Key {
    Key::new().u8(contestant)
}

fn count(votes: u32) -> Count {
    Count { votes, texts: Texts::default() }
}

impl Application for Voter {
    fn name(&self) -> &'static str {
        "voter"
    }

    fn scale(&self) -> String {
        match self.telephones {
            TELEPHONES => format!("{} contestants", self.contestants),
            some => format!("{} contestants, {some} telephones an area", self.contestants),
        }
    }

    fn tables(&self) -> &'static [&'static str] {
        &["contestants", "area-code-state", "votes", "votes-by-telephone", "votes-by-contestant-and-state"]
    }

    fn transactions(&self) -> &'static [(&'static str, u32)] {
        TRANSACTIONS
    }

    fn rows(&self, emit: Emit<'_>) -> Result<(), BenchError> {
        for contestant in 1..=self.contestants {
            let texts = Texts::default().with(format!("Contestant {contestant}").as_bytes());
            emit(CONTESTANTS, &contestant_key(contestant), &Contestant { texts }.encode())?;
        }
        for index in 0..AREA_CODES {
            let key = Key::new().u16((AREA_CODE_FIRST + index) as u16);
            let row = AreaCode { state: (index * STATES / AREA_CODES) as u8, texts: Texts::default() };
            emit(AREA_CODE_STATE, &key, &row.encode())?;
        }
        Ok(())
    }

    fn client(&self, seed: u64) -> Box<dyn Client + '_> {
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        let request = Request { vote: 0, telephone: 0, contestant: 0 };
        Box::new(Callers { voter: self, random: Random::new(seed), number, calls: 0, request, accepted: 0 })
    }

    fn check(&self, store: &dyn ApplicationStore) -> Result<Vec<Condition>, BenchError> {
        let mut accepted = Examination::new("the votes are as many as were accepted");
        let mut telephones =
            Examination::new("no telephone has more votes than it may, and the count is right");
        let mut contestants = Examination::new("each contestant's count in each state is that of the votes");
        let mut by_telephone: HashMap<u64, u32> = HashMap::new();
        let mut by_contestant: HashMap<(u8, u8), u32> = HashMap::new();
        let mut votes = 0;
        each_record(store, VOTES, &mut |_, value| {
            let vote = Vote::decode(value)?;
            votes += 1;
            *by_telephone.entry(vote.telephone).or_default() += 1;
            *by_contestant.entry((vote.contestant, vote.state)).or_default() += 1;
            Ok(())
        })?;
        let expected = self.accepted.load(Ordering::Relaxed);
        accepted.expect(votes == expected, || format!("{votes}, not {expected}"));
        each_record(store, VOTES_BY_TELEPHONE, &mut |key, value| {
            let mut parts = KeyParts(key);
            let telephone = u64::from(parts.u32()?) << 32 | u64::from(parts.u32()?);
            let (counted, given) =
                (Count::decode(value)?.votes, by_telephone.remove(&telephone).unwrap_or(0));
            telephones.expect(counted == given && given <= VOTES_MAX, || {
                format!("{telephone} gave {given}, and {counted} are counted")
            });
            Ok(())
        })?;
        telephones.expect(by_telephone.is_empty(), || format!("{} are not counted", by_telephone.len()));
        each_record(store, VOTES_BY_CONTESTANT, &mut |key, value| {
            let mut parts = KeyParts(key);
            let place = (parts.u8()?, parts.u8()?);
            let (counted, given) = (Count::decode(value)?.votes, by_contestant.remove(&place).unwrap_or(0));
            contestants.expect(counted == given, || {
                format!("{} has {given} in state {}, and {counted} are counted", place.0, place.1)
            });
            Ok(())
        })?;
        contestants.expect(by_contestant.is_empty(), || format!("{} are not counted", by_contestant.len()));
        Ok([accepted, telephones, contestants].into_iter().map(Examination::conclude).collect())
    }
}

/// What a transaction is given.
#[derive(Clone, Copy, Debug)]
struct Request {
    /// The vote's own number.
    vote: u64,
    telephone: u64,
    contestant: u8,
}

/// The callers of one thread.
struct Callers<'a> {
    voter: &'a Voter,
    random: Random,
    number: u32,
    calls: u32,
    request: Request,
    accepted: u64,
}

impl Drop for Callers<'_> {
    fn drop(&mut self) {
        self.voter.accepted.fetch_add(self.accepted, Ordering::Relaxed);
    }
}

impl Client for Callers<'_> {
    fn draw(&mut self) -> usize {
        let (random, voter) = (&mut self.random, self.voter);
        self.calls += 1;
        let area = AREA_CODE_FIRST + random.below(AREA_CODES);
        let for_nobody = random.below(100) == 0;
        self.request = Request {
            vote: u64::from(self.number) << 32 | u64::from(self.calls),
            telephone: area * TELEPHONES + random.below(voter.telephones),
            contestant: if for_nobody { 0 } else { between(1, u64::from(voter.contestants), random) as u8 },
        };
        0
    }

    fn attempt(&mut self, store: &dyn ApplicationStore) -> Result<(), Interruption> {
        let request = self.request;
        store.transact(Access::Write, &mut |tx| request.vote(tx))?;
        self.accepted += 1;
        Ok(())
    }
}

impl Request {
    fn vote(&self, tx: &mut dyn ApplicationTransaction) -> Result<(), Interruption> {
        let &Self { telephone, contestant, .. } = self;
        if find::<Contestant>(tx, CONTESTANTS, &contestant_key(contestant))?.is_none() {
            return Err(Interruption::RolledBack("no such contestant"));
        }
        let caller = Key::new().u64(telephone);
        let given = find_for_update::<Count>(tx, VOTES_BY_TELEPHONE, &caller)?.map_or(0, |count| count.votes);
        if given >= VOTES_MAX {
            return Err(Interruption::RolledBack("no votes left"));
        }
        let area = Key::new().u16((telephone / TELEPHONES) as u16);
        let state = read::<AreaCode>(tx, AREA_CODE_STATE, &area)?.state;
        let vote = Vote { telephone, contestant, state, texts: Texts::default() };
        write(tx, VOTES, &Key::new().u64(self.vote), &vote)?;
        write(tx, VOTES_BY_TELEPHONE, &caller, &count(given + 1))?;
        let place = contestant_key(contestant).u8(state);
        let votes = find_for_update::<Count>(tx, VOTES_BY_CONTESTANT, &place)?.map_or(0, |count| count.votes);
        write(tx, VOTES_BY_CONTESTANT, &place, &count(votes + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::driver;
    use super::super::testing::{break_row, loaded, run_and_check, violated};
    use super::*;
    use crate::Driver;
    use std::time::Duration;

    #[test]
    fn runs_on_several_threads_and_its_conditions_hold() {
        let voter = Voter::new(3);
        let store = loaded(&voter);
        run_and_check(&voter, &store);
        store.close().unwrap();
        // So few telephones that all calls are refused in the end; before anything is counted, perhaps.
        let voter = Voter::new(3).with_telephones(1);
        let store = loaded(&voter);
        let all = AREA_CODES * u64::from(VOTES_MAX);
        let drive = |seed| {
            let driver = Driver { threads: 4, seconds: Duration::from_millis(50), seed, ..Driver::default() };
            driver::drive(&voter, &store, &driver, &mut |_| {}).unwrap()
        };
        // Other calls each time: a busy machine lets few of them through.
        let mut seeds = 2..;
        while voter.accepted.load(Ordering::Relaxed) < all {
            drive(seeds.next().unwrap());
        }
        let report = drive(1);
        assert_eq!(
            (report.commits, voter.accepted.load(Ordering::Relaxed)),
            (0, all),
            "nobody has votes left"
        );
        assert_eq!(violated(&voter, &store), [""; 0]);
        store.close().unwrap();
    }

    #[test]
    fn one_vote_in_a_hundred_is_for_nobody() {
        let voter = Voter::new(12);
        let mut callers = Callers {
            voter: &voter,
            random: Random::new(2),
            number: 3,
            calls: 0,
            request: Request { vote: 0, telephone: 0, contestant: 0 },
            accepted: 0,
        };
        let mut nobody = 0;
        for call in 1..=20_000 {
            callers.draw();
            assert_eq!(callers.request.vote, 3 << 32 | call);
            assert!(callers.request.contestant <= 12);
            nobody += u32::from(callers.request.contestant == 0);
        }
        assert!((140..260).contains(&nobody), "{nobody}");
    }

    #[test]
    fn each_violation_is_named() {
        let voter = Voter::new(2).with_telephones(1_000);
        let store = loaded(&voter);
        let mut client = voter.client(1);
        while voter.accepted.load(Ordering::Relaxed) == 0 {
            client.draw();
            match client.attempt(&store) {
                Ok(()) => client = voter.client(1),
                Err(Interruption::RolledBack(_)) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        drop(client);
        assert_eq!(violated(&voter, &store), [""; 0]);
        let mut telephone = 0;
        let mut place = Key::new();
        each_record(&store, VOTES, &mut |_, value| {
            let vote = Vote::decode(value)?;
            telephone = vote.telephone;
            place = contestant_key(vote.contestant).u8(vote.state);
            Ok(())
        })
        .unwrap();
        break_row::<Count>(&store, VOTES_BY_CONTESTANT, place, |row| row.votes += 1);
        let found = violated(&voter, &store);
        assert!(found.len() == 1 && found[0].contains("and 2 are counted"), "{found:?}");
        break_row::<Count>(&store, VOTES_BY_CONTESTANT, place, |row| row.votes += 1);
        // Two votes more of the same telephone: one too many, and nobody accepted them.
        store
            .transact(Access::Write, &mut |tx| {
                for number in [1, 2] {
                    let texts = Texts::default();
                    let vote = Vote { telephone, contestant: place[0], state: place[1], texts };
                    write(tx, VOTES, &Key::new().u64(1_000 << 32 | number), &vote)?;
                }
                Ok(())
            })
            .unwrap();
        break_row::<Count>(&store, VOTES_BY_TELEPHONE, Key::new().u64(telephone), |row| row.votes = 3);
        let found = violated(&voter, &store);
        assert!(found[0].starts_with("the votes") && found[1].starts_with("no telephone"), "{found:?}");
        store
            .transact(Access::Write, &mut |tx| tx.delete(VOTES_BY_TELEPHONE, &Key::new().u64(telephone)))
            .unwrap();
        assert!(violated(&voter, &store)[1].contains("1 are not counted"));
        store.close().unwrap();
    }
}
