//! What the users at the terminals ask for: the draws of clause 2.

use super::load::NAME_SHIFT;
use super::rows::Place;
use super::{
    DELIVERY_KIND, DISTRICTS, NEW_ORDER_KIND, ORDER_STATUS_KIND, PAYMENT_KIND, Sizes, TRANSACTIONS, Tpcc,
};
use crate::Random;
use crate::applications::mix::{between, kind, non_uniform};
use crate::applications::{Access, ApplicationStore, Client, Interruption};
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

const CUSTOMER_SHIFT: u64 = 259;
const ITEM_SHIFT: u64 = 7_911;

/// How a customer is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Number(u32),
    LastName(Vec<u8>),
}

/// One line of a new order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Line {
    pub item: u32,
    pub supply_warehouse: u16,
    pub quantity: u8,
}

/// What a transaction is given.
#[derive(Clone, Debug)]
pub(super) enum Request {
    NewOrder {
        place: Place,
        customer: u32,
        lines: Vec<Line>,
        date: u64,
    },
    Payment {
        place: Place,
        customer_place: Place,
        who: Who,
        amount: i64,
        date: u64,
        terminal: u32,
        number: u32,
    },
    OrderStatus {
        place: Place,
        who: Who,
    },
    Delivery {
        warehouse: u16,
        carrier: u8,
        date: u64,
    },
    StockLevel {
        place: Place,
        threshold: i32,
    },
}

/// The terminals of one thread.
pub(super) struct Terminal<'a> {
    tpcc: &'a Tpcc,
    random: Random,
    number: u32,
    draws: u32,
    request: Request,
    orders: u64,
    payments: u64,
    deliveries: u64,
}

impl<'a> Terminal<'a> {
    pub fn new(tpcc: &'a Tpcc, number: u32, seed: u64) -> Self {
        let request = Request::StockLevel { place: Place::default(), threshold: 0 };
        let random = Random::new(seed);
        Self { tpcc, random, number, draws: 0, request, orders: 0, payments: 0, deliveries: 0 }
    }

    /// What was drawn last.
    #[cfg(test)]
    pub fn request(&self) -> &Request {
        &self.request
    }

    fn draw_request(&mut self, kind: usize) -> Request {
        let (random, sizes) = (&mut self.random, &self.tpcc.sizes);
        let warehouse = between(1, u64::from(sizes.warehouses), random) as u16;
        let place = Place { warehouse, district: between(1, u64::from(DISTRICTS), random) as u8 };
        match kind {
            NEW_ORDER_KIND => {
                let customer = draw_customer(sizes, random);
                Request::NewOrder {
                    place,
                    customer,
                    lines: draw_lines(sizes, warehouse, random),
                    date: now(),
                }
            }
            PAYMENT_KIND => {
                let remote = sizes.warehouses > 1 && random.below(100) < 15;
                let customer_place = match remote {
                    true => Place {
                        warehouse: another_warehouse(sizes, warehouse, random),
                        district: between(1, u64::from(DISTRICTS), random) as u8,
                    },
                    false => place,
                };
                let who = draw_who(sizes, random);
                let amount = between(100, 500_000, random) as i64;
                let (terminal, number) = (self.number, self.draws);
                Request::Payment { place, customer_place, who, amount, date: now(), terminal, number }
            }
            ORDER_STATUS_KIND => Request::OrderStatus { place, who: draw_who(sizes, random) },
            DELIVERY_KIND => {
                Request::Delivery { warehouse, carrier: between(1, 10, random) as u8, date: now() }
            }
            _ => Request::StockLevel { place, threshold: between(10, 20, random) as i32 },
        }
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        let counts = &self.tpcc.counts;
        counts.orders.fetch_add(self.orders, Ordering::Relaxed);
        counts.payments.fetch_add(self.payments, Ordering::Relaxed);
        counts.deliveries.fetch_add(self.deliveries, Ordering::Relaxed);
    }
}

impl Client for Terminal<'_> {
    fn draw(&mut self) -> usize {
        self.draws += 1;
        let kind = kind(TRANSACTIONS, &mut self.random);
        self.request = self.draw_request(kind);
        kind
    }

    fn attempt(&mut self, store: &dyn ApplicationStore) -> Result<(), Interruption> {
        match &self.request {
            Request::NewOrder { place, customer, lines, date } => {
                store.transact(Access::Write, &mut |tx| {
                    super::transactions::new_order(tx, *place, *customer, lines, *date)
                })?;
                self.orders += 1;
            }
            request @ Request::Payment { .. } => {
                store.transact(Access::Write, &mut |tx| super::transactions::payment(tx, request))?;
                self.payments += 1;
            }
            Request::OrderStatus { place, who } => {
                store.transact(Access::Read, &mut |tx| super::transactions::order_status(tx, *place, who))?;
            }
            Request::Delivery { warehouse, carrier, date } => {
                let mut delivered = 0;
                store.transact(Access::Write, &mut |tx| {
                    delivered = super::transactions::delivery(tx, *warehouse, *carrier, *date)?;
                    Ok(())
                })?;
                self.deliveries += delivered;
            }
            Request::StockLevel { place, threshold } => {
                store.transact(Access::Read, &mut |tx| {
                    super::transactions::stock_level(tx, *place, *threshold).map(drop)
                })?;
            }
        }
        Ok(())
    }
}

fn draw_customer(sizes: &Sizes, random: &mut Random) -> u32 {
    non_uniform(1_023, CUSTOMER_SHIFT, 1, u64::from(sizes.customers), random) as u32
}

fn draw_who(sizes: &Sizes, random: &mut Random) -> Who {
    if random.below(100) < 60 {
        let last = u64::from(sizes.names()) - 1;
        Who::LastName(last_name(non_uniform(255, NAME_SHIFT + 85, 0, last, random)))
    } else {
        Who::Number(draw_customer(sizes, random))
    }
}

/// 5 to 15 lines in the order of their items. Of one order in a hundred, the last is of an item that there is not.
fn draw_lines(sizes: &Sizes, warehouse: u16, random: &mut Random) -> Vec<Line> {
    let count = between(5, 15, random);
    let mut lines: Vec<Line> = (0..count)
        .map(|_| {
            let remote = sizes.warehouses > 1 && random.below(100) == 0;
            Line {
                item: non_uniform(8_191, ITEM_SHIFT, 1, u64::from(sizes.items), random) as u32,
                supply_warehouse: if remote {
                    another_warehouse(sizes, warehouse, random)
                } else {
                    warehouse
                },
                quantity: between(1, 10, random) as u8,
            }
        })
        .collect();
    lines.sort_unstable();
    if random.below(100) == 0
        && let Some(last) = lines.last_mut()
    {
        last.item = sizes.items + 1;
    }
    lines
}

fn another_warehouse(sizes: &Sizes, warehouse: u16, random: &mut Random) -> u16 {
    let other = between(1, u64::from(sizes.warehouses) - 1, random) as u16;
    if other < warehouse { other } else { other + 1 }
}

/// The last name of a number below 1000: a syllable for each digit.
pub(super) fn last_name(number: u64) -> Vec<u8> {
    const SYLLABLES: [&str; 10] =
        ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
    [number / 100, number / 10, number]
        .iter()
        .flat_map(|digit| SYLLABLES[(digit % 10) as usize].bytes())
        .collect()
}

/// Microseconds since 1970, never 0.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_names_are_made_of_syllables() {
        assert_eq!(last_name(371), b"PRICALLYOUGHT");
        assert_eq!(last_name(0), b"BARBARBAR");
        assert!((0..1_000).all(|number| last_name(number).len() < 16));
    }

    #[test]
    fn remote_and_rolled_back_draws_have_their_shares() {
        let tpcc = Tpcc::new(5);
        let mut terminal = Terminal::new(&tpcc, 1, 3);
        let (mut orders, mut lines_drawn, mut remote_lines, mut unused) = (0, 0, 0, 0);
        let (mut payments, mut remote_payments, mut by_name) = (0, 0, 0);
        for _ in 0..40_000 {
            terminal.draw();
            match terminal.request() {
                Request::NewOrder { place, lines, customer, .. } => {
                    orders += 1;
                    assert!((5..=15).contains(&lines.len()) && lines.is_sorted());
                    assert!((1..=3_000).contains(customer) && (1..=10).contains(&place.district));
                    assert!(lines.iter().all(|line| (1..=5).contains(&line.supply_warehouse)));
                    lines_drawn += lines.len();
                    remote_lines +=
                        lines.iter().filter(|line| line.supply_warehouse != place.warehouse).count();
                    unused += usize::from(lines.iter().any(|line| line.item > 100_000));
                    assert!(lines[..lines.len() - 1].iter().all(|line| (1..=100_000).contains(&line.item)));
                }
                Request::Payment { place, customer_place, who, .. } => {
                    payments += 1;
                    remote_payments += usize::from(place.warehouse != customer_place.warehouse);
                    by_name += usize::from(matches!(who, Who::LastName(_)));
                }
                _ => {}
            }
        }
        let share = |part: usize, whole: usize| 100.0 * part as f64 / whole as f64;
        assert!((0.8..1.2).contains(&share(remote_lines, lines_drawn)), "{remote_lines} of {lines_drawn}");
        assert!((0.7..1.3).contains(&share(unused, orders)), "{unused} of {orders}");
        assert!((14.0..16.0).contains(&share(remote_payments, payments)), "{remote_payments} of {payments}");
        assert!((58.0..62.0).contains(&share(by_name, payments)), "{by_name} of {payments}");
    }
}
