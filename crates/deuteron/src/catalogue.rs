//! The catalogue: table names and their identifiers, kept in table 0 by ordinary serializable transactions.
//!
//! | key | value |
//! |---|---|
//! | `n` name | the identifier, 4 bytes little endian |
//! | `#` | the next free identifier, 4 bytes little endian |

use crate::engine::Engine;
use crate::handle::Handle;
use crate::{Durability, Error, RetryPolicy, Table, Transaction, TransactionOptions};
use deuteron_contract::TableId;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The longest table name in bytes.
const NAME_BYTES_MAX: usize = 255;
const NEXT: &[u8] = b"#";
const NAME_PREFIX: u8 = b'n';

/// The tables that have been looked up so far. Identifiers are never reused, so an entry stays true.
#[derive(Default)]
pub struct Catalogue {
    known: RwLock<HashMap<String, Table>>,
}

impl Catalogue {
    /// The table `name`, created if it does not exist.
    pub fn table(&self, engine: &Arc<Engine>, name: &str) -> Result<Table, Error> {
        engine.usable()?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::TableName { found: name.len(), limit: NAME_BYTES_MAX });
        }
        if let Some(table) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Ok(table.clone());
        }
        let id = Self::look_up_or_create(engine, name)?;
        let table = Table { id, name: name.into(), database: engine.database() };
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        Ok(known.entry(name.to_owned()).or_insert(table).clone())
    }

    /// The names of all tables, sorted.
    pub fn names(&self, engine: &Arc<Engine>) -> Result<Vec<String>, Error> {
        let catalogue = Self::own_table(engine);
        RetryPolicy::default().run(|_| {
            let mut transaction = Transaction::begin_now(&Handle::new(engine), TransactionOptions::new());
            let names = Self::read_names(&mut transaction, &catalogue)?;
            transaction.commit()?;
            Ok(names)
        })
    }

    /// The name of the table `id` among those looked up so far, for messages.
    pub fn name_of(&self, id: TableId) -> String {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        match known.values().find(|table| table.id == id) {
            Some(table) => table.name.to_string(),
            None if id == TableId::CATALOGUE => "the catalogue".to_owned(),
            None => format!("number {id}"),
        }
    }

    fn own_table(engine: &Engine) -> Table {
        Table { id: TableId::CATALOGUE, name: "the catalogue".into(), database: engine.database() }
    }

    fn read_names(transaction: &mut Transaction, catalogue: &Table) -> Result<Vec<String>, Error> {
        transaction
            .scan(catalogue, &[NAME_PREFIX][..]..&[NAME_PREFIX + 1][..])?
            .map(|entry| entry.map(|(key, _)| String::from_utf8_lossy(&key[1..]).into_owned()))
            .collect()
    }

    fn look_up_or_create(engine: &Arc<Engine>, name: &str) -> Result<TableId, Error> {
        let catalogue = Self::own_table(engine);
        // Durable whatever the database's default: operations of the new table may be made durable by others.
        let options = TransactionOptions::new().durability(Durability::Sync);
        RetryPolicy::default().run(|_| {
            let mut transaction = Transaction::begin_now(&Handle::new(engine), options);
            let id = Self::look_up_or_create_in(&mut transaction, &catalogue, name)?;
            transaction.commit()?;
            Ok(id)
        })
    }

    fn look_up_or_create_in(
        transaction: &mut Transaction,
        catalogue: &Table,
        name: &str,
    ) -> Result<TableId, Error> {
        let key = [&[NAME_PREFIX], name.as_bytes()].concat();
        if let Some(value) = transaction.get(catalogue, &key)? {
            return Self::decode(&value);
        }
        let id = match transaction.get(catalogue, NEXT)? {
            Some(value) => Self::decode(&value)?,
            None => TableId(1),
        };
        transaction.put(catalogue, &key, &id.0.to_le_bytes())?;
        transaction.put(catalogue, NEXT, &(id.0 + 1).to_le_bytes())?;
        Ok(id)
    }

    fn decode(value: &[u8]) -> Result<TableId, Error> {
        match value.try_into() {
            Ok(bytes) => Ok(TableId(u32::from_le_bytes(bytes))),
            Err(_) => Err(Error::Corrupt {
                file: "the catalogue".into(),
                offset: 0,
                expected: "an identifier of 4 bytes".into(),
                found: format!("{} bytes", value.len()),
            }),
        }
    }
}
