//! LMDB: a copy-on-write B+-tree in a memory map. One writer at a time, which makes writers serial; transactions that only read run on
//! snapshots. `delayed` is `NOSYNC`: the operating system writes when it sees fit, and a power cut may corrupt the
//! file, which is weaker than what the others offer. Its memory is the page cache, which no budget bounds.

use crate::peer::{Peer, PeerTransaction, Settings, Trouble, seen};
use heed::types::Bytes;
use heed::{AnyTls, Database, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithTls};
use std::ops::Bound;

/// Named tables that there may be beside the one without a name.
const TABLES_MAX: u32 = 32;

pub struct Lmdb {
    pub environment: Env,
    table: Database<Bytes, Bytes>,
}

impl Lmdb {
    pub fn open(settings: &Settings) -> Result<Self, heed::Error> {
        let mut options = EnvOpenOptions::new();
        options.map_size(64 << 30).max_readers(1024).max_dbs(TABLES_MAX);
        if !settings.sync {
            // SAFETY: the directory is ours alone, and what a power cut leaves is of no interest.
            unsafe { options.flags(EnvFlags::NO_SYNC) };
        }
        if settings.beyond_memory {
            // As its documentation says of random reads: else each has the system read what lies around.
            // SAFETY: it says how the file is read, and nothing of what is in it.
            unsafe { options.flags(EnvFlags::NO_READ_AHEAD) };
        }
        // SAFETY: the file is mapped by this process alone, and nobody truncates it.
        let environment = unsafe { options.open(&settings.directory)? };
        let mut transaction = environment.write_txn()?;
        let table = environment.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Self { environment, table })
    }
}

pub enum LmdbTransaction<'a> {
    Reader(&'a Lmdb, RoTxn<'a, WithTls>),
    Writer(&'a Lmdb, RwTxn<'a>),
}

impl LmdbTransaction<'_> {
    fn parts(&self) -> (&Lmdb, &RoTxn<'_, AnyTls>) {
        match self {
            LmdbTransaction::Reader(lmdb, transaction) => (lmdb, transaction),
            LmdbTransaction::Writer(lmdb, transaction) => (lmdb, transaction),
        }
    }
}

impl PeerTransaction for LmdbTransaction<'_> {
    fn get(&mut self, key: [u8; 8]) -> Result<(), Trouble> {
        let (lmdb, transaction) = self.parts();
        seen(lmdb.table.get(transaction, &key)?);
        Ok(())
    }

    fn value(&mut self, key: [u8; 8]) -> Result<Option<Vec<u8>>, Trouble> {
        let (lmdb, transaction) = self.parts();
        Ok(lmdb.table.get(transaction, &key)?.map(<[u8]>::to_vec))
    }

    fn put(&mut self, key: [u8; 8], value: &[u8]) -> Result<(), Trouble> {
        match self {
            LmdbTransaction::Reader(..) => unreachable!("the driver said that it would not write"),
            LmdbTransaction::Writer(lmdb, transaction) => Ok(lmdb.table.put(transaction, &key, value)?),
        }
    }

    fn scan(&mut self, key: [u8; 8], count: usize) -> Result<(), Trouble> {
        let (lmdb, transaction) = self.parts();
        for entry in
            lmdb.table.range(transaction, &(Bound::Included(&key[..]), Bound::Unbounded))?.take(count)
        {
            seen(Some(entry?.1));
        }
        Ok(())
    }

    fn commit(self) -> Result<(), Trouble> {
        match self {
            LmdbTransaction::Reader(..) => Ok(()),
            LmdbTransaction::Writer(_, transaction) => Ok(transaction.commit()?),
        }
    }
}

impl Peer for Lmdb {
    type Transaction<'a> = LmdbTransaction<'a>;
    const NAME: &'static str = "lmdb";
    const ISOLATION: &'static str = "serializable, one writer";
    const DELAYED: &'static str = "not synced, a power cut may corrupt";

    fn begin(&self, writes: bool, _sync: bool) -> Result<LmdbTransaction<'_>, Trouble> {
        Ok(if writes {
            LmdbTransaction::Writer(self, self.environment.write_txn()?)
        } else {
            LmdbTransaction::Reader(self, self.environment.read_txn()?)
        })
    }

    fn settle(&self) -> Result<(), Trouble> {
        Ok(self.environment.force_sync()?)
    }
}
