//! The decoders of the log under damaged bytes, checksums made right again.

use crate::block::{BLOCK, BufferHeader, HEADER_BYTES, SegmentHeader};
use crate::record::Record;
use deuteron_contract::{Lsn, TableId, Timestamp, TransactionId};
use deuteron_device::BLOCK_BYTES;
use deuteron_fuzz::{Fuzz, Meter};

#[global_allocator]
static METER: Meter = Meter;

/// One record of each kind.
fn records() -> Vec<Vec<u8>> {
    let (transaction, timestamp, table) = (TransactionId(7), Timestamp(9), TableId(3));
    let records = [
        Record::Upsert { transaction, table, key: b"apples", value: &[5; 100] },
        Record::Delete { transaction, table, key: b"pears" },
        Record::Commit { transaction, timestamp, token: 1 },
        Record::Abort { transaction },
        Record::ClockCeiling { timestamp },
        Record::Piece { transaction, before: Lsn(8), bytes: &[6; 70] },
        Record::LargeUpsert { transaction, table, key: b"quinces", length: 1 << 20, last: Lsn(64) },
        Record::Padding { bytes: 24 },
    ];
    let encode = |record: &Record<'_>| {
        let mut bytes = vec![0; record.encoded_bytes()];
        record.encode(0, &mut bytes);
        bytes
    };
    records.iter().map(encode).collect()
}

/// Decodes records one behind the other, as recovery does; whether they end with the bytes.
fn decode_all(mut bytes: &[u8]) -> bool {
    while let Ok(decoded) = Record::decode(bytes) {
        assert!((8..=bytes.len()).contains(&decoded.bytes), "a record within the bytes");
        bytes = &bytes[decoded.bytes..];
    }
    bytes.is_empty()
}

#[test]
fn fuzz_records() {
    let mut corpus = records();
    corpus.push(corpus.concat());
    Fuzz::new("log-record", &corpus, 100_000).run(|_| {}, decode_all);
}

#[test]
fn fuzz_buffers() {
    let records = records().concat();
    let distance = (HEADER_BYTES + records.len()).next_multiple_of(BLOCK_BYTES) as u32;
    let header = BufferHeader {
        crc: 0,
        base: 0,
        distance,
        record_bytes: records.len() as u32,
        last_commit: 0,
        previous_crc: 3,
        incarnation: 4,
        identity: 5,
    };
    let mut buffer = header.seal(&records).to_bytes().to_vec();
    buffer.extend(&records);
    buffer.resize(distance as usize, 0);
    let mend = |bytes: &mut Vec<u8>| {
        let Ok(header) = BufferHeader::fields(bytes) else { return };
        if let Some(records) = bytes[HEADER_BYTES..].get(..header.record_bytes as usize) {
            let header = header.seal(records).to_bytes();
            bytes[..HEADER_BYTES].copy_from_slice(&header);
        }
    };
    Fuzz::new("log-buffer", &[buffer], 50_000).run(mend, |bytes| {
        match BufferHeader::read(bytes, 0, bytes.len() as u64 / BLOCK * BLOCK, 5) {
            Ok(header) => {
                header.verify(bytes).is_ok() && {
                    decode_all(&bytes[HEADER_BYTES..][..header.record_bytes as usize]);
                    true
                }
            }
            Err(_) => false,
        }
    });
}

#[test]
fn fuzz_segment_headers() {
    let header = SegmentHeader { base: 1 << 20, segment_bytes: 1 << 16, identity: 4, incarnation: 2 };
    let mut block = vec![0; BLOCK_BYTES];
    header.encode(&mut block);
    let mend = |bytes: &mut Vec<u8>| {
        if bytes.len() >= HEADER_BYTES {
            bytes[12..16].fill(0);
            let crc = crc32c::crc32c(&bytes[..HEADER_BYTES]);
            bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        }
    };
    Fuzz::new("log-segment", &[block], 50_000).run(mend, |bytes| SegmentHeader::decode(bytes).is_ok());
}
