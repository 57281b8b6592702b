//! The rows of the nine tables, and the keys of these and of the two indexes.
//!
//! Money is in cents, taxes and discounts are in hundredths of a per cent, times in microseconds since 1970; 0 is no time and no carrier.
//! The texts have the lengths of the specification.

use crate::applications::key::Key;
use crate::applications::row::row;

pub(super) const WAREHOUSE: usize = 0;
pub(super) const DISTRICT: usize = 1;
pub(super) const CUSTOMER: usize = 2;
pub(super) const HISTORY: usize = 3;
pub(super) const NEW_ORDER: usize = 4;
pub(super) const ORDER: usize = 5;
pub(super) const ORDER_LINE: usize = 6;
pub(super) const ITEM: usize = 7;
pub(super) const STOCK: usize = 8;
/// An index: from a last name, first name and number.
pub(super) const CUSTOMER_BY_NAME: usize = 9;
/// An index: from a customer and the number of the order.
pub(super) const ORDER_BY_CUSTOMER: usize = 10;

pub(super) const TABLES: &[&str] = &[
    "warehouse",
    "district",
    "customer",
    "history",
    "new-order",
    "order",
    "order-line",
    "item",
    "stock",
    "customer-by-name",
    "order-by-customer",
];

row! {
    /// Its texts: name, two streets, city, state, zip.
    Warehouse { tax: u16, year_to_date: i64 }
}
row! {
    /// Its texts: name, two streets, city, state, zip.
    District { tax: u16, year_to_date: i64, next_order: u32 }
}
row! {
    /// Its texts: first, middle and last name, two streets, city, state, zip, telephone, data.
    Customer {
        since: u64, credit_limit: i64, discount: u16, bad_credit: u8, balance: i64, payments_year_to_date: i64,
        payments: u32, deliveries: u32,
    }
}
/// Where the data lies among a customer's texts.
pub(super) const CUSTOMER_DATA: usize = 9;

row! {
    /// Its texts: data. The warehouse and district of the payment are in the key.
    History { warehouse: u16, district: u8, customer: u32, date: u64, amount: i64 }
}
row! {
    /// All is in the key.
    NewOrder {}
}
row! {
    OrderRow { customer: u32, entry: u64, carrier: u8, lines: u8, all_local: u8 }
}
row! {
    /// Its texts: what the stock says for the district.
    OrderLine { item: u32, supply_warehouse: u16, delivery: u64, quantity: u8, amount: i64 }
}
row! {
    /// Its texts: name, data.
    Item { image: u32, price: i64 }
}
row! {
    /// Its texts: one for each of the ten districts, data.
    Stock { quantity: i32, year_to_date: u64, orders: u32, remote_orders: u32 }
}
row! {
    /// All is in the key.
    IndexEntry {}
}

/// A district of a warehouse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub warehouse: u16,
    pub district: u8,
}

impl Place {
    pub fn key(self) -> Key {
        warehouse_key(self.warehouse).u8(self.district)
    }

    pub fn customer(self, customer: u32) -> Key {
        self.key().u32(customer)
    }

    /// The payment of that number by that terminal.
    pub fn history(self, terminal: u32, number: u32) -> Key {
        self.key().u32(terminal).u32(number)
    }

    /// Of the tables of orders and of new orders.
    pub fn order(self, order: u32) -> Key {
        self.key().u32(order)
    }

    pub fn line(self, order: u32, line: u8) -> Key {
        self.order(order).u8(line)
    }

    /// All customers of a last name, in the index.
    pub fn name(self, last: &[u8]) -> Key {
        self.key().text(last, NAME_BYTES)
    }

    pub fn customer_by_name(self, last: &[u8], first: &[u8], customer: u32) -> Key {
        self.name(last).text(first, NAME_BYTES).u32(customer)
    }

    pub fn order_by_customer(self, customer: u32, order: u32) -> Key {
        self.customer(customer).u32(order)
    }
}

/// What a name takes in a key.
const NAME_BYTES: usize = 16;

pub(super) fn warehouse_key(warehouse: u16) -> Key {
    Key::new().u16(warehouse)
}

pub(super) fn item_key(item: u32) -> Key {
    Key::new().u32(item)
}

pub(super) fn stock_key(warehouse: u16, item: u32) -> Key {
    warehouse_key(warehouse).u32(item)
}
