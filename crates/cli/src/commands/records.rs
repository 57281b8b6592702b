//! `get`, `put`, `delete` and `scan`.

use super::{existing_table, with_database};
use crate::arguments::{GetArguments, KeyArguments, PutArguments, ScanArguments};
use crate::encoding::Encoding;
use crate::failure::{Failure, Kind, Outcome};
use crate::progress::Progress;
use crate::{output, quoting};
use deuteron::{Db, TransactionOptions};
use serde_json::json;
use std::io::{BufWriter, Write};
use std::ops::Bound;

/// Reads an argument in the encoding.
fn decode(encoding: Encoding, what: &str, text: &str) -> Outcome<Vec<u8>> {
    encoding.decode(text.as_bytes()).map_err(|reason| Failure::new(Kind::Usage, format!("{what}: {reason}")))
}

/// Writes bytes in the encoding.
fn encode(encoding: Encoding, bytes: &[u8]) -> Outcome<String> {
    encoding.encode(bytes).map_err(|reason| Failure::new(Kind::Failed, reason))
}

/// `deuteron get`.
pub fn get(arguments: &GetArguments, json: bool) -> Outcome {
    let key_arguments = &arguments.key;
    let encoding = key_arguments.encoding;
    let key = decode(encoding, "key", &key_arguments.key)?;
    let value = with_database(&key_arguments.database, false, |db| {
        let table = existing_table(db, &key_arguments.table)?;
        Ok(db.transact(|tx| tx.get(&table, &key))?)
    })?;
    let Some(value) = value else {
        let name = &key_arguments.table;
        return Err(Failure::new(Kind::NotFound, format!("table {name} has no key {}", key_arguments.key)));
    };
    if json {
        return output::json(&json!({ "key": key_arguments.key, "value": encode(encoding, &value)? }));
    }
    let mut bytes = match encoding {
        // Text on a terminal, bytes in a pipe: what is stored goes out as it is.
        Encoding::Utf8 => value,
        _ => encode(encoding, &value)?.into_bytes(),
    };
    if !arguments.raw {
        bytes.push(b'\n');
    }
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&bytes).and_then(|()| stdout.flush()).map_err(|error| Failure::output(&error))
}

/// `deuteron put`.
pub fn put(arguments: &PutArguments, json: bool) -> Outcome {
    let key_arguments = &arguments.key;
    let key = decode(key_arguments.encoding, "key", &key_arguments.key)?;
    let value = decode(key_arguments.encoding, "value", &arguments.value)?;
    with_database(&key_arguments.database, true, |db| {
        let table = db.table(&key_arguments.table)?;
        Ok(db.transact(|tx| tx.put(&table, &key, &value))?)
    })?;
    if json { output::json(&json!({ "key": key_arguments.key, "written": true })) } else { Ok(()) }
}

/// `deuteron delete`.
pub fn delete(arguments: &KeyArguments, json: bool) -> Outcome {
    let key = decode(arguments.encoding, "key", &arguments.key)?;
    let existed = with_database(&arguments.database, false, |db| {
        let table = existing_table(db, &arguments.table)?;
        Ok(db.transact(|tx| {
            let existed = tx.get_with(&table, &key, |_| ())?.is_some();
            tx.delete(&table, &key)?;
            Ok(existed)
        })?)
    })?;
    if !existed {
        let message = format!("table {} has no key {}", arguments.table, arguments.key);
        return Err(Failure::new(Kind::NotFound, message));
    }
    if json { output::json(&json!({ "key": arguments.key, "deleted": true })) } else { Ok(()) }
}

/// The ends of a range.
pub type KeyRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// All keys that begin with `prefix`.
pub fn prefix_range(prefix: &[u8]) -> KeyRange {
    // The first key after them: the prefix with its last byte that is not 255 raised, what follows cut off.
    let upper = match prefix.iter().rposition(|&byte| byte != 255) {
        Some(last) => {
            let mut after = prefix[..=last].to_vec();
            after[last] += 1;
            Bound::Excluded(after)
        }
        None => Bound::Unbounded,
    };
    (Bound::Included(prefix.to_vec()), upper)
}

fn range_of(arguments: &ScanArguments) -> Outcome<KeyRange> {
    let read = |what: &str, text: &Option<String>| {
        text.as_ref().map(|text| decode(arguments.encoding, what, text)).transpose()
    };
    if let Some(prefix) = read("--prefix", &arguments.prefix)? {
        return Ok(prefix_range(&prefix));
    }
    let (from, to) = (read("--from", &arguments.from)?, read("--to", &arguments.to)?);
    if let (Some(from), Some(to)) = (&from, &to)
        && from > to
    {
        return Err(Failure::new(Kind::Usage, "the bounds cross: --from is after --to"));
    }
    Ok((from.map_or(Bound::Unbounded, Bound::Included), to.map_or(Bound::Unbounded, Bound::Excluded)))
}

/// `deuteron scan`.
pub fn scan(arguments: &ScanArguments, json: bool) -> Outcome {
    let range = range_of(arguments)?;
    with_database(&arguments.database, false, |db| {
        let mut lines = BufWriter::new(std::io::stdout().lock());
        let progress = Progress::open_ended("scan", "records");
        let mut records = 0;
        for_each_record(db, &arguments.table, range, arguments.reverse, arguments.limit, |key, value| {
            records += 1;
            if arguments.count {
                progress.set(records);
                return Ok(());
            }
            let line = record_line(arguments.encoding, json, key, value)?;
            writeln!(lines, "{line}").map_err(|error| Failure::output(&error))
        })?;
        drop(progress);
        if arguments.count {
            let line = if json { json!({ "records": records }).to_string() } else { records.to_string() };
            writeln!(lines, "{line}").map_err(|error| Failure::output(&error))?;
        }
        lines.flush().map_err(|error| Failure::output(&error))
    })
}

fn record_line(encoding: Encoding, json: bool, key: &[u8], value: &[u8]) -> Outcome<String> {
    if json {
        return Ok(json!({ "key": encode(encoding, key)?, "value": encode(encoding, value)? }).to_string());
    }
    Ok(match encoding {
        Encoding::Utf8 => format!("{}\t{}", quoting::escaped(key), quoting::escaped(value)),
        _ => format!("{}\t{}", encode(encoding, key)?, encode(encoding, value)?),
    })
}

/// Calls `each` for the records of a range of an existing table, all as of one moment.
pub fn for_each_record(
    db: &Db,
    table: &str,
    range: KeyRange,
    reverse: bool,
    limit: Option<usize>,
    mut each: impl FnMut(&[u8], &[u8]) -> Outcome,
) -> Outcome {
    let table = existing_table(db, table)?;
    // Output that is out cannot be taken back, so that there is no second attempt; a reader needs none.
    let mut tx = db.begin_with(TransactionOptions::new().read_only(true))?;
    let mut scan = tx.scan(&table, range)?.limit(limit.unwrap_or(usize::MAX));
    while let Some((key, value)) = if reverse { scan.next_back_ref() } else { scan.next_ref() }? {
        each(key, value)?;
    }
    Ok(tx.commit()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_covers_exactly_the_keys_that_begin_with_it() {
        let covers = |prefix: &[u8], key: &[u8]| {
            use std::ops::RangeBounds;
            prefix_range(prefix).contains(&key.to_vec())
        };
        let keys: [&[u8]; 9] =
            [b"a", b"ab", b"ab\xff", b"ac", b"b", b"\xff", b"\xff\xff", b"\xff\xff\x01", b"\xfe\xff"];
        for prefix in [&b"a"[..], b"ab", b"ab\xff", b"\xff", b"\xff\xff", b"", b"\xfe\xff"] {
            for key in keys {
                assert_eq!(covers(prefix, key), key.starts_with(prefix), "{prefix:?} {key:?}");
            }
        }
    }
}
