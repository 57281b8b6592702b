//! Comma-separated values (RFC 4180), with the line number of everything.
//!
//! Lines end with `\n` or `\r\n`, blank lines between records are passed over, a byte order mark at the beginning
//! too. A field with commas, quotes or line breaks is in quotes, quotes within it doubled. What is neither is an
//! error of its line. Fields are bytes.

use std::io::{BufRead, Read};

/// The longest line, and record of several lines. A file without line breaks is a mistake, as is a quote that is never closed, and no reason to fill
/// the memory. The longest value, 64 MiB, takes six times as much in JSON if all of it is control characters.
pub const LINE_BYTES_MAX: u64 = if cfg!(test) { 64 << 10 } else { 512 << 20 };

/// A record, and the line that it begins on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The line, from 1.
    pub line: u64,
    /// The fields, at least one.
    pub fields: Vec<Vec<u8>>,
}

/// What is no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The line, from 1.
    pub line: u64,
    /// What is wrong.
    pub reason: String,
    /// Whether nothing can be read after it.
    pub fatal: bool,
}

/// Reads records.
pub struct Reader<R> {
    input: R,
    line: u64,
    text: Vec<u8>,
    over: bool,
}

/// Where in a field the reader is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    Bare,
    Quoted,
    /// After a quote in a quoted field: its end, or the first half of a doubled quote.
    AfterQuote,
}

impl<R: BufRead> Reader<R> {
    /// Reads from `input`.
    pub fn new(input: R) -> Self {
        Self { input, line: 0, text: Vec::new(), over: false }
    }

    /// Reads the next line, its end included. False at the end of the input.
    fn read_line(&mut self) -> Result<bool, Mistake> {
        self.text.clear();
        self.line += 1;
        let fatal = |reason| Mistake { line: self.line, reason, fatal: true };
        match self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut self.text) {
            Ok(bytes) if bytes as u64 == LINE_BYTES_MAX => {
                return Err(fatal(format!("the line is longer than {LINE_BYTES_MAX} bytes")));
            }
            Ok(_) => {}
            Err(error) => return Err(fatal(format!("cannot read on: {error}"))),
        }
        if self.line == 1 && self.text.starts_with(b"\xef\xbb\xbf") {
            self.text.drain(..3);
        }
        Ok(!self.text.is_empty())
    }

    fn record(&mut self) -> Result<Option<Record>, Mistake> {
        loop {
            if !self.read_line()? {
                return Ok(None);
            }
            if !content(&self.text).is_empty() {
                break;
            }
        }
        let (line, mut bytes_read) = (self.line, self.text.len() as u64);
        let mut fields = Vec::new();
        let mut field = Vec::new();
        let mut place = Place::Start;
        loop {
            let bytes = content(&self.text);
            for (at, &byte) in bytes.iter().enumerate() {
                let mistake = |reason: &str| {
                    let reason = format!("byte {} of the line: {reason}", at + 1);
                    Err(Mistake { line: self.line, reason, fatal: false })
                };
                place = match (place, byte) {
                    (Place::Start, b'"') => Place::Quoted,
                    (Place::Start | Place::Bare | Place::AfterQuote, b',') => {
                        fields.push(std::mem::take(&mut field));
                        Place::Start
                    }
                    (Place::Bare, b'"') => return mistake("a quote in a field that does not begin with one"),
                    (Place::Quoted, b'"') => Place::AfterQuote,
                    (Place::AfterQuote, b'"') => {
                        field.push(byte);
                        Place::Quoted
                    }
                    (Place::AfterQuote, _) => return mistake("text after the closing quote of a field"),
                    (Place::Start, _) => {
                        field.push(byte);
                        Place::Bare
                    }
                    (Place::Bare | Place::Quoted, _) => {
                        field.push(byte);
                        place
                    }
                };
            }
            if place != Place::Quoted {
                fields.push(field);
                return Ok(Some(Record { line, fields }));
            }
            // The field goes on in the next line, and the line break is part of it.
            field.extend_from_slice(&self.text[bytes.len()..]);
            if !self.read_line()? {
                let reason = "a quoted field begins in this record and is not closed".into();
                return Err(Mistake { line, reason, fatal: true });
            }
            bytes_read += self.text.len() as u64;
            if bytes_read >= LINE_BYTES_MAX {
                let reason = format!(
                    "a quoted field begins in this record and is not closed within {LINE_BYTES_MAX} bytes"
                );
                return Err(Mistake { line, reason, fatal: true });
            }
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Record, Mistake>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.record().transpose();
        self.over = matches!(next, None | Some(Err(Mistake { fatal: true, .. })));
        next
    }
}

/// A line without its end.
fn content(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// One record as a line, its end included.
pub fn line(fields: [&str; 2]) -> String {
    let [key, value] = fields.map(field);
    format!("{key},{value}\n")
}

fn field(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains([',', '"', '\n', '\r']) || text.starts_with('\u{feff}') {
        format!("\"{}\"", text.replace('"', "\"\"")).into()
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron_bench::Random;

    fn shown(text: &[u8]) -> Vec<String> {
        Reader::new(text)
            .map(|record| match record {
                Ok(record) => {
                    let fields: Vec<_> =
                        record.fields.iter().map(|field| field.escape_ascii().to_string()).collect();
                    format!("{}: {}", record.line, fields.join("|"))
                }
                Err(mistake) => {
                    format!("{}{} {}", mistake.line, if mistake.fatal { "!!" } else { "!" }, mistake.reason)
                }
            })
            .collect()
    }

    #[test]
    fn records_know_their_lines() {
        assert_eq!(
            shown(b"a,1\n\n\"b\nb\",\"2,\"\"2\"\"\"\nc\r\n\r\nd,,\n,\nlast,one"),
            ["1: a|1", "3: b\\nb|2,\\\"2\\\"", "5: c", "7: d||", "8: |", "9: last|one"]
        );
    }

    #[test]
    fn a_line_break_in_quotes_is_kept_as_it_is() {
        assert_eq!(shown(b"\"a\r\n\r\nb\",1\r\n"), ["1: a\\r\\n\\r\\nb|1"]);
        assert_eq!(shown(b"a\rb,1\n"), ["1: a\\rb|1"]);
    }

    #[test]
    fn mistakes_are_of_their_line_and_the_next_is_read() {
        assert_eq!(
            shown(b"5\" pipe,1\n\"a\"b,1\nc,3\n\"d\nd\"e,4\nf,5\n"),
            [
                "1! byte 2 of the line: a quote in a field that does not begin with one",
                "2! byte 4 of the line: text after the closing quote of a field",
                "3: c|3",
                "5! byte 3 of the line: text after the closing quote of a field",
                "6: f|5",
            ]
        );
    }

    #[test]
    fn a_quote_that_is_not_closed_is_the_end_and_names_its_beginning() {
        assert_eq!(
            shown(b"a,1\n\"b,2\nc,3\n"),
            ["1: a|1", "2!! a quoted field begins in this record and is not closed"]
        );
    }

    #[test]
    fn a_quote_that_is_not_closed_does_not_take_the_rest_of_a_long_file() {
        let rest = "c,3\n".repeat(LINE_BYTES_MAX as usize / 4);
        let mut input = std::io::Cursor::new(format!("a,1\n\"b,2\n{rest}{rest}"));
        let records: Vec<_> = Reader::new(&mut input).collect();
        let [Ok(_), Err(Mistake { line: 2, reason, fatal: true })] = &records[..] else {
            panic!("{records:?}")
        };
        assert!(reason.contains("is not closed within"), "{reason}");
        assert!(input.position() < 2 * LINE_BYTES_MAX);
        // One that is closed in time is none.
        let text = format!("\"{}\",1\n", &rest[..rest.len() / 2]);
        assert_eq!(shown(text.as_bytes()).len(), 1);
    }

    #[test]
    fn a_byte_order_mark_is_passed_over() {
        assert_eq!(shown(b"\xef\xbb\xbfkey,value\n"), ["1: key|value"]);
        assert!(shown(b"").is_empty() && shown(b"\n\r\n").is_empty());
    }

    #[test]
    fn what_is_written_is_read() {
        let mut random = Random::new(1);
        let mut text = String::new();
        let mut written = Vec::new();
        for _ in 0..2_000 {
            let mut word = || -> String {
                let pieces = ['a', ',', '"', '\n', '\r', ' ', 'ä', '\u{feff}'];
                (0..random.below(6)).map(|_| pieces[random.below(8) as usize]).collect()
            };
            // A blank line is no record: the first field has something.
            let (key, value) = (format!("{}k", word()), word());
            text += &line([&key, &value]);
            written.push(vec![key.into_bytes(), value.into_bytes()]);
        }
        let read: Vec<_> = Reader::new(text.as_bytes()).map(|record| record.unwrap().fields).collect();
        assert_eq!(read, written);
    }

    #[test]
    fn random_text_never_panics() {
        let mut random = Random::new(2);
        for _ in 0..20_000 {
            let text: Vec<u8> =
                (0..random.below(16)).map(|_| b"a,\"\n\r\xff"[random.below(6) as usize]).collect();
            let _ = Reader::new(&text[..]).count();
        }
    }

    #[test]
    fn fuzz_records() {
        let corpus = [b"key,value\n\"a\"\"b\",\"two\nlines\"\r\nlast,\"\"".to_vec(), b"k,v\n,\n".to_vec()];
        deuteron_fuzz::Fuzz::new("import-csv", &corpus, 50_000)
            .run(|_| {}, |bytes| Reader::new(bytes).filter(Result::is_ok).count() > 0);
    }
}
