//! TATP, the Telecom Application Transaction Processing benchmark: the register in which mobile networks look up their subscribers.
//!
//! After its description of March 2009 (version 1.0): four tables, seven transactions, subscribers drawn non-uniformly. The
//! secondary index from a subscriber's number to his identifier is a table of its own.
//!
//! | transaction | share | what it does |
//! |---|---|---|
//! | get-subscriber-data | 35 % | reads a subscriber |
//! | get-new-destination | 10 % | reads a facility, if it is active the call forwardings of the time |
//! | get-access-data | 35 % | reads an access info, of which 62.5 % are there |
//! | update-subscriber-data | 2 % | changes a subscriber and a facility; rolls back if there is no such facility |
//! | update-location | 14 % | by the number: changes a subscriber |
//! | insert-call-forwarding | 2 % | by the number: reads all facilities, inserts; rolls back if it is there, or no such facility |
//! | delete-call-forwarding | 2 % | by the number: deletes; rolls back if it is not there |
//!
//! A read that finds nothing, as some have to, commits.

use super::key::{Key, KeyParts, Span};
use super::mix::{between, digits, kind, non_uniform, text};
use super::report::Examination;
use super::row::{Texts, row};
use super::{
    Access, Application, ApplicationStore, ApplicationTransaction, Client, Condition, Emit, Interruption,
    Order, Row, each_record, find, find_for_update, read, read_for_update, write,
};
use crate::{BenchError, Random};
use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, Ordering};

const SUBSCRIBER: usize = 0;
const SUBSCRIBER_BY_NUMBER: usize = 1;
const ACCESS_INFO: usize = 2;
const SPECIAL_FACILITY: usize = 3;
const CALL_FORWARDING: usize = 4;

const GET_SUBSCRIBER_DATA: usize = 0;
const GET_NEW_DESTINATION: usize = 1;
const GET_ACCESS_DATA: usize = 2;
const UPDATE_SUBSCRIBER_DATA: usize = 3;
const UPDATE_LOCATION: usize = 4;
const INSERT_CALL_FORWARDING: usize = 5;

const TRANSACTIONS: &[(&str, u32)] = &[
    ("get-subscriber-data", 35),
    ("get-new-destination", 10),
    ("get-access-data", 35),
    ("update-subscriber-data", 2),
    ("update-location", 14),
    ("insert-call-forwarding", 2),
    ("delete-call-forwarding", 2),
];

row! {
    /// Its texts: number.
    Subscriber { bits: u16, hexes: u64, bytes_low: u64, bytes_high: u16, msc_location: u32, vlr_location: u32 }
}
row! {
    /// Leads from a number to a subscriber.
    SubscriberByNumber { subscriber: u32 }
}
row! {
    /// Its texts: data 3, data 4.
    AccessInfo { data_1: u8, data_2: u8 }
}
row! {
    /// Its texts: data b.
    SpecialFacility { is_active: u8, error_control: u8, data_a: u8 }
}
row! {
    /// Its texts: the number to forward to.
    CallForwarding { end_time: u8 }
}

/// The benchmark, with a number of subscribers.
///
/// ```
/// use deuteron_bench::{Application, Tatp};
/// assert_eq!(Tatp::new(100_000).scale(), "100000 subscribers");
/// ```
#[derive(Debug)]
pub struct Tatp {
    subscribers: u32,
    /// Call forwardings inserted less those deleted, by commits.
    forwardings_added: AtomicI64,
}

impl Tatp {
    /// With so many subscribers, at least one.
    ///
    /// ```
    /// # use deuteron_bench::Application;
    /// assert_eq!(deuteron_bench::Tatp::new(10).name(), "tatp");
    /// ```
    pub fn new(subscribers: u32) -> Self {
        Self { subscribers: subscribers.max(1), forwardings_added: AtomicI64::new(0) }
    }
}

/// The number under which a subscriber is called: his identifier in 15 digits.
fn number_of(subscriber: u32) -> Vec<u8> {
    format!("{subscriber:015}").into_bytes()
}

fn number_key(subscriber: u32) -> Key {
    Key::new().text(&number_of(subscriber), 15)
}

fn key(subscriber: u32) -> Key {
    Key::new().u32(subscriber)
}

impl Application for Tatp {
    fn name(&self) -> &'static str {
        "tatp"
    }

    fn scale(&self) -> String {
        format!("{} subscribers", self.subscribers)
    }

    fn tables(&self) -> &'static [&'static str] {
        &["subscriber", "subscriber-by-number", "access-info", "special-facility", "call-forwarding"]
    }

    fn transactions(&self) -> &'static [(&'static str, u32)] {
        TRANSACTIONS
    }

    fn rows(&self, emit: Emit<'_>) -> Result<(), BenchError> {
        let random = &mut Random::new(LOAD_SEED);
        let mut forwardings = 0;
        for subscriber in 1..=self.subscribers {
            let row = Subscriber {
                bits: random.next_u64() as u16,
                hexes: random.below(1 << 40),
                bytes_low: random.next_u64(),
                bytes_high: random.next_u64() as u16,
                msc_location: random.next_u64() as u32,
                vlr_location: random.next_u64() as u32,
                texts: Texts::default().with(&number_of(subscriber)),
            };
            emit(SUBSCRIBER, &key(subscriber), &row.encode())?;
            let by_number = SubscriberByNumber { subscriber, texts: Texts::default() };
            emit(SUBSCRIBER_BY_NUMBER, &number_key(subscriber), &by_number.encode())?;
            for kind in some_of::<4>(1, random) {
                let texts = Texts::default().with(&text(3, 3, random)).with(&text(5, 5, random));
                let row =
                    AccessInfo { data_1: random.next_u64() as u8, data_2: random.next_u64() as u8, texts };
                emit(ACCESS_INFO, &key(subscriber).u8(kind), &row.encode())?;
            }
            for facility in some_of::<4>(1, random) {
                let row = SpecialFacility {
                    is_active: u8::from(random.below(100) < 85),
                    error_control: random.next_u64() as u8,
                    data_a: random.next_u64() as u8,
                    texts: Texts::default().with(&text(5, 5, random)),
                };
                emit(SPECIAL_FACILITY, &key(subscriber).u8(facility), &row.encode())?;
                // None to three of the three times at which one may begin.
                for time in some_of::<3>(0, random) {
                    let start = (time - 1) * 8;
                    let texts = Texts::default().with(&digits(15, 15, random));
                    let row = CallForwarding { end_time: start + between(1, 8, random) as u8, texts };
                    emit(CALL_FORWARDING, &key(subscriber).u8(facility).u8(start), &row.encode())?;
                    forwardings += 1;
                }
            }
        }
        self.forwardings_added.store(forwardings, Ordering::Relaxed);
        Ok(())
    }

    fn client(&self, seed: u64) -> Box<dyn Client + '_> {
        Box::new(Switch {
            tatp: self,
            random: Random::new(seed),
            request: Request::default(),
            forwardings_added: 0,
        })
    }

    fn check(&self, store: &dyn ApplicationStore) -> Result<Vec<Condition>, BenchError> {
        let mut subscribers = Examination::new("every subscriber is there and found by his number");
        let mut expected = 0;
        let mut numbers = Vec::with_capacity(self.subscribers as usize);
        each_record(store, SUBSCRIBER_BY_NUMBER, &mut |key, value| {
            let subscriber = SubscriberByNumber::decode(value)?.subscriber;
            subscribers.expect(key == number_of(subscriber), || format!("a number leads to {subscriber}"));
            numbers.push(subscriber);
            Ok(())
        })?;
        each_record(store, SUBSCRIBER, &mut |key, value| {
            let (subscriber, row) = (KeyParts(key).u32()?, Subscriber::decode(value)?);
            expected += 1;
            let holds = subscriber == expected && row.texts.at(0) == number_of(subscriber);
            subscribers.expect(holds, || format!("{subscriber} where {expected} should be"));
            // Numbers are of fixed length, and so sort as the subscribers do.
            let indexed = numbers.get(expected as usize - 1) == Some(&subscriber);
            subscribers.expect(indexed, || format!("{subscriber} is not found by his number"));
            Ok(())
        })?;
        let all = [expected, numbers.len() as u32] == [self.subscribers; 2];
        subscribers.expect(all, || format!("{expected} subscribers and {} numbers", numbers.len()));
        let mut facilities = HashSet::new();
        each_record(store, SPECIAL_FACILITY, &mut |key, _| {
            facilities.insert(key.to_vec());
            Ok(())
        })?;
        let mut references = Examination::new("every call forwarding has its facility");
        let mut forwardings = 0;
        each_record(store, CALL_FORWARDING, &mut |key, value| {
            CallForwarding::decode(value)?;
            forwardings += 1;
            let holds = key.split_last().is_some_and(|(_, facility)| facilities.contains(facility));
            references.expect(holds, || format!("{key:02x?} has none"));
            Ok(())
        })?;
        let mut count = Examination::new("call forwardings are those loaded and inserted less those deleted");
        let expected = self.forwardings_added.load(Ordering::Relaxed);
        count.expect(forwardings == expected, || format!("{forwardings}, not {expected}"));
        Ok([subscribers, references, count].into_iter().map(Examination::conclude).collect())
    }
}

/// Sets the rows, which are the same in each load.
const LOAD_SEED: u64 = 0x7a79;

/// At least so many of 1 to `N`, each once, ascending; how many and which is drawn.
fn some_of<const N: usize>(least: u64, random: &mut Random) -> Vec<u8> {
    let mut all: [u8; N] = std::array::from_fn(|place| place as u8 + 1);
    for place in 0..N {
        all.swap(place, between(place as u64, N as u64 - 1, random) as usize);
    }
    let mut some = all[..between(least, N as u64, random) as usize].to_vec();
    some.sort_unstable();
    some
}

/// What a transaction is given. Each kind uses some of it.
#[derive(Debug, Default)]
struct Request {
    kind: usize,
    subscriber: u32,
    /// Of an access info or a facility.
    type_number: u8,
    start_time: u8,
    end_time: u8,
    /// New values of whatever is changed.
    value: u64,
    number: Vec<u8>,
}

/// The telephone exchanges that ask.
struct Switch<'a> {
    tatp: &'a Tatp,
    random: Random,
    request: Request,
    forwardings_added: i64,
}

impl Drop for Switch<'_> {
    fn drop(&mut self) {
        self.tatp.forwardings_added.fetch_add(self.forwardings_added, Ordering::Relaxed);
    }
}

/// The mask of the non-uniform draw of so many subscribers.
fn mask(subscribers: u32) -> u64 {
    match subscribers {
        0..=1_000_000 => 65_535,
        1_000_001..=10_000_000 => 1_048_575,
        10_000_001.. => 2_097_151,
    }
}

impl Client for Switch<'_> {
    fn draw(&mut self) -> usize {
        let (random, subscribers) = (&mut self.random, self.tatp.subscribers);
        let start_time = 8 * random.below(3) as u8;
        let kind = kind(TRANSACTIONS, random);
        self.request = Request {
            kind,
            subscriber: non_uniform(mask(subscribers), 0, 1, u64::from(subscribers), random) as u32,
            type_number: between(1, 4, random) as u8,
            start_time,
            end_time: match kind {
                GET_NEW_DESTINATION => between(1, 24, random) as u8,
                _ => start_time + between(1, 8, random) as u8,
            },
            value: random.next_u64(),
            number: if kind == INSERT_CALL_FORWARDING { digits(15, 15, random) } else { Vec::new() },
        };
        kind
    }

    fn attempt(&mut self, store: &dyn ApplicationStore) -> Result<(), Interruption> {
        let request = &self.request;
        match request.kind {
            GET_SUBSCRIBER_DATA => store.transact(Access::Read, &mut |tx| request.get_subscriber_data(tx)),
            GET_NEW_DESTINATION => store.transact(Access::Read, &mut |tx| request.get_new_destination(tx)),
            GET_ACCESS_DATA => store.transact(Access::Read, &mut |tx| request.get_access_data(tx)),
            UPDATE_SUBSCRIBER_DATA => {
                store.transact(Access::Write, &mut |tx| request.update_subscriber_data(tx))
            }
            UPDATE_LOCATION => store.transact(Access::Write, &mut |tx| request.update_location(tx)),
            INSERT_CALL_FORWARDING => {
                store.transact(Access::Write, &mut |tx| request.insert_call_forwarding(tx))?;
                self.forwardings_added += 1;
                Ok(())
            }
            _ => {
                store.transact(Access::Write, &mut |tx| request.delete_call_forwarding(tx))?;
                self.forwardings_added -= 1;
                Ok(())
            }
        }
    }
}

type Transaction<'t> = &'t mut dyn ApplicationTransaction;

impl Request {
    fn get_subscriber_data(&self, tx: Transaction<'_>) -> Result<(), Interruption> {
        std::hint::black_box(read::<Subscriber>(tx, SUBSCRIBER, &key(self.subscriber))?);
        Ok(())
    }

    fn get_new_destination(&self, tx: Transaction<'_>) -> Result<(), Interruption> {
        let facility = key(self.subscriber).u8(self.type_number);
        let found = find::<SpecialFacility>(tx, SPECIAL_FACILITY, &facility)?;
        if found.is_none_or(|facility| facility.is_active == 0) {
            return Ok(());
        }
        let mut failure = Ok(());
        let range = Span::new(facility, facility.u8(self.start_time + 1));
        tx.scan(CALL_FORWARDING, range.range(), Order::Ascending, &mut |_, value| {
            match CallForwarding::decode(value) {
                Ok(row) if row.end_time > self.end_time => drop(std::hint::black_box(row)),
                Ok(_) => {}
                Err(error) => failure = Err(error),
            }
            failure.is_ok()
        })?;
        Ok(failure?)
    }

    fn get_access_data(&self, tx: Transaction<'_>) -> Result<(), Interruption> {
        let key = key(self.subscriber).u8(self.type_number);
        std::hint::black_box(find::<AccessInfo>(tx, ACCESS_INFO, &key)?);
        Ok(())
    }

    fn update_subscriber_data(&self, tx: Transaction<'_>) -> Result<(), Interruption> {
        let subscriber = key(self.subscriber);
        let mut row = read_for_update::<Subscriber>(tx, SUBSCRIBER, &subscriber)?;
        row.bits = row.bits & !1 | (self.value & 1) as u16;
        write(tx, SUBSCRIBER, &subscriber, &row)?;
        let facility = subscriber.u8(self.type_number);
        let Some(mut row) = find_for_update::<SpecialFacility>(tx, SPECIAL_FACILITY, &facility)? else {
            return Err(Interruption::RolledBack("no such facility"));
        };
        row.data_a = (self.value >> 8) as u8;
        write(tx, SPECIAL_FACILITY, &facility, &row)
    }

    fn update_location(&self, tx: Transaction<'_>) -> Result<(), Interruption> {
        let subscriber = key(self.by_number(tx)?);
        let mut row = read_for_update::<Subscriber>(tx, SUBSCRIBER, &subscriber)?;
        row.vlr_location = self.value as u32;
        write(tx, SUBSCRIBER, &subscriber, &row)
    }

    fn insert_call_forwarding(&self, tx: Transaction<'_>) -> Result<(), Interruption> {
        let subscriber = key(self.by_number(tx)?);
        let mut there = false;
        let facilities = Span::of_prefix(subscriber);
        tx.scan(SPECIAL_FACILITY, facilities.range(), Order::Ascending, &mut |key, _| {
            there |= key.last() == Some(&self.type_number);
            true
        })?;
        if !there {
            return Err(Interruption::RolledBack("no such facility"));
        }
        let key = subscriber.u8(self.type_number).u8(self.start_time);
        if find_for_update::<CallForwarding>(tx, CALL_FORWARDING, &key)?.is_some() {
            return Err(Interruption::RolledBack("the call forwarding is there"));
        }
        let texts = Texts::default().with(&self.number);
        write(tx, CALL_FORWARDING, &key, &CallForwarding { end_time: self.end_time, texts })
    }

    fn delete_call_forwarding(&self, tx: Transaction<'_>) -> Result<(), Interruption> {
        let key = key(self.by_number(tx)?).u8(self.type_number).u8(self.start_time);
        if find_for_update::<CallForwarding>(tx, CALL_FORWARDING, &key)?.is_none() {
            return Err(Interruption::RolledBack("the call forwarding is not there"));
        }
        tx.delete(CALL_FORWARDING, &key)
    }

    fn by_number(&self, tx: Transaction<'_>) -> Result<u32, Interruption> {
        let row: SubscriberByNumber = read(tx, SUBSCRIBER_BY_NUMBER, &number_key(self.subscriber))?;
        Ok(row.subscriber)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_shares, break_row, loaded, run_and_check, violated};
    use super::*;

    #[test]
    fn runs_on_several_threads_and_its_conditions_hold() {
        let tatp = Tatp::new(300);
        let store = loaded(&tatp);
        let reports = run_and_check(&tatp, &store);
        let rolled_back =
            |kind: usize| reports.iter().map(|report| report.transactions[kind].rolled_back).sum::<u64>();
        assert_eq!(
            [GET_SUBSCRIBER_DATA, GET_NEW_DESTINATION, GET_ACCESS_DATA, UPDATE_LOCATION].map(rolled_back),
            [0; 4]
        );
        store.close().unwrap();
    }

    #[test]
    fn transactions_come_in_their_shares() {
        assert_shares(&Tatp::new(1_000));
    }

    #[test]
    fn each_violation_is_named() {
        let tatp = Tatp::new(50);
        let store = loaded(&tatp);
        assert_eq!(violated(&tatp, &store), [""; 0]);
        break_row::<SubscriberByNumber>(&store, SUBSCRIBER_BY_NUMBER, number_key(7), |row| {
            row.subscriber = 8
        });
        let found = violated(&tatp, &store);
        assert!(found.len() == 1 && found[0].contains("a number leads to 8"), "{found:?}");
        break_row::<SubscriberByNumber>(&store, SUBSCRIBER_BY_NUMBER, number_key(7), |row| {
            row.subscriber = 7
        });
        let stray = key(51).u8(1).u8(0);
        store
            .transact(Access::Write, &mut |tx| write(tx, CALL_FORWARDING, &stray, &CallForwarding::default()))
            .unwrap();
        let found = violated(&tatp, &store);
        assert!(
            found.len() == 2 && found[0].contains("has none") && found[1].contains(", not "),
            "{found:?}"
        );
        store.transact(Access::Write, &mut |tx| tx.delete(CALL_FORWARDING, &stray)).unwrap();
        assert_eq!(violated(&tatp, &store), [""; 0]);
        store.transact(Access::Write, &mut |tx| tx.delete(SUBSCRIBER, &key(50))).unwrap();
        let found = violated(&tatp, &store);
        assert!(found[0].contains("49 subscribers and 50 numbers"), "{found:?}");
        store.close().unwrap();
    }

    #[test]
    fn the_load_has_the_shares_of_the_description() {
        let tatp = Tatp::new(4_000);
        let mut counts = [0u32; 5];
        let mut active = 0;
        tatp.rows(&mut |table, _, value| {
            counts[table] += 1;
            if table == SPECIAL_FACILITY {
                active += u32::from(SpecialFacility::decode(value)?.is_active);
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(counts[..2], [4_000; 2]);
        // 2.5 of each to a subscriber, and 1.5 call forwardings to a facility.
        assert!((9_700..10_300).contains(&counts[ACCESS_INFO]), "{counts:?}");
        assert!((9_700..10_300).contains(&counts[SPECIAL_FACILITY]), "{counts:?}");
        assert!(
            (1.4..1.6).contains(&(f64::from(counts[CALL_FORWARDING]) / f64::from(counts[SPECIAL_FACILITY])))
        );
        assert!((0.83..0.87).contains(&(f64::from(active) / f64::from(counts[SPECIAL_FACILITY]))));
    }
}
