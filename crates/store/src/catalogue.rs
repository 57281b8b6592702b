//! [`Catalogue`]: the names of the tables, kept in table 0, with the keys and values of the
//! [contract](deuteron_contract::catalogue).
//!
//! There are no transactions here: of several writes to the catalogue a crash may leave any. So what must be together is made
//! durable one after the other, and the order says what half of it means.
//!
//! | what | in this order, `|` being a persist |
//! |---|---|
//! | a table is created | next identifier, name `\|` |
//! | a table is dropped | `d` `\|` no name, the component told `\|` no `d` |
//! | a table is loaded | next identifier, `d` `\|` the records `\|` name `\|` no `d` |
//!
//! An opening drops the tables with a `d` and no name, and forgets the `d` of those that have one; unless the component has been told, which
//! may be durable before the name is gone: then the name goes. The next identifier
//! is above `#` and above all that are in use. A table is durable before it can be written to: else a crash might keep records, forget
//! the name, and give the identifier to another table.

use crate::Error;
use crate::engine::Engine;
use deuteron_contract::catalogue::{
    DROPPED_PREFIX, NAME_BYTES_MAX, NAME_PREFIX, NEXT, decode_id, dropped_key, is_name, name_key,
};
use deuteron_contract::{DataComponent, Direction, ScanRequest, TableId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const CATALOGUE: TableId = TableId::CATALOGUE;

/// What all handles of a table share.
#[derive(Debug)]
pub(crate) struct TableInfo {
    pub(crate) id: TableId,
    pub(crate) name: Arc<str>,
    dropped: AtomicBool,
}

impl TableInfo {
    fn new(id: TableId, name: Arc<str>) -> TableInfo {
        TableInfo { id, name, dropped: AtomicBool::new(false) }
    }

    /// An error if the table was dropped.
    #[inline]
    pub(crate) fn alive(&self) -> Result<(), Error> {
        match self.dropped.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(Error::TableDropped { table: self.name.to_string() }),
        }
    }
}

pub(crate) struct Catalogue {
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    by_name: BTreeMap<Arc<str>, Arc<TableInfo>>,
    next: u32,
    /// Those with a `d`, as an opening has found them.
    dropped: BTreeSet<TableId>,
}

impl Catalogue {
    /// Reads the names.
    pub(crate) fn read(component: &dyn DataComponent) -> Result<Catalogue, Error> {
        let mut tables = Tables { next: 1, ..Tables::default() };
        let mut lower = Bound::Unbounded;
        loop {
            let request = ScanRequest {
                table: CATALOGUE,
                lower: lower.as_ref().map(Vec::as_slice),
                upper: Bound::Unbounded,
                direction: Direction::Forward,
                bytes_max: 64 << 10,
                records_max: usize::MAX,
            };
            let batch = component.scan(&request)?;
            for record in batch.iter() {
                if let Some(value) = record.value {
                    tables.take(record.key, value)?;
                }
            }
            match batch.last_key() {
                Some(last) if !batch.is_complete() => lower = Bound::Excluded(last.to_vec()),
                _ => return Ok(Catalogue { tables: Mutex::new(tables) }),
            }
        }
    }

    /// Held over whole changes, so that a name is created once. Only those wait who look for a table.
    fn tables(&self) -> MutexGuard<'_, Tables> {
        // What is done under the lock leaves the list whole.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table `name`, which is created (durably) if it does not exist.
    pub(crate) fn table(&self, engine: &Engine, name: &str) -> Result<Arc<TableInfo>, Error> {
        check_name(name)?;
        let mut tables = self.tables();
        if let Some(info) = tables.by_name.get(name) {
            return Ok(Arc::clone(info));
        }
        // Now, as an error may leave the name written.
        let id = tables.take_next()?;
        let (value, next) = (id.0.to_le_bytes(), tables.next.to_le_bytes());
        engine.apply(2, [(CATALOGUE, NEXT, Some(&next[..])), (CATALOGUE, &name_key(name), Some(&value))])?;
        engine.persist()?;
        Ok(tables.insert(name, id))
    }

    /// The names of all tables, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        self.tables().by_name.keys().map(|name| name.to_string()).collect()
    }

    /// Drops the table `name`, durably.
    pub(crate) fn drop_table(&self, engine: &Engine, name: &str) -> Result<(), Error> {
        check_name(name)?;
        let mut tables = self.tables();
        let Some(info) = tables.by_name.get(name).cloned() else {
            return Err(Error::NoSuchTable { table: name.to_owned() });
        };
        engine.apply(1, [(CATALOGUE, &dropped_key(info.id)[..], Some(&[][..]))])?;
        engine.persist()?;
        // Whatever fails from here on: the name may be gone already.
        info.dropped.store(true, Ordering::Relaxed);
        tables.by_name.remove(name);
        let unnamed = engine.apply(1, [(CATALOGUE, &name_key(name)[..], None)]);
        Self::finish_drop(engine, info.id, unnamed)
    }

    /// Tells the component, which makes all that is written by now durable, and then, if no name is left, the catalogue.
    fn finish_drop(engine: &Engine, id: TableId, unnamed: Result<(), Error>) -> Result<(), Error> {
        engine.drop_in_component(id)?;
        unnamed?;
        engine.apply(1, [(CATALOGUE, &dropped_key(id)[..], None)])
    }

    /// Finishes what a crash has interrupted: drops, loads.
    pub(crate) fn finish_drops(&self, engine: &Engine) -> Result<(), Error> {
        let mut tables = self.tables();
        // At once, also if the rest cannot be done now: what is written to a table that is gone would be lost.
        let Tables { by_name, dropped, .. } = &mut *tables;
        let is_gone = |info: &TableInfo| dropped.contains(&info.id) && engine.component().is_dropped(info.id);
        let gone: BTreeMap<TableId, Arc<str>> =
            by_name.extract_if(.., |_, info| is_gone(info)).map(|(name, info)| (info.id, name)).collect();
        while let Some(&id) = tables.dropped.first() {
            let named =
                || tables.by_name.values().find(|info| info.id == id).map(|info| Arc::clone(&info.name));
            let name = gone.get(&id).cloned().or_else(named);
            match name {
                Some(_) if !engine.component().is_dropped(id) => {
                    engine.apply(1, [(CATALOGUE, &dropped_key(id)[..], None)])?;
                }
                Some(name) => {
                    let unnamed = engine.apply(1, [(CATALOGUE, &name_key(&name)[..], None)]);
                    Self::finish_drop(engine, id, unnamed)?;
                }
                None => Self::finish_drop(engine, id, Ok(()))?,
            }
            tables.dropped.remove(&id);
        }
        Ok(())
    }

    /// Takes an identifier for a table that is to be called `name`, durably.
    pub(crate) fn reserve(&self, engine: &Engine, name: &str) -> Result<TableId, Error> {
        check_name(name)?;
        let mut tables = self.tables();
        tables.refuse_existing(name)?;
        let id = tables.take_next()?;
        let next = tables.next.to_le_bytes();
        engine
            .apply(2, [(CATALOGUE, NEXT, Some(&next[..])), (CATALOGUE, &dropped_key(id), Some(&[][..]))])?;
        engine.persist()?;
        Ok(id)
    }

    /// Gives the loaded table `id` its name, durably.
    pub(crate) fn publish(&self, engine: &Engine, name: &str, id: TableId) -> Result<Arc<TableInfo>, Error> {
        let mut tables = self.tables();
        tables.refuse_existing(name)?;
        let value = id.0.to_le_bytes();
        engine.apply(1, [(CATALOGUE, &name_key(name)[..], Some(&value[..]))])?;
        engine.persist()?;
        // The table is there. If this fails, the next opening does it.
        drop(engine.apply(1, [(CATALOGUE, &dropped_key(id)[..], None)]));
        Ok(tables.insert(name, id))
    }

    /// Drops the loaded table `id`, which has not come to its name. What cannot be done now is done at the next opening.
    pub(crate) fn give_up(&self, engine: &Engine, name: &str, id: TableId) {
        let tables = self.tables();
        let unnamed = match tables.by_name.contains_key(name) {
            true => Ok(()),
            // An error may have left it written.
            false => engine.apply(1, [(CATALOGUE, &name_key(name)[..], None)]),
        };
        drop(Self::finish_drop(engine, id, unnamed));
    }
}

fn damage(expected: &str, found: &[u8]) -> Error {
    Error::Corrupt {
        file: "the catalogue".into(),
        offset: 0,
        expected: expected.into(),
        found: format!("\"{}\"", found.escape_ascii()),
    }
}

impl Tables {
    fn take_next(&mut self) -> Result<TableId, Error> {
        let bytes = self.next.to_le_bytes();
        let id = decode_id(&bytes).ok_or_else(|| damage("an identifier that has a next", &bytes))?;
        self.next += 1;
        Ok(id)
    }

    fn insert(&mut self, name: &str, id: TableId) -> Arc<TableInfo> {
        let name: Arc<str> = name.into();
        let info = Arc::new(TableInfo::new(id, Arc::clone(&name)));
        self.by_name.insert(name, Arc::clone(&info));
        info
    }

    fn refuse_existing(&self, name: &str) -> Result<(), Error> {
        match self.by_name.contains_key(name) {
            true => Err(Error::TableExists { table: name.to_owned() }),
            false => Ok(()),
        }
    }

    /// Takes over one record of the catalogue.
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let expected = "an identifier of 4 bytes that a table can have";
        let id_in = |bytes: &[u8]| decode_id(bytes).ok_or_else(|| damage(expected, bytes));
        match key {
            NEXT => self.next = self.next.max(id_in(value)?.0),
            [NAME_PREFIX, name @ ..] => {
                let id = id_in(value)?;
                let name = std::str::from_utf8(name).map_err(|_| damage("a name in UTF-8", name))?;
                self.insert(name, id);
                self.next = self.next.max(id.0 + 1);
            }
            [DROPPED_PREFIX, id @ ..] => {
                let id = id_in(id)?;
                self.dropped.insert(id);
                self.next = self.next.max(id.0 + 1);
            }
            other => return Err(damage("#, a name or a dropped table", other)),
        }
        Ok(())
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    match is_name(name) {
        true => Ok(()),
        false => Err(Error::TableName { found: name.len(), limit: NAME_BYTES_MAX }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use deuteron_device::{CrashPolicy, MemoryDirectory, SimulatedDisk};

    /// Though the disk is full, and another has to be given up before it.
    #[test]
    fn nothing_is_written_to_a_table_that_is_gone_while_its_name_cannot_be_removed() {
        let disk = SimulatedDisk::new(1);
        let open =
            || Engine::open(Arc::new(disk.crash(CrashPolicy::LoseAll)), Options::tiny_for_tests()).unwrap();
        let engine = open();
        engine.catalogue().reserve(&engine, "a load that was given up").unwrap();
        let id = engine.catalogue().table(&engine, "gone").unwrap().id;
        engine.apply(1, [(id, &b"key"[..], Some(&b"value"[..]))]).unwrap();
        engine.apply(1, [(CATALOGUE, &dropped_key(id)[..], Some(&[][..]))]).unwrap();
        engine.drop_in_component(id).unwrap();
        drop(engine);
        disk.set_capacity(Some(0));
        let engine = open();
        disk.set_capacity(None);
        let again = engine.catalogue().table(&engine, "gone").unwrap().id;
        assert!(again > id);
        engine.apply(1, [(again, &b"key"[..], Some(&b"value"[..]))]).unwrap();
        assert!(engine.get(again, b"key").unwrap().is_some());
        engine.close().unwrap();
        drop(engine);
        let engine = open();
        assert_eq!(engine.catalogue().table(&engine, "gone").unwrap().id, again);
        assert!(engine.get(again, b"key").unwrap().is_some());
        engine.close().unwrap();
    }

    #[test]
    fn a_catalogue_with_identifiers_that_no_table_can_have_is_damage() {
        for id in [0, TableId::NOWHERE.0, 1 << 31, u32::MAX].map(TableId) {
            let bytes = id.0.to_le_bytes();
            for (key, value) in [
                (name_key("forged"), &bytes[..]),
                (dropped_key(id), &[]),
                (NEXT.to_vec(), &bytes),
                (name_key("forged"), b"123"),
            ] {
                let directory = Arc::new(MemoryDirectory::new());
                let engine = Engine::open(directory.clone(), Options::tiny_for_tests()).unwrap();
                engine.apply(1, [(CATALOGUE, &key[..], Some(value))]).unwrap();
                engine.close().unwrap();
                drop(engine);
                let opened = Engine::open(directory, Options::tiny_for_tests());
                assert!(matches!(opened.err(), Some(Error::Corrupt { .. })));
            }
        }
        let mut last = Tables { next: TableId::NOWHERE.0 - 1, ..Tables::default() };
        assert!(last.take_next().is_ok());
        assert!(matches!(last.take_next(), Err(Error::Corrupt { .. })));
    }

    #[test]
    fn a_table_that_the_component_has_dropped_does_not_keep_its_name() {
        let directory = Arc::new(MemoryDirectory::new());
        let open = || Engine::open(directory.clone(), Options::tiny_for_tests()).unwrap();
        let engine = open();
        let id = engine.catalogue().table(&engine, "gone").unwrap().id;
        engine.apply(1, [(id, &b"key"[..], Some(&b"value"[..]))]).unwrap();
        engine.apply(1, [(CATALOGUE, &dropped_key(id)[..], Some(&[][..]))]).unwrap();
        // As if an image had come before the flush of what the catalogue says.
        engine.drop_in_component(id).unwrap();
        engine.close().unwrap();
        drop(engine);
        let engine = open();
        assert!(engine.catalogue().names().is_empty());
        let again = engine.catalogue().table(&engine, "gone").unwrap().id;
        assert!(again > id);
        engine.apply(1, [(again, &b"key"[..], Some(&b"value"[..]))]).unwrap();
        engine.close().unwrap();
        drop(engine);
        let engine = open();
        assert!(engine.get(again, b"key").unwrap().is_some());
        let left: Vec<_> = engine.catalogue().tables().dropped.iter().copied().collect();
        assert!(left.is_empty(), "{left:?}");
        engine.close().unwrap();
    }
}
