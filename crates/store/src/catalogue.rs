//! [`Catalogue`]: the names of the tables, kept in table 0.
//!
//! | key | value |
//! |---|---|
//! | `n` name | the identifier, 4 bytes little endian |
//! | `#` | above every identifier, 4 bytes little endian |
//!
//! The same as in a transactional database. A crash may leave one of the two writes of a creation without the other, so that the
//! next identifier is above `#` and above all that are in use. A creation is durable before its table can be written to:
//! else a crash might keep records, forget the name, and give the identifier to another table.

use crate::Error;
use crate::engine::Engine;
use deuteron_contract::{DataComponent, Direction, ScanRequest, TableId};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The longest table name in bytes.
const NAME_BYTES_MAX: usize = 255;
const NEXT: &[u8] = b"#";
const NAME_PREFIX: u8 = b'n';

pub(crate) struct Catalogue {
    tables: Mutex<Tables>,
}

struct Tables {
    by_name: BTreeMap<Arc<str>, TableId>,
    next: u32,
}

impl Catalogue {
    /// Reads the names.
    pub(crate) fn read(component: &dyn DataComponent) -> Result<Catalogue, Error> {
        let mut tables = Tables { by_name: BTreeMap::new(), next: 1 };
        let mut lower = Bound::Unbounded;
        loop {
            let request = ScanRequest {
                table: TableId::CATALOGUE,
                lower: lower.as_ref().map(Vec::as_slice),
                upper: Bound::Unbounded,
                direction: Direction::Forward,
                bytes_max: 64 << 10,
            };
            let batch = component.scan(&request)?;
            for record in &batch.records {
                if let Some(value) = &record.value {
                    tables.take(&record.key, value)?;
                }
            }
            match batch.records.last() {
                Some(last) if !batch.complete => lower = Bound::Excluded(last.key.clone()),
                _ => return Ok(Catalogue { tables: Mutex::new(tables) }),
            }
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // What is done under the lock leaves the list whole.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The identifier of table `name`, which is created (durably) if it does not exist.
    pub(crate) fn table(&self, engine: &Engine, name: &str) -> Result<(TableId, Arc<str>), Error> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::TableName { found: name.len(), limit: NAME_BYTES_MAX });
        }
        // Held over the creation, so that a name is created once. Only those wait who look for a table.
        let mut tables = self.tables();
        if let Some((name, &id)) = tables.by_name.get_key_value(name) {
            return Ok((id, Arc::clone(name)));
        }
        let id = TableId(tables.next);
        let key = [&[NAME_PREFIX], name.as_bytes()].concat();
        let (value, next) = (id.0.to_le_bytes(), (id.0 + 1).to_le_bytes());
        let names = TableId::CATALOGUE;
        engine.apply(2, [(names, NEXT, Some(&next[..])), (names, &key, Some(&value))])?;
        engine.persist()?;
        let name: Arc<str> = name.into();
        tables.next = id.0 + 1;
        tables.by_name.insert(Arc::clone(&name), id);
        Ok((id, name))
    }

    /// The names of all tables, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        self.tables().by_name.keys().map(|name| name.to_string()).collect()
    }
}

impl Tables {
    /// Takes over one record of the catalogue.
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let damage = |expected: &str, found: String| {
            Err(Error::Corrupt { file: "the catalogue".into(), offset: 0, expected: expected.into(), found })
        };
        let Ok(id) = value.try_into().map(u32::from_le_bytes) else {
            return damage("an identifier of 4 bytes", format!("{} bytes", value.len()));
        };
        match key {
            NEXT => self.next = self.next.max(id),
            [NAME_PREFIX, name @ ..] => {
                let Ok(name) = std::str::from_utf8(name) else {
                    return damage("a name in UTF-8", format!("\"{}\"", name.escape_ascii()));
                };
                self.by_name.insert(name.into(), TableId(id));
                self.next = self.next.max(id.saturating_add(1));
            }
            other => return damage("# or a name", format!("\"{}\"", other.escape_ascii())),
        }
        Ok(())
    }
}
