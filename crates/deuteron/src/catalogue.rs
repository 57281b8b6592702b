//! The catalogue: table names and their identifiers, kept in table 0 by ordinary serializable transactions.
//!
//! Its keys and values are [those of the contract](deuteron_contract::catalogue). A table is dropped by one transaction that replaces its name by a `d` entry. Then the data component is told, which
//! remembers it for ever, and the entry is removed; or both is done at the next opening.

use crate::engine::Engine;
use crate::handle::Handle;
use crate::{Durability, Error, RetryPolicy, Table, Transaction, TransactionOptions};
use deuteron_contract::catalogue::{
    DROPPED_PREFIX, NAME_BYTES_MAX, NAME_PREFIX, NEXT, decode_id, dropped_key, is_name, name_key,
};
use deuteron_contract::{TableId, Timestamp};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The tables that have been looked up so far. Identifiers are never reused, so an entry stays true until somebody drops the table.
#[derive(Default)]
pub struct Catalogue {
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    /// Each with when somebody has seen it under that name last.
    tables: HashMap<String, (Timestamp, Table)>,
    /// Loaded since the database was opened: when; `None` as long as that is not known.
    loaded: HashMap<TableId, Option<Timestamp>>,
    /// Dropped since the database was opened, with the names that they had.
    dropped: HashMap<TableId, String>,
    /// By name, how many are about to drop the table. Others see that it is gone as soon as one of them has committed, before
    /// that one, which waits to be durable, says so here: the catalogue itself must be asked.
    dropping: HashMap<String, usize>,
}

impl Known {
    /// The table that certainly has this name.
    fn table(&self, name: &str) -> Option<&Table> {
        let (_, table) = self.tables.get(name).filter(|_| !self.dropping.contains_key(name))?;
        Some(table)
    }
}

/// Somebody is about to drop the table of this name, until it goes.
struct Dropping<'c> {
    catalogue: &'c Catalogue,
    name: &'c str,
}

impl Drop for Dropping<'_> {
    fn drop(&mut self) {
        let mut known = self.catalogue.known_mut();
        if let Some(count) = known.dropping.get_mut(self.name) {
            *count -= 1;
            if *count == 0 {
                known.dropping.remove(self.name);
            }
        }
    }
}

impl Catalogue {
    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table `name`, created if it does not exist.
    pub fn table(&self, engine: &Arc<Engine>, name: &str) -> Result<Table, Error> {
        engine.usable()?;
        check_name(name)?;
        loop {
            if let Some(table) = self.known().table(name) {
                return Ok(table.clone());
            }
            let (id, seen) = Self::look_up_or_create(engine, name)?;
            // Else it was dropped since it was looked up.
            if let Some(table) = self.keep(engine, name, id, seen) {
                return Ok(table);
            }
        }
    }

    /// Remembers that the table `id` was seen under `name`; `None` if it has been dropped since.
    fn keep(&self, engine: &Engine, name: &str, id: TableId, seen: Timestamp) -> Option<Table> {
        let mut known = self.known_mut();
        let Known { tables, loaded, dropped, .. } = &mut *known;
        if dropped.contains_key(&id) {
            return None;
        }
        match tables.get_mut(name) {
            Some((at, table)) if table.id == id => {
                *at = seen.max(*at);
                return Some(table.clone());
            }
            // Whoever has dropped this one has yet to say so.
            Some((at, _)) if *at > seen => return None,
            Some((_, older)) => older.dropped.store(true, Ordering::Release),
            None => {}
        }
        // A load that is about to be known of was before it was seen.
        let since = loaded.get(&id).map_or(Timestamp(0), |since| since.unwrap_or(seen));
        let table = Table { since, ..Table::new(id, name, engine.number()) };
        tables.insert(name.to_owned(), (seen, table.clone()));
        Some(table)
    }

    fn begin_drop<'c>(&'c self, name: &'c str) -> Dropping<'c> {
        *self.known_mut().dropping.entry(name.to_owned()).or_default() += 1;
        Dropping { catalogue: self, name }
    }

    /// Drops the table `name`.
    pub fn drop_table(&self, engine: &Arc<Engine>, name: &str) -> Result<(), Error> {
        engine.usable()?;
        check_name(name)?;
        let dropping = self.begin_drop(name);
        let body = |transaction: &mut Transaction, catalogue: &Table| {
            let Some(value) = transaction.get(catalogue, &name_key(name))? else {
                return Err(Error::NoSuchTable { table: name.to_owned() });
            };
            let id = Self::decode(&value)?;
            transaction.delete(catalogue, &name_key(name))?;
            transaction.put(catalogue, &dropped_key(id), &[])?;
            Ok(id)
        };
        // Others have seen it since the commit, a moment ago, durable or not: what they write with a handle that they have would be lost.
        let seen = |&id: &TableId| {
            let mut known = self.known_mut();
            known.dropped.insert(id, name.to_owned());
            if let Some((_, table)) = known.tables.get(name).filter(|(_, table)| table.id == id) {
                table.dropped.store(true, Ordering::Release);
                known.tables.remove(name);
            }
        };
        let (id, _) = Self::change_seen(engine, body, seen)?;
        // The catalogue knows by itself from here on.
        drop(dropping);
        engine.tc().drop_table(id);
        Self::finish_drop(engine, id)
    }

    /// Tells the data component, and then the catalogue that it has been told.
    fn finish_drop(engine: &Arc<Engine>, id: TableId) -> Result<(), Error> {
        engine.dc().drop_table(id)?;
        Self::change(engine, |transaction, catalogue| transaction.delete(catalogue, &dropped_key(id)))
            .map(drop)
    }

    /// Finishes what a crash has interrupted. One that cannot be finished hinders none of the others; the first is told of.
    pub fn finish_drops(engine: &Arc<Engine>) -> Result<(), Error> {
        let catalogue = Self::own_table(engine);
        let dropped: Vec<Result<TableId, Error>> = RetryPolicy::default().run(|_| {
            let mut transaction =
                Transaction::begin_now(&Handle::new(engine), TransactionOptions::new(), None);
            let range = &[DROPPED_PREFIX][..]..&[DROPPED_PREFIX + 1][..];
            let keys: Result<_, Error> =
                transaction.scan(&catalogue, range)?.map(|entry| Ok(Self::decode(&entry?.0[1..]))).collect();
            transaction.commit()?;
            keys
        })?;
        let finished: Vec<_> =
            dropped.into_iter().map(|id| id.and_then(|id| Self::finish_drop(engine, id))).collect();
        finished.into_iter().collect()
    }

    /// The names of all tables, sorted.
    pub fn names(&self, engine: &Arc<Engine>) -> Result<Vec<String>, Error> {
        let catalogue = Self::own_table(engine);
        RetryPolicy::default().run(|_| {
            let mut transaction =
                Transaction::begin_now(&Handle::new(engine), TransactionOptions::new(), None);
            let names = Self::read_names(&mut transaction, &catalogue)?;
            transaction.commit()?;
            Ok(names)
        })
    }

    /// The name of the table `id` among those looked up or dropped so far, for messages.
    pub fn name_of(&self, id: TableId) -> String {
        let known = self.known();
        match known.tables.values().find(|(_, table)| table.id == id) {
            Some((_, table)) => table.name.to_string(),
            None if id == TableId::CATALOGUE => "the catalogue".to_owned(),
            None => known.dropped.get(&id).cloned().unwrap_or_else(|| format!("number {id}")),
        }
    }

    fn own_table(engine: &Engine) -> Table {
        Table::new(TableId::CATALOGUE, "the catalogue", engine.number())
    }

    fn read_names(transaction: &mut Transaction, catalogue: &Table) -> Result<Vec<String>, Error> {
        transaction
            .scan(catalogue, &[NAME_PREFIX][..]..&[NAME_PREFIX + 1][..])?
            .map(|entry| entry.map(|(key, _)| String::from_utf8_lossy(&key[1..]).into_owned()))
            .collect()
    }

    /// The table `name`, and as of when.
    fn look_up_or_create(engine: &Arc<Engine>, name: &str) -> Result<(TableId, Timestamp), Error> {
        Self::change(engine, |transaction, catalogue| {
            if let Some(value) = transaction.get(catalogue, &name_key(name))? {
                return Self::decode(&value);
            }
            let id = Self::take_next(transaction, catalogue)?;
            transaction.put(catalogue, &name_key(name), &id.0.to_le_bytes())?;
            Ok(id)
        })
    }

    /// Takes an identifier for a table that is to be called `name`, durably.
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::TableName`], or what a commit may return.
    pub fn reserve(engine: &Arc<Engine>, name: &str) -> Result<TableId, Error> {
        engine.usable()?;
        check_name(name)?;
        Self::change(engine, |transaction, catalogue| {
            Self::refuse_existing(transaction, catalogue, name)?;
            let id = Self::take_next(transaction, catalogue)?;
            transaction.put(catalogue, &dropped_key(id), &[])?;
            Ok(id)
        })
        .map(|(id, _)| id)
    }

    /// Gives the loaded table `id` its name, durably.
    ///
    /// # Errors
    /// As [`Catalogue::reserve`].
    pub fn publish(&self, engine: &Arc<Engine>, name: &str, id: TableId) -> Result<Table, Error> {
        self.known_mut().loaded.insert(id, None);
        let published = Self::change(engine, |transaction, catalogue| {
            Self::refuse_existing(transaction, catalogue, name)?;
            transaction.delete(catalogue, &dropped_key(id))?;
            transaction.put(catalogue, &name_key(name), &id.0.to_le_bytes())
        });
        match published {
            Ok(((), at)) => {
                self.known_mut().loaded.insert(id, Some(at));
                // If it has been dropped already, then it has been there all the same.
                Ok(self.keep(engine, name, id, at).unwrap_or_else(|| {
                    let table = Table::new(id, name, engine.number());
                    table.dropped.store(true, Ordering::Release);
                    table
                }))
            }
            Err(error) => {
                if let Error::TableExists { .. } = &error {
                    Self::finish_drop(engine, id)?;
                }
                Err(error)
            }
        }
    }

    /// Runs `body` on the catalogue as a transaction that is durable whatever the database's default: operations of a
    /// new table may be made durable by others. What it returns, and when it has committed.
    fn change<T>(
        engine: &Arc<Engine>,
        body: impl FnMut(&mut Transaction, &Table) -> Result<T, Error>,
    ) -> Result<(T, Timestamp), Error> {
        Self::change_seen(engine, body, |_| ())
    }

    /// As [`Catalogue::change`]; `seen` is told what `body` has returned when others see the change, which is not durable yet.
    fn change_seen<T>(
        engine: &Arc<Engine>,
        mut body: impl FnMut(&mut Transaction, &Table) -> Result<T, Error>,
        seen: impl Fn(&T),
    ) -> Result<(T, Timestamp), Error> {
        let catalogue = Self::own_table(engine);
        let options = TransactionOptions::new().durability(Durability::Sync);
        RetryPolicy::default().run(|_| {
            let mut transaction = Transaction::begin_now(&Handle::new(engine), options, None);
            let value = body(&mut transaction, &catalogue)?;
            let ticket = transaction.commit_async()?;
            let at = ticket.timestamp();
            seen(&value);
            ticket.wait()?;
            Ok((value, at))
        })
    }

    fn refuse_existing(transaction: &mut Transaction, catalogue: &Table, name: &str) -> Result<(), Error> {
        match transaction.get(catalogue, &name_key(name))? {
            Some(_) => Err(Error::TableExists { table: name.to_owned() }),
            None => Ok(()),
        }
    }

    fn take_next(transaction: &mut Transaction, catalogue: &Table) -> Result<TableId, Error> {
        let id = match transaction.get(catalogue, NEXT)? {
            Some(value) => Self::decode(&value)?,
            None => TableId(1),
        };
        transaction.put(catalogue, NEXT, &Self::after(id)?.0.to_le_bytes())?;
        Ok(id)
    }

    /// The identifier after one that was read.
    fn after(id: TableId) -> Result<TableId, Error> {
        decode_id(&(id.0 + 1).to_le_bytes()).ok_or_else(|| Error::Corrupt {
            file: "the catalogue".into(),
            offset: 0,
            expected: "an identifier that has a next".into(),
            found: id.to_string(),
        })
    }

    fn decode(value: &[u8]) -> Result<TableId, Error> {
        decode_id(value).ok_or_else(|| Error::Corrupt {
            file: "the catalogue".into(),
            offset: 0,
            expected: "an identifier of 4 bytes that a table can have".into(),
            found: format!("\"{}\"", value.escape_ascii()),
        })
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    if is_name(name) {
        return Ok(());
    }
    Err(Error::TableName { found: name.len(), limit: NAME_BYTES_MAX })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use deuteron_device::MemoryDirectory;

    #[test]
    fn identifiers_that_nobody_gave_are_damage() {
        assert_eq!(Catalogue::after(TableId(7)).ok(), Some(TableId(8)));
        assert!(matches!(Catalogue::after(TableId(TableId::NOWHERE.0 - 1)), Err(Error::Corrupt { .. })));
        assert!(matches!(Catalogue::decode(b"123"), Err(Error::Corrupt { .. })));
    }

    /// They panicked, in an opening, too.
    #[test]
    fn a_catalogue_with_identifiers_that_no_table_can_have_is_damage() {
        let refused = |error: &Error| matches!(error, Error::Corrupt { .. });
        for id in [0, TableId::NOWHERE.0, 1 << 31, u32::MAX].map(TableId) {
            for (key, value) in
                [(name_key("forged"), id.0.to_le_bytes().to_vec()), (dropped_key(id), Vec::new())]
            {
                let directory = Arc::new(MemoryDirectory::new());
                let engine = Engine::open(directory.clone(), Options::tiny_for_tests()).unwrap();
                Catalogue::change(&engine, |transaction, catalogue| transaction.put(catalogue, &key, &value))
                    .unwrap();
                let (table, dropped) = (
                    engine.catalogue().table(&engine, "forged"),
                    engine.catalogue().drop_table(&engine, "forged"),
                );
                assert_eq!(table.is_err_and(|error| refused(&error)), !value.is_empty());
                assert_eq!(dropped.is_err_and(|error| refused(&error)), !value.is_empty());
                // It is in nobody's way.
                let own = dropped_key(TableId(40));
                Catalogue::change(&engine, |transaction, catalogue| transaction.put(catalogue, &own, b""))
                    .unwrap();
                let finished = Catalogue::finish_drops(&engine);
                assert_eq!(finished.is_err_and(|error| refused(&error)), value.is_empty());
                let left =
                    Catalogue::change(&engine, |transaction, catalogue| transaction.get(catalogue, &own));
                assert_eq!(left.unwrap().0, None);
                engine.close().unwrap();
                drop(engine);
                Options::tiny_for_tests().open_in(directory).unwrap().close().unwrap();
            }
        }
    }
}
