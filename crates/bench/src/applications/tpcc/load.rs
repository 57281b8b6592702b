//! The rows that are there at the beginning, as clause 4.3.3 has them.

use super::rows::{
    CUSTOMER, CUSTOMER_BY_NAME, Customer, DISTRICT, District, HISTORY, History, ITEM, IndexEntry, Item,
    NEW_ORDER, NewOrder, ORDER, ORDER_BY_CUSTOMER, ORDER_LINE, OrderLine, OrderRow, Place, STOCK, Stock,
    WAREHOUSE, Warehouse, item_key, stock_key, warehouse_key,
};
use super::terminal::last_name;
use super::{DISTRICTS, Sizes};
use crate::applications::Emit;
use crate::applications::mix::{between, digits, non_uniform, text};
use crate::applications::row::{Row, Texts};
use crate::{BenchError, Random};

/// Sets the rows, which are the same in each load.
const SEED: u64 = 0x79cc;

/// The shift of the non-uniform draw of last names in the load. That of the run is 85 more, which clause 2.1.6.1 allows.
pub(super) const NAME_SHIFT: u64 = 157;

/// When everything that is there at the beginning was entered.
const DATE: u64 = 1_700_000_000_000_000;

/// What each customer has paid, in cents.
const PAID: i64 = 1_000;

/// All rows, one warehouse after the other.
pub(super) fn rows(sizes: &Sizes, emit: Emit<'_>) -> Result<(), BenchError> {
    let random = &mut Random::new(SEED);
    for item in 1..=sizes.items {
        let texts = Texts::default().with(&text(14, 24, random)).with(&data(random));
        let row = Item {
            image: between(1, 10_000, random) as u32,
            price: between(100, 10_000, random) as i64,
            texts,
        };
        emit(ITEM, &item_key(item), &row.encode())?;
    }
    for warehouse in 1..=sizes.warehouses {
        let paid = i64::from(DISTRICTS) * i64::from(sizes.customers) * PAID;
        let texts = address(Texts::default().with(&text(6, 10, random)), random);
        let row = Warehouse { tax: between(0, 2_000, random) as u16, year_to_date: paid, texts };
        emit(WAREHOUSE, &warehouse_key(warehouse), &row.encode())?;
        for item in 1..=sizes.items {
            let districts =
                (0..DISTRICTS).fold(Texts::default(), |texts, _| texts.with(&text(24, 24, random)));
            let row = Stock {
                quantity: between(10, 100, random) as i32,
                texts: districts.with(&data(random)),
                ..Stock::default()
            };
            emit(STOCK, &stock_key(warehouse, item), &row.encode())?;
        }
        for district in 1..=DISTRICTS {
            let place = Place { warehouse, district };
            let row = District {
                tax: between(0, 2_000, random) as u16,
                year_to_date: i64::from(sizes.customers) * PAID,
                next_order: sizes.customers + 1,
                texts: address(Texts::default().with(&text(6, 10, random)), random),
            };
            emit(DISTRICT, &place.key(), &row.encode())?;
            customers(sizes, place, random, emit)?;
            orders(sizes, place, random, emit)?;
        }
    }
    Ok(())
}

fn customers(sizes: &Sizes, place: Place, random: &mut Random, emit: Emit<'_>) -> Result<(), BenchError> {
    for customer in 1..=sizes.customers {
        let name = match customer - 1 {
            number if number < sizes.names() => u64::from(number),
            _ => non_uniform(255, NAME_SHIFT, 0, u64::from(sizes.names()) - 1, random),
        };
        let (first, last) = (text(8, 16, random), last_name(name));
        let names = Texts::default().with(&first).with(b"OE").with(&last);
        let texts = address(names, random).with(&digits(16, 16, random)).with(&text(300, 500, random));
        let row = Customer {
            since: DATE,
            credit_limit: 5_000_000,
            discount: between(0, 5_000, random) as u16,
            bad_credit: u8::from(random.below(10) == 0),
            balance: -PAID,
            payments_year_to_date: PAID,
            payments: 1,
            deliveries: 0,
            texts,
        };
        emit(CUSTOMER, &place.customer(customer), &row.encode())?;
        let entry = place.customer_by_name(&last, &first, customer);
        emit(CUSTOMER_BY_NAME, &entry, &IndexEntry::default().encode())?;
        let Place { warehouse, district } = place;
        let texts = Texts::default().with(&text(12, 24, random));
        let paid = History { warehouse, district, customer, date: DATE, amount: PAID, texts };
        emit(HISTORY, &place.history(0, customer), &paid.encode())?;
    }
    Ok(())
}

fn orders(sizes: &Sizes, place: Place, random: &mut Random, emit: Emit<'_>) -> Result<(), BenchError> {
    let mut customers: Vec<u32> = (1..=sizes.customers).collect();
    for last in (1..customers.len()).rev() {
        customers.swap(last, random.below(last as u64 + 1) as usize);
    }
    for (order, customer) in (1..).zip(customers) {
        let delivered = order <= sizes.delivered();
        let lines = between(5, 15, random) as u8;
        let carrier = if delivered { between(1, 10, random) as u8 } else { 0 };
        let row = OrderRow { customer, entry: DATE, carrier, lines, all_local: 1, texts: Texts::default() };
        emit(ORDER, &place.order(order), &row.encode())?;
        let entry = place.order_by_customer(customer, order);
        emit(ORDER_BY_CUSTOMER, &entry, &IndexEntry::default().encode())?;
        if !delivered {
            emit(NEW_ORDER, &place.order(order), &NewOrder::default().encode())?;
        }
        for line in 1..=lines {
            let row = OrderLine {
                item: between(1, u64::from(sizes.items), random) as u32,
                supply_warehouse: place.warehouse,
                delivery: if delivered { DATE } else { 0 },
                quantity: 5,
                amount: if delivered { 0 } else { between(1, 999_999, random) as i64 },
                texts: Texts::default().with(&text(24, 24, random)),
            };
            emit(ORDER_LINE, &place.line(order, line), &row.encode())?;
        }
    }
    Ok(())
}

/// Two streets, city, state, zip, behind what is there.
fn address(texts: Texts, random: &mut Random) -> Texts {
    let zip = [&digits(4, 4, random)[..], b"11111"].concat();
    texts
        .with(&text(10, 20, random))
        .with(&text(10, 20, random))
        .with(&text(10, 20, random))
        .with(&text(2, 2, random))
        .with(&zip)
}

/// What is said of an item or its stock; one in ten is original.
fn data(random: &mut Random) -> Vec<u8> {
    let mut data = text(26, 50, random);
    if random.below(10) == 0 {
        let at = random.below(data.len() as u64 - ORIGINAL.len() as u64 + 1) as usize;
        data[at..at + ORIGINAL.len()].copy_from_slice(ORIGINAL);
    }
    data
}

/// Marks what is original.
pub(super) const ORIGINAL: &[u8] = b"ORIGINAL";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_are_as_many_and_as_long_as_specified() {
        let sizes = Sizes { warehouses: 2, items: 500, customers: 300 };
        let (mut counts, mut bytes) = ([0u32; 11], [0usize; 11]);
        let (mut original, mut bad) = (0, 0);
        rows(&sizes, &mut |table, _, value| {
            counts[table] += 1;
            bytes[table] += value.len();
            match table {
                STOCK => {
                    original +=
                        u32::from(Stock::decode(value)?.texts.at(10).windows(8).any(|at| at == ORIGINAL))
                }
                CUSTOMER => bad += u32::from(Customer::decode(value)?.bad_credit),
                _ => {}
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(
            [WAREHOUSE, DISTRICT, CUSTOMER, HISTORY, ORDER].map(|table| counts[table]),
            [2, 20, 6_000, 6_000, 6_000]
        );
        assert_eq!([NEW_ORDER, ITEM, STOCK].map(|table| counts[table]), [20 * 90, 500, 1_000]);
        assert_eq!([CUSTOMER_BY_NAME, ORDER_BY_CUSTOMER].map(|table| counts[table]), [6_000, 6_000]);
        assert!((58_500..61_500).contains(&counts[ORDER_LINE]), "{counts:?}");
        let mean = |table: usize| bytes[table] as u32 / counts[table];
        // The specification's typical rows are of 655 and 306 bytes.
        assert!(
            (550..650).contains(&mean(CUSTOMER)) && (300..340).contains(&mean(STOCK)),
            "{} {}",
            mean(CUSTOMER),
            mean(STOCK)
        );
        assert!((60..150).contains(&original) && (500..700).contains(&bad), "{original} {bad}");
    }
}
