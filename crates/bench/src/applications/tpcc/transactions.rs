//! The five transactions, after clauses 2.4 to 2.8.

use super::DISTRICTS;
use super::load::ORIGINAL;
use super::rows::{
    CUSTOMER, CUSTOMER_BY_NAME, CUSTOMER_DATA, Customer, DISTRICT, District, HISTORY, History, ITEM,
    IndexEntry, Item, NEW_ORDER, NewOrder, ORDER, ORDER_BY_CUSTOMER, ORDER_LINE, OrderLine, OrderRow, Place,
    STOCK, Stock, WAREHOUSE, Warehouse, item_key, stock_key, warehouse_key,
};
use super::terminal::{Line, Request, Who};
use crate::BenchError;
use crate::applications::key::{KeyParts, Span};
use crate::applications::row::{Row, Texts};
use crate::applications::{
    ApplicationTransaction, Interruption, Order, find, find_for_update, missing, read, read_for_update, write,
};
use std::collections::BTreeSet;
use std::hint::black_box;

type Transaction<'t> = &'t mut dyn ApplicationTransaction;

/// The longest data of a customer, in bytes.
const DATA_BYTES_MAX: usize = 500;

/// Orders that stock-level looks at.
const RECENT_ORDERS: u32 = 20;

/// Clause 2.4: a customer orders.
pub(super) fn new_order(
    tx: Transaction<'_>,
    place: Place,
    customer: u32,
    lines: &[Line],
    date: u64,
) -> Result<(), Interruption> {
    let warehouse: Warehouse = read(tx, WAREHOUSE, &warehouse_key(place.warehouse))?;
    let mut district: District = read_for_update(tx, DISTRICT, &place.key())?;
    let buyer: Customer = read(tx, CUSTOMER, &place.customer(customer))?;
    let order = district.next_order;
    district.next_order += 1;
    write(tx, DISTRICT, &place.key(), &district)?;
    let all_local = lines.iter().all(|line| line.supply_warehouse == place.warehouse);
    let row = OrderRow {
        customer,
        entry: date,
        carrier: 0,
        lines: lines.len() as u8,
        all_local: u8::from(all_local),
        texts: Texts::default(),
    };
    write(tx, ORDER, &place.order(order), &row)?;
    write(tx, NEW_ORDER, &place.order(order), &NewOrder::default())?;
    write(tx, ORDER_BY_CUSTOMER, &place.order_by_customer(customer, order), &IndexEntry::default())?;
    let mut sum = 0;
    for (number, line) in (1..).zip(lines) {
        let Some(item) = find::<Item>(tx, ITEM, &item_key(line.item))? else {
            return Err(Interruption::RolledBack("unused item"));
        };
        let key = stock_key(line.supply_warehouse, line.item);
        let mut stock: Stock = read_for_update(tx, STOCK, &key)?;
        let quantity = i32::from(line.quantity);
        let refill = if stock.quantity >= quantity + 10 { 0 } else { 91 };
        stock.quantity += refill - quantity;
        stock.year_to_date += u64::from(line.quantity);
        stock.orders += 1;
        stock.remote_orders += u32::from(line.supply_warehouse != place.warehouse);
        write(tx, STOCK, &key, &stock)?;
        let amount = i64::from(line.quantity) * item.price;
        sum += amount;
        let is_original = |data: &[u8]| data.windows(ORIGINAL.len()).any(|place| place == ORIGINAL);
        black_box(is_original(item.texts.at(1)) && is_original(stock.texts.at(usize::from(DISTRICTS))));
        let row = OrderLine {
            item: line.item,
            supply_warehouse: line.supply_warehouse,
            delivery: 0,
            quantity: line.quantity,
            amount,
            texts: Texts::default().with(stock.texts.at(usize::from(place.district) - 1)),
        };
        write(tx, ORDER_LINE, &place.line(order, number), &row)?;
    }
    let discounted = sum * (10_000 - i64::from(buyer.discount)) / 10_000;
    black_box(discounted * (10_000 + i64::from(warehouse.tax) + i64::from(district.tax)) / 10_000);
    Ok(())
}

/// Clause 2.5: a customer pays.
pub(super) fn payment(tx: Transaction<'_>, request: &Request) -> Result<(), Interruption> {
    let Request::Payment { place, customer_place, who, amount, date, terminal, number } = request else {
        return Err(missing());
    };
    let key = warehouse_key(place.warehouse);
    let mut warehouse: Warehouse = read_for_update(tx, WAREHOUSE, &key)?;
    warehouse.year_to_date += amount;
    write(tx, WAREHOUSE, &key, &warehouse)?;
    let mut district: District = read_for_update(tx, DISTRICT, &place.key())?;
    district.year_to_date += amount;
    write(tx, DISTRICT, &place.key(), &district)?;
    let customer = who_is(tx, *customer_place, who)?;
    let key = customer_place.customer(customer);
    let mut payer: Customer = read_for_update(tx, CUSTOMER, &key)?;
    payer.balance -= amount;
    payer.payments_year_to_date += amount;
    payer.payments += 1;
    if payer.bad_credit != 0 {
        let Place { warehouse, district } = customer_place;
        let facts =
            format!("{customer} {district} {warehouse} {} {} {amount} ", place.district, place.warehouse);
        let mut data = [facts.as_bytes(), payer.texts.at(CUSTOMER_DATA)].concat();
        data.truncate(DATA_BYTES_MAX);
        payer.texts.set_last(CUSTOMER_DATA, &data);
    }
    write(tx, CUSTOMER, &key, &payer)?;
    let data = [warehouse.texts.at(0), b"    ", district.texts.at(0)].concat();
    let Place { warehouse, district } = *customer_place;
    let texts = Texts::default().with(&data);
    let row = History { warehouse, district, customer, date: *date, amount: *amount, texts };
    write(tx, HISTORY, &place.history(*terminal, *number), &row)
}

/// Clause 2.6: a customer asks for the state of his last order.
pub(super) fn order_status(tx: Transaction<'_>, place: Place, who: &Who) -> Result<(), Interruption> {
    let customer = who_is(tx, place, who)?;
    black_box(read::<Customer>(tx, CUSTOMER, &place.customer(customer))?);
    let orders = Span::of_prefix(place.customer(customer));
    let mut last = None;
    tx.first(ORDER_BY_CUSTOMER, orders.range(), Order::Descending, &mut |key, _| last = Some(last_u32(key)))?;
    let order = last.ok_or_else(missing)??;
    black_box(read::<OrderRow>(tx, ORDER, &place.order(order))?);
    let mut failure = Ok(());
    tx.scan(ORDER_LINE, Span::of_prefix(place.order(order)).range(), Order::Ascending, &mut |_, value| {
        match OrderLine::decode(value) {
            Ok(line) => drop(black_box(line)),
            Err(error) => failure = Err(error),
        }
        failure.is_ok()
    })?;
    Ok(failure?)
}

/// Clause 2.7: a carrier takes the oldest new order of each district of a warehouse. Returns how many there were.
pub(super) fn delivery(
    tx: Transaction<'_>,
    warehouse: u16,
    carrier: u8,
    date: u64,
) -> Result<u64, Interruption> {
    let mut delivered = 0;
    for district in 1..=DISTRICTS {
        let place = Place { warehouse, district };
        let mut oldest = None;
        let new_orders = Span::of_prefix(place.key());
        tx.first(NEW_ORDER, new_orders.range(), Order::Ascending, &mut |key, _| {
            oldest = Some(last_u32(key));
        })?;
        let Some(order) = oldest.transpose()? else { continue };
        let key = place.order(order);
        // An engine that protects single records and no ranges learns here that another has been faster.
        if find_for_update::<NewOrder>(tx, NEW_ORDER, &key)?.is_none() {
            return Err(Interruption::Conflict("delivered meanwhile"));
        }
        tx.delete(NEW_ORDER, &key)?;
        let mut row: OrderRow = read_for_update(tx, ORDER, &key)?;
        row.carrier = carrier;
        write(tx, ORDER, &key, &row)?;
        let mut sum = 0;
        for number in 1..=row.lines {
            let key = place.line(order, number);
            let mut line: OrderLine = read_for_update(tx, ORDER_LINE, &key)?;
            line.delivery = date;
            sum += line.amount;
            write(tx, ORDER_LINE, &key, &line)?;
        }
        let key = place.customer(row.customer);
        let mut customer: Customer = read_for_update(tx, CUSTOMER, &key)?;
        customer.balance += sum;
        customer.deliveries += 1;
        write(tx, CUSTOMER, &key, &customer)?;
        delivered += 1;
    }
    Ok(delivered)
}

/// Clause 2.8: how many of the items that a district's last orders took are short.
pub(super) fn stock_level(tx: Transaction<'_>, place: Place, threshold: i32) -> Result<u32, Interruption> {
    let next: u32 = read::<District>(tx, DISTRICT, &place.key())?.next_order;
    let mut items = BTreeSet::new();
    let mut failure = Ok(());
    let recent = Span::new(place.order(next.saturating_sub(RECENT_ORDERS)), place.order(next));
    tx.scan(ORDER_LINE, recent.range(), Order::Ascending, &mut |_, value| {
        match OrderLine::decode(value) {
            Ok(line) => drop(items.insert(line.item)),
            Err(error) => failure = Err(error),
        }
        failure.is_ok()
    })?;
    failure?;
    let mut short = 0;
    for item in items {
        let stock: Stock = read(tx, STOCK, &stock_key(place.warehouse, item))?;
        short += u32::from(stock.quantity < threshold);
    }
    Ok(black_box(short))
}

/// The number of a customer: by a last name, the one in the middle of all of that name, by their first names.
fn who_is(tx: Transaction<'_>, place: Place, who: &Who) -> Result<u32, Interruption> {
    let last = match who {
        Who::Number(customer) => return Ok(*customer),
        Who::LastName(last) => last,
    };
    let mut customers = Vec::new();
    tx.scan(CUSTOMER_BY_NAME, Span::of_prefix(place.name(last)).range(), Order::Ascending, &mut |key, _| {
        customers.push(last_u32(key));
        true
    })?;
    // The position is rounded up, and counts from one.
    let middle = customers.len().div_ceil(2).checked_sub(1).ok_or_else(missing)?;
    Ok(customers.swap_remove(middle)?)
}

/// The number at the end of a key.
fn last_u32(key: &[u8]) -> Result<u32, BenchError> {
    KeyParts(&key[key.len().saturating_sub(4)..]).u32()
}

#[cfg(test)]
mod tests {
    use super::super::Tpcc;
    use super::super::load::NAME_SHIFT;
    use super::super::terminal::last_name;
    use super::*;
    use crate::applications::testing::{committed, loaded};
    use crate::applications::{Access, ApplicationStore, EmbeddedApplicationStore};

    const PLACE: Place = Place { warehouse: 1, district: 4 };

    fn looked_up<R: Row>(
        store: &EmbeddedApplicationStore,
        table: usize,
        key: crate::applications::key::Key,
    ) -> R {
        committed(store, Access::Read, |tx| read(tx, table, &key))
    }

    fn lines() -> Vec<Line> {
        [3, 8, 21, 34, 55].map(|item| Line { item, supply_warehouse: 1, quantity: 10 }).to_vec()
    }

    #[test]
    fn an_order_is_taken_paid_and_delivered() {
        let tpcc = Tpcc::new(1).shrunk(1_000);
        let store = loaded(&tpcc);
        let before: Stock = looked_up(&store, STOCK, stock_key(1, 21));
        store.transact(Access::Write, &mut |tx| new_order(tx, PLACE, 17, &lines(), 5)).unwrap();
        assert_eq!(looked_up::<District>(&store, DISTRICT, PLACE.key()).next_order, 32);
        let order: OrderRow = looked_up(&store, ORDER, PLACE.order(31));
        assert_eq!((order.customer, order.lines, order.carrier, order.all_local), (17, 5, 0, 1));
        let stock: Stock = looked_up(&store, STOCK, stock_key(1, 21));
        assert_eq!((stock.year_to_date, stock.orders, stock.remote_orders), (10, 1, 0));
        assert_eq!((stock.quantity - before.quantity).rem_euclid(91), 81);
        let line: OrderLine = looked_up(&store, ORDER_LINE, PLACE.line(31, 3));
        assert_eq!(line.amount, 10 * looked_up::<Item>(&store, ITEM, item_key(21)).price);
        assert_eq!(line.texts.at(0), stock.texts.at(3));

        let customer = |store| looked_up::<Customer>(store, CUSTOMER, PLACE.customer(17));
        let owed = customer(&store);
        // The order is behind nine that were there before, and of which some may be this customer's.
        for _ in 0..9 {
            assert_eq!(committed(&store, Access::Write, |tx| delivery(tx, 1, 2, 6)), 10);
        }
        let before = customer(&store);
        assert!(before.deliveries <= owed.deliveries + 1);
        assert_eq!(committed(&store, Access::Write, |tx| delivery(tx, 1, 3, 7)), 1);
        let after = customer(&store);
        let sum: i64 =
            (1..=5).map(|line| looked_up::<OrderLine>(&store, ORDER_LINE, PLACE.line(31, line)).amount).sum();
        assert_eq!((after.balance, after.deliveries), (before.balance + sum, before.deliveries + 1));
        assert_eq!(looked_up::<OrderRow>(&store, ORDER, PLACE.order(31)).carrier, 3);
        assert_eq!(committed(&store, Access::Write, |tx| delivery(tx, 1, 3, 8)), 0);
        store.transact(Access::Read, &mut |tx| order_status(tx, PLACE, &Who::Number(17))).unwrap();
        store.close().unwrap();
    }

    #[test]
    fn an_unused_item_rolls_everything_back() {
        let tpcc = Tpcc::new(1).shrunk(1_000);
        let store = loaded(&tpcc);
        let mut lines = lines();
        lines[4].item = 101;
        let refused = store.transact(Access::Write, &mut |tx| new_order(tx, PLACE, 17, &lines, 5));
        assert!(matches!(refused, Err(Interruption::RolledBack("unused item"))));
        assert_eq!(looked_up::<District>(&store, DISTRICT, PLACE.key()).next_order, 31);
        assert_eq!(looked_up::<Stock>(&store, STOCK, stock_key(1, 3)).orders, 0);
        store.close().unwrap();
    }

    #[test]
    fn customers_are_found_by_the_middle_of_their_name_and_bad_credit_is_written_down() {
        let tpcc = Tpcc::new(1).shrunk(1_000);
        let store = loaded(&tpcc);
        let bad = (1..=30)
            .find(|customer| {
                looked_up::<Customer>(&store, CUSTOMER, PLACE.customer(*customer)).bad_credit == 1
            })
            .unwrap();
        let name = last_name(u64::from(bad) - 1);
        // Two more of that name, before and behind.
        store
            .transact(Access::Write, &mut |tx| {
                for (first, customer) in [(&b""[..], 31), (b"~~~~~~~~~~~~~~~~", 32)] {
                    let key = PLACE.customer_by_name(&name, first, customer);
                    write(tx, CUSTOMER_BY_NAME, &key, &IndexEntry::default())?;
                }
                Ok(())
            })
            .unwrap();
        let before: Customer = looked_up(&store, CUSTOMER, PLACE.customer(bad));
        let request = Request::Payment {
            place: Place { warehouse: 1, district: 9 },
            customer_place: PLACE,
            who: Who::LastName(name),
            amount: 250,
            date: NAME_SHIFT,
            terminal: 1,
            number: 1,
        };
        store.transact(Access::Write, &mut |tx| payment(tx, &request)).unwrap();
        let after: Customer = looked_up(&store, CUSTOMER, PLACE.customer(bad));
        assert_eq!(
            (after.balance, after.payments_year_to_date),
            (before.balance - 250, before.payments_year_to_date + 250)
        );
        let data = after.texts.at(CUSTOMER_DATA);
        assert!(data.starts_with(format!("{bad} 4 1 9 1 250 ").as_bytes()) && data.len() <= DATA_BYTES_MAX);
        assert_eq!(after.texts.at(2), before.texts.at(2));
        let paid: History = looked_up(&store, HISTORY, Place { warehouse: 1, district: 9 }.history(1, 1));
        assert_eq!((paid.district, paid.customer, paid.amount), (4, bad, 250));
        store.close().unwrap();
    }

    #[test]
    fn stock_level_counts_items_below_the_threshold_once() {
        let tpcc = Tpcc::new(1).shrunk(1_000);
        let store = loaded(&tpcc);
        let mut items = BTreeSet::new();
        for order in 11..=30 {
            for line in 1..=looked_up::<OrderRow>(&store, ORDER, PLACE.order(order)).lines {
                items.insert(looked_up::<OrderLine>(&store, ORDER_LINE, PLACE.line(order, line)).item);
            }
        }
        let level = |threshold| committed(&store, Access::Read, |tx| stock_level(tx, PLACE, threshold));
        let below = |threshold: i32| {
            items
                .iter()
                .filter(|item| looked_up::<Stock>(&store, STOCK, stock_key(1, **item)).quantity < threshold)
                .count() as u32
        };
        for threshold in [0, 20, 50, 101] {
            assert_eq!(level(threshold), below(threshold));
        }
        assert_eq!(level(101), items.len() as u32);
        store.close().unwrap();
    }
}
