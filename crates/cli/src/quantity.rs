//! Sizes and durabilities as arguments, sizes and times as text.

use deuteron::{Durability, Processors};
use std::time::Duration;

/// Reads a size: `4096`, `64k`, `256M`, `1G`, `256MiB`; factors of 1024.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: usize = number.parse().map_err(|_| "expected a number of bytes, such as 256M".to_owned())?;
    let factor: usize = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return Err(format!("\"{unit}\" is not a unit; use k, M, G or T")),
    };
    number.checked_mul(factor).ok_or_else(|| "more bytes than a machine has".to_owned())
}

/// Reads a durability: `sync`, `delayed`, `delayed=MILLISECONDS`, `none`.
pub fn parse_durability(text: &str) -> Result<Durability, String> {
    match text.split_once('=') {
        None if text == "sync" => Ok(Durability::Sync),
        None if text == "delayed" => Ok(deuteron_bench::DELAYED),
        None if text == "none" => Ok(Durability::None),
        Some(("delayed", milliseconds)) => match milliseconds.parse() {
            Ok(milliseconds) => Ok(Durability::Delayed(Duration::from_millis(milliseconds))),
            Err(_) => Err(format!("\"{milliseconds}\" is not a number of milliseconds")),
        },
        _ => Err("expected sync, delayed, delayed=MILLISECONDS or none".into()),
    }
}

/// Reads processors: a list such as `0-3,8`, or `all` that the process may run on.
pub fn parse_processors(text: &str) -> Result<Processors, deuteron::Error> {
    if text == "all" { Processors::available() } else { text.parse() }
}

/// Reads a share between 0 and 1.
pub fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number between 0 and 1".into()),
    }
}

/// Reads a time in seconds, such as `10` or `0.5`.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=1e9).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a number of seconds".into()),
    }
}

/// A size for people: `17 B`, `1.5 KiB`, `3.2 GiB`.
pub fn bytes(count: u64) -> String {
    let mut size = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if size < 1024.0 {
            return if unit == "B" { format!("{count} B") } else { format!("{size:.1} {unit}") };
        }
        size /= 1024.0;
    }
    format!("{size:.1} TiB")
}

/// A count for people, in threes: `5 000 000`.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A time for people, from microseconds: `3.2 us`, `1.5 ms`, `2.0 s`.
pub fn microseconds(time: f64) -> String {
    match time {
        ..1_000.0 => format!("{time:.1} us"),
        ..1_000_000.0 => format!("{:.1} ms", time / 1e3),
        _ => format!("{:.1} s", time / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("64k"), Ok(64 << 10));
        assert_eq!(parse_bytes("256MiB"), Ok(256 << 20));
        assert_eq!(parse_bytes("1G"), Ok(1 << 30));
        for wrong in ["", "M", "-1", "1.5G", "12 parsecs", "99999999999999999999", "99999999999T"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durabilities_are_read() {
        assert_eq!(parse_durability("sync"), Ok(Durability::Sync));
        assert_eq!(parse_durability("none"), Ok(Durability::None));
        assert_eq!(parse_durability("delayed=3"), Ok(Durability::Delayed(Duration::from_millis(3))));
        assert!(parse_durability("delayed=soon").is_err());
        assert!(parse_durability("never").is_err());
    }

    #[test]
    fn quantities_are_printed_for_people() {
        assert_eq!(
            (bytes(17), bytes(1536), bytes(5 << 40)),
            ("17 B".into(), "1.5 KiB".into(), "5.0 TiB".into())
        );
        assert_eq!((count(0), count(999), count(5_000_000)), ("0".into(), "999".into(), "5 000 000".into()));
        assert_eq!(microseconds(1_500.0), "1.5 ms");
    }

    #[test]
    fn shares_and_seconds_have_limits() {
        assert!(parse_share("0.84").is_ok() && parse_share("1.1").is_err() && parse_share("NaN").is_err());
        assert!(
            parse_seconds("0.5").is_ok() && parse_seconds("-1").is_err() && parse_seconds("inf").is_err()
        );
    }
}
