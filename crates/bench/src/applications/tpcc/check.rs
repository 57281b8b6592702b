//! The consistency conditions of clause 3.3.2, and more that follow from what was committed.
//!
//! 1 to 10 and 12 are the specification's. Its 11th holds for the initial rows only: orders less new orders are those loaded as delivered. Here
//! the deliveries since are added. Two are more than it asks: what the stock says of itself is what the order lines say, and the indexes
//! lead to their rows.

use super::rows::{
    CUSTOMER, CUSTOMER_BY_NAME, Customer, DISTRICT, District, HISTORY, History, NEW_ORDER, ORDER,
    ORDER_BY_CUSTOMER, ORDER_LINE, OrderLine, OrderRow, Place, STOCK, Stock, WAREHOUSE, Warehouse,
};
use super::{Counts, Sizes, Tpcc};
use crate::BenchError;
use crate::applications::key::KeyParts;
use crate::applications::report::Examination;
use crate::applications::row::Row;
use crate::applications::{ApplicationStore, Condition, each_record};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

/// What the tables say of one district.
#[derive(Default)]
struct DistrictSeen {
    year_to_date: i64,
    next_order: u32,
    paid: i64,
    orders: u32,
    order_max: u32,
    lines_promised: u64,
    lines: u64,
    new_orders: u32,
    /// The least and the greatest.
    new_order_range: Option<(u32, u32)>,
    customers: u32,
    customers_by_name: u32,
    orders_by_customer: u32,
}

/// What they say of one order.
struct OrderSeen {
    customer: u32,
    lines_promised: u8,
    lines: u8,
    is_delivered: bool,
    is_new: bool,
}

/// What they say of one customer.
#[derive(Default)]
struct CustomerSeen {
    balance: i64,
    payments: i64,
    paid: i64,
    delivered: i64,
}

/// What they say of the stock of one item: the sum of quantities, order lines, lines from elsewhere.
type StockSeen = (u64, u32, u32);

/// All that the conditions are about.
#[derive(Default)]
struct Seen {
    warehouses: BTreeMap<u16, i64>,
    districts: BTreeMap<Place, DistrictSeen>,
    orders: HashMap<(Place, u32), OrderSeen>,
    customers: HashMap<(Place, u32), CustomerSeen>,
    /// By warehouse and item, what the lines since the load took.
    taken: HashMap<(u16, u32), StockSeen>,
    payments: u64,
}

/// Looks at all of it.
pub(super) fn conditions(tpcc: &Tpcc, store: &dyn ApplicationStore) -> Result<Vec<Condition>, BenchError> {
    let mut undelivered =
        Examination::new("7: an order line has a delivery date if and only if its order has a carrier");
    let mut indexes = Examination::new("the indexes lead to their rows, and no row is missing in them");
    let mut seen = Seen::default();
    seen.look(store, &tpcc.sizes, &mut undelivered, &mut indexes)?;
    let stock = seen.stock(store)?;
    let [districts, warehouse_payments, district_payments] = seen.money();
    let [balances, payments] = seen.customers();
    let counts = seen.counts(&tpcc.sizes, &tpcc.counts);
    for (place, district) in &seen.districts {
        let holds = district.customers == district.customers_by_name
            && district.orders == district.orders_by_customer;
        indexes.expect(holds, || format!("{place:?} has {} customers by name", district.customers_by_name));
    }
    let orders = seen.orders(&tpcc.sizes);
    let first = std::iter::once(districts).chain(orders);
    let rest =
        [undelivered, warehouse_payments, district_payments, balances, counts, payments, stock, indexes];
    Ok(first.chain(rest).map(Examination::conclude).collect())
}

fn place(parts: &mut KeyParts<'_>) -> Result<Place, BenchError> {
    Ok(Place { warehouse: parts.u16()?, district: parts.u8()? })
}

fn place_and_number(key: &[u8]) -> Result<(Place, u32), BenchError> {
    let mut parts = KeyParts(key);
    Ok((place(&mut parts)?, parts.u32()?))
}

impl Seen {
    fn look(
        &mut self,
        store: &dyn ApplicationStore,
        sizes: &Sizes,
        undelivered: &mut Examination,
        indexes: &mut Examination,
    ) -> Result<(), BenchError> {
        each_record(store, WAREHOUSE, &mut |key, value| {
            self.warehouses.insert(KeyParts(key).u16()?, Warehouse::decode(value)?.year_to_date);
            Ok(())
        })?;
        each_record(store, DISTRICT, &mut |key, value| {
            let row = District::decode(value)?;
            let seen = self.districts.entry(place(&mut KeyParts(key))?).or_default();
            (seen.year_to_date, seen.next_order) = (row.year_to_date, row.next_order);
            Ok(())
        })?;
        each_record(store, CUSTOMER, &mut |key, value| {
            let (number, row) = (place_and_number(key)?, Customer::decode(value)?);
            let seen = self.customers.entry(number).or_default();
            (seen.balance, seen.payments) = (row.balance, row.payments_year_to_date);
            self.districts.entry(number.0).or_default().customers += 1;
            Ok(())
        })?;
        each_record(store, CUSTOMER_BY_NAME, &mut |key, _| {
            let place = place(&mut KeyParts(key))?;
            let customer = KeyParts(&key[key.len().saturating_sub(4)..]).u32()?;
            indexes.expect(self.customers.contains_key(&(place, customer)), || {
                format!("a name leads to customer {customer} of {place:?}")
            });
            self.districts.entry(place).or_default().customers_by_name += 1;
            Ok(())
        })?;
        each_record(store, HISTORY, &mut |key, value| {
            let row = History::decode(value)?;
            let payer = Place { warehouse: row.warehouse, district: row.district };
            self.customers.entry((payer, row.customer)).or_default().paid += row.amount;
            self.districts.entry(place(&mut KeyParts(key))?).or_default().paid += row.amount;
            self.payments += 1;
            Ok(())
        })?;
        self.look_at_orders(store, sizes, undelivered, indexes)
    }

    fn look_at_orders(
        &mut self,
        store: &dyn ApplicationStore,
        sizes: &Sizes,
        undelivered: &mut Examination,
        indexes: &mut Examination,
    ) -> Result<(), BenchError> {
        each_record(store, ORDER, &mut |key, value| {
            let ((place, order), row) = (place_and_number(key)?, OrderRow::decode(value)?);
            let district = self.districts.entry(place).or_default();
            district.orders += 1;
            district.order_max = district.order_max.max(order);
            district.lines_promised += u64::from(row.lines);
            let (customer, lines_promised, is_delivered) = (row.customer, row.lines, row.carrier != 0);
            let seen = OrderSeen { customer, lines_promised, lines: 0, is_delivered, is_new: false };
            self.orders.insert((place, order), seen);
            Ok(())
        })?;
        let mut strays = 0;
        each_record(store, NEW_ORDER, &mut |key, _| {
            let (place, order) = place_and_number(key)?;
            let district = self.districts.entry(place).or_default();
            district.new_orders += 1;
            let (least, greatest) = district.new_order_range.unwrap_or((order, order));
            district.new_order_range = Some((least.min(order), greatest.max(order)));
            match self.orders.get_mut(&(place, order)) {
                Some(seen) => seen.is_new = true,
                None => strays += 1,
            }
            Ok(())
        })?;
        indexes.expect(strays == 0, || format!("{strays} new orders are no orders"));
        each_record(store, ORDER_BY_CUSTOMER, &mut |key, _| {
            let mut parts = KeyParts(key);
            let (place, customer, order) = (place(&mut parts)?, parts.u32()?, parts.u32()?);
            let known = self.orders.get(&(place, order)).is_some_and(|seen| seen.customer == customer);
            indexes.expect(known, || format!("{customer} of {place:?} leads to order {order}"));
            self.districts.entry(place).or_default().orders_by_customer += 1;
            Ok(())
        })?;
        each_record(store, ORDER_LINE, &mut |key, value| {
            let ((place, order), line) = (place_and_number(key)?, OrderLine::decode(value)?);
            self.districts.entry(place).or_default().lines += 1;
            let has_date = line.delivery != 0;
            let Some(seen) = self.orders.get_mut(&(place, order)) else {
                undelivered
                    .expect(false, || format!("a line of order {order} of {place:?}, which is not there"));
                return Ok(());
            };
            seen.lines = seen.lines.saturating_add(1);
            undelivered.expect(seen.is_delivered == has_date, || format!("order {order} of {place:?}"));
            if has_date {
                self.customers.entry((place, seen.customer)).or_default().delivered += line.amount;
            }
            if order > sizes.customers {
                let taken = self.taken.entry((line.supply_warehouse, line.item)).or_default();
                taken.0 += u64::from(line.quantity);
                taken.1 += 1;
                taken.2 += u32::from(line.supply_warehouse != place.warehouse);
            }
            Ok(())
        })
    }

    /// 1, 8 and 9: sums of money.
    fn money(&self) -> [Examination; 3] {
        let mut districts = Examination::new("1: a warehouse's year to date is the sum of its districts'");
        let mut payments = Examination::new("8: a warehouse's year to date is the sum of its payments");
        for (&warehouse, &year_to_date) in &self.warehouses {
            let sum = |of: fn(&DistrictSeen) -> i64| -> i64 {
                self.districts
                    .iter()
                    .filter(|(place, _)| place.warehouse == warehouse)
                    .map(|(_, seen)| of(seen))
                    .sum()
            };
            let (of_districts, paid) = (sum(|seen| seen.year_to_date), sum(|seen| seen.paid));
            districts.expect(year_to_date == of_districts, || {
                format!("warehouse {warehouse} has {year_to_date}, its districts {of_districts}")
            });
            payments.expect(year_to_date == paid, || {
                format!("warehouse {warehouse} has {year_to_date} of {paid}")
            });
        }
        let mut paid = Examination::new("9: a district's year to date is the sum of its payments");
        for (place, seen) in &self.districts {
            paid.expect(seen.year_to_date == seen.paid, || {
                format!("{place:?} has {} of {}", seen.year_to_date, seen.paid)
            });
        }
        [districts, payments, paid]
    }

    /// 2 to 6: numbers of orders and of their lines.
    fn orders(&self, sizes: &Sizes) -> [Examination; 5] {
        let mut next = Examination::new(
            "2: a district's next order is behind its last, which is its last new one if there are any",
        );
        let mut gaps = Examination::new("3: the new orders of a district are without gaps");
        let mut sums = Examination::new("4: a district has as many order lines as its orders say");
        for (place, seen) in &self.districts {
            let newest = seen.new_order_range.map_or(seen.order_max, |(_, newest)| newest);
            let behind = seen.next_order.wrapping_sub(1);
            next.expect(behind == seen.order_max && newest == seen.order_max, || {
                format!("{place:?}: next {}, last {}, newest {newest}", seen.next_order, seen.order_max)
            });
            let span = seen.new_order_range.map_or(0, |(oldest, newest)| newest - oldest + 1);
            gaps.expect(span == seen.new_orders, || {
                format!("{place:?}: {} in a span of {span}", seen.new_orders)
            });
            sums.expect(seen.lines == seen.lines_promised, || {
                format!("{place:?}: {} lines, {} promised", seen.lines, seen.lines_promised)
            });
        }
        let all = self.warehouses.len() == usize::from(sizes.warehouses)
            && self.districts.len() as u64 == sizes.districts();
        next.expect(all, || {
            format!("{} warehouses, {} districts", self.warehouses.len(), self.districts.len())
        });
        let mut carriers = Examination::new("5: an order has no carrier if and only if it is new");
        let mut lines = Examination::new("6: an order has as many lines as it says");
        for ((place, order), seen) in &self.orders {
            carriers.expect(seen.is_delivered != seen.is_new, || format!("order {order} of {place:?}"));
            lines.expect(seen.lines == seen.lines_promised, || {
                format!("order {order} of {place:?}: {} lines, {} promised", seen.lines, seen.lines_promised)
            });
        }
        [next, gaps, sums, carriers, lines]
    }

    /// 10 and 12: the balances of customers.
    fn customers(&self) -> [Examination; 2] {
        let mut balances =
            Examination::new("10: a customer's balance is what was delivered to him less what he paid");
        let mut payments =
            Examination::new("12: a customer's balance and payments are what was delivered to him");
        for ((place, customer), seen) in &self.customers {
            balances.expect(seen.balance == seen.delivered - seen.paid, || {
                format!("{customer} of {place:?}: {} of {} less {}", seen.balance, seen.delivered, seen.paid)
            });
            payments.expect(seen.balance + seen.payments == seen.delivered, || {
                format!(
                    "{customer} of {place:?}: {} and {} of {}",
                    seen.balance, seen.payments, seen.delivered
                )
            });
        }
        [balances, payments]
    }

    /// 11, with what was committed.
    fn counts(&self, sizes: &Sizes, counts: &Counts) -> Examination {
        let mut examination =
            Examination::new("11: orders, deliveries and payments are those loaded and those committed");
        let loaded = |each: u32| sizes.districts() * u64::from(each);
        let orders = self.orders.len() as u64;
        let new: u64 = self.districts.values().map(|seen| u64::from(seen.new_orders)).sum();
        let committed =
            [&counts.orders, &counts.deliveries, &counts.payments].map(|count| count.load(Ordering::Relaxed));
        let found = [orders, orders.wrapping_sub(new), self.payments];
        let expected = [
            loaded(sizes.customers) + committed[0],
            loaded(sizes.delivered()) + committed[1],
            loaded(sizes.customers) + committed[2],
        ];
        for ((what, found), expected) in ["orders", "deliveries", "payments"].iter().zip(found).zip(expected)
        {
            examination.expect(found == expected, || format!("{found} {what}, not {expected}"));
        }
        examination
    }

    /// What the stock says of itself.
    fn stock(&mut self, store: &dyn ApplicationStore) -> Result<Examination, BenchError> {
        let mut examination = Examination::new("the stock has given what the order lines took");
        each_record(store, STOCK, &mut |key, value| {
            let mut parts = KeyParts(key);
            let place = (parts.u16()?, parts.u32()?);
            let row = Stock::decode(value)?;
            let given = (row.year_to_date, row.orders, row.remote_orders);
            let taken = self.taken.remove(&place).unwrap_or_default();
            examination.expect(given == taken, || {
                format!(
                    "item {} of warehouse {} gave {given:?}, of which {taken:?} arrived",
                    place.1, place.0
                )
            });
            examination.expect((0..=100).contains(&row.quantity), || {
                format!("{} of item {} in warehouse {}", row.quantity, place.1, place.0)
            });
            Ok(())
        })?;
        examination.expect(self.taken.is_empty(), || format!("{} were never there", self.taken.len()));
        Ok(examination)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::{IndexEntry, NewOrder, stock_key, warehouse_key};
    use super::*;
    use crate::applications::testing::{break_row, loaded, violated};
    use crate::applications::{Access, Application, EmbeddedApplicationStore, write};

    const PLACE: Place = Place { warehouse: 1, district: 3 };

    /// The numbers of the conditions that do not hold; 0 for those without one.
    fn numbers(tpcc: &Tpcc, store: &EmbeddedApplicationStore) -> Vec<u32> {
        let number =
            |name: String| name.split_once(':').and_then(|(number, _)| number.parse().ok()).unwrap_or(0);
        violated(tpcc, store).into_iter().map(number).collect()
    }

    fn delete(store: &EmbeddedApplicationStore, table: usize, key: crate::applications::key::Key) {
        store.transact(Access::Write, &mut |tx| tx.delete(table, &key)).unwrap();
    }

    #[test]
    fn each_violation_is_named() {
        let tpcc = Tpcc::new(1).shrunk(1_000);
        let violations = |what: &dyn Fn(&EmbeddedApplicationStore)| {
            let store = loaded(&tpcc);
            assert_eq!(numbers(&tpcc, &store), [0; 0]);
            what(&store);
            let found = numbers(&tpcc, &store);
            store.close().unwrap();
            found
        };
        type Break<'a> = (&'a dyn Fn(&EmbeddedApplicationStore), &'a [u32]);
        let breaks: &[Break<'_>] = &[
            (
                &|store| {
                    break_row::<Warehouse>(store, WAREHOUSE, warehouse_key(1), |row| row.year_to_date += 1)
                },
                &[1, 8],
            ),
            (
                &|store| break_row::<District>(store, DISTRICT, PLACE.key(), |row| row.year_to_date += 1),
                &[1, 9],
            ),
            (&|store| break_row::<District>(store, DISTRICT, PLACE.key(), |row| row.next_order += 1), &[2]),
            // In the middle of those that are new, 22 to 30.
            (&|store| delete(store, NEW_ORDER, PLACE.order(25)), &[3, 5, 11]),
            (&|store| delete(store, ORDER_LINE, PLACE.line(2, 1)), &[4, 6]),
            (&|store| break_row::<OrderRow>(store, ORDER, PLACE.order(2), |row| row.carrier = 0), &[5, 7]),
            (
                &|store| break_row::<OrderLine>(store, ORDER_LINE, PLACE.line(2, 1), |row| row.delivery = 0),
                &[7],
            ),
            (
                &|store| break_row::<History>(store, HISTORY, PLACE.history(0, 9), |row| row.amount -= 1),
                &[8, 9, 10],
            ),
            (
                &|store| break_row::<Customer>(store, CUSTOMER, PLACE.customer(9), |row| row.balance += 1),
                &[10, 12],
            ),
            (
                &|store| {
                    break_row::<Customer>(store, CUSTOMER, PLACE.customer(9), |row| {
                        row.payments_year_to_date += 1
                    })
                },
                &[12],
            ),
            (
                &|store| {
                    let added = store.transact(Access::Write, &mut |tx| {
                        write(tx, NEW_ORDER, &PLACE.order(31), &NewOrder::default())
                    });
                    added.unwrap();
                },
                &[2, 11, 0],
            ),
            (&|store| break_row::<Stock>(store, STOCK, stock_key(1, 7), |row| row.year_to_date += 1), &[0]),
            (&|store| break_row::<Stock>(store, STOCK, stock_key(1, 7), |row| row.quantity = -1), &[0]),
            (
                &|store| {
                    let added = store.transact(Access::Write, &mut |tx| {
                        write(tx, ORDER_BY_CUSTOMER, &PLACE.order_by_customer(9, 77), &IndexEntry::default())
                    });
                    added.unwrap();
                },
                &[0],
            ),
        ];
        for (number, (what, expected)) in breaks.iter().enumerate() {
            assert_eq!(violations(what), *expected, "break {number}");
        }
    }

    #[test]
    fn commits_that_are_not_there_are_missed() {
        let tpcc = Tpcc::new(1).shrunk(1_000);
        let store = loaded(&tpcc);
        tpcc.counts.payments.fetch_add(1, Ordering::Relaxed);
        let found = violated(&tpcc, &store);
        assert!(found.len() == 1 && found[0].contains("300 payments, not 301"), "{found:?}");
        assert_eq!(tpcc.check(&store).unwrap().len(), 14);
        store.close().unwrap();
    }
}
