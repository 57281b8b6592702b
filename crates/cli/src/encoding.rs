//! Keys and values as text: UTF-8, hexadecimal, base64 (RFC 4648, padded).

use clap::ValueEnum;

/// How bytes are written as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Encoding {
    /// As they are, which must be UTF-8.
    #[default]
    Utf8,
    /// Two hexadecimal digits a byte.
    Hex,
    /// RFC 4648 base64 with padding.
    Base64,
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const HEX: &[u8; 16] = b"0123456789abcdef";

impl Encoding {
    /// Bytes as text; the error says why they have none.
    pub fn encode(self, bytes: &[u8]) -> Result<String, String> {
        match self {
            Encoding::Utf8 => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(text.to_owned()),
                Err(error) => Err(format!(
                    "byte {} of \"{}\" is not UTF-8; use --encoding hex or base64",
                    error.valid_up_to(),
                    bytes.escape_ascii()
                )),
            },
            Encoding::Hex => Ok(encode_hex(bytes)),
            Encoding::Base64 => Ok(encode_base64(bytes)),
        }
    }

    /// Text back into bytes; the error says what is wrong with it and where.
    pub fn decode(self, text: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Encoding::Utf8 => match std::str::from_utf8(text) {
                Ok(_) => Ok(text.to_vec()),
                Err(error) => Err(format!("byte {} is not UTF-8", error.valid_up_to())),
            },
            Encoding::Hex => decode_hex(text),
            Encoding::Base64 => decode_base64(text),
        }
    }
}

fn encode_hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(HEX[usize::from(nibble)]);
    bytes.iter().flat_map(|&byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn decode_hex(text: &[u8]) -> Result<Vec<u8>, String> {
    let digit = |at: usize| match char::from(text[at]).to_digit(16) {
        Some(digit) => Ok(digit as u8),
        None => Err(format!("'{}' at place {} is not a hexadecimal digit", text[at].escape_ascii(), at + 1)),
    };
    if !text.len().is_multiple_of(2) {
        return Err(format!("{} hexadecimal digits: a byte has two", text.len()));
    }
    (0..text.len()).step_by(2).map(|at| Ok(digit(at)? << 4 | digit(at + 1)?)).collect()
}

fn encode_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = (0..3).fold(0u32, |word, at| word << 8 | u32::from(group.get(at).copied().unwrap_or(0)));
        for place in 0..4 {
            if place <= group.len() {
                let sextet = word >> (18 - 6 * place) & 63;
                text.push(char::from(BASE64[sextet as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

fn decode_base64(text: &[u8]) -> Result<Vec<u8>, String> {
    if !text.len().is_multiple_of(4) {
        return Err(format!("{} base64 characters: the number is a multiple of four", text.len()));
    }
    let padding = text.iter().rev().take_while(|&&byte| byte == b'=').count();
    if padding > 2 {
        return Err("base64 ends with more than two '='".into());
    }
    let digits = &text[..text.len() - padding];
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut word, mut bits) = (0u32, 0);
    for (at, digit) in digits.iter().enumerate() {
        let sextet = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err(format!("'{}' at place {} is not base64", digit.escape_ascii(), at + 1)),
        };
        word = word << 6 | u32::from(sextet);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    // Bits left over must be zero: two texts for the same bytes would make a mistake pass.
    if word & ((1 << bits) - 1) != 0 {
        return Err("base64 ends with bits that belong to no byte".into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron_bench::Random;

    #[test]
    fn every_byte_string_survives() {
        let mut random = Random::new(1);
        for length in 0..200 {
            let mut bytes = vec![0; length];
            random.fill(&mut bytes);
            for encoding in [Encoding::Hex, Encoding::Base64] {
                let text = encoding.encode(&bytes).unwrap();
                assert_eq!(encoding.decode(text.as_bytes()).unwrap(), bytes, "{encoding:?} {text}");
            }
        }
    }

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode_base64(bytes.as_bytes()), text);
            assert_eq!(decode_base64(text.as_bytes()).unwrap(), bytes.as_bytes());
        }
        assert_eq!(encode_base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn wrong_text_is_refused_with_its_place() {
        for (encoding, text, reason) in [
            (Encoding::Hex, "abc", "3 hexadecimal digits"),
            (Encoding::Hex, "0g", "'g' at place 2"),
            (Encoding::Base64, "Zg=", "3 base64 characters"),
            (Encoding::Base64, "Z===", "more than two"),
            (Encoding::Base64, "Zg=a", "'=' at place 3"),
            (Encoding::Base64, "Zh==", "bits that belong"),
            (Encoding::Base64, "Zm9-", "'-' at place 4"),
            (Encoding::Base64, "A===", "more than two"),
        ] {
            let error = encoding.decode(text.as_bytes()).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(Encoding::Utf8.decode(b"a\xff").unwrap_err().contains("byte 1"));
        assert!(Encoding::Utf8.encode(b"a\xff").unwrap_err().contains("--encoding hex"));
        assert_eq!(Encoding::Hex.decode(b"AbcD").unwrap(), [0xab, 0xcd]);
    }

    #[test]
    fn random_text_never_panics_and_what_is_taken_is_canonical() {
        let mut random = Random::new(2);
        for _ in 0..20_000 {
            let length = random.below(9) as usize;
            let text: Vec<u8> = (0..length).map(|_| b"Zg=9/+a-\xff"[random.below(9) as usize]).collect();
            for encoding in [Encoding::Utf8, Encoding::Hex, Encoding::Base64] {
                if let Ok(bytes) = encoding.decode(&text) {
                    let again = encoding.encode(&bytes).unwrap();
                    assert!(again.as_bytes().eq_ignore_ascii_case(&text), "{encoding:?} {text:?}");
                }
            }
        }
    }

    #[test]
    fn fuzz_texts() {
        for (name, encoding, valid) in
            [("import-base64", Encoding::Base64, &b"AAECAwQ="[..]), ("import-hex", Encoding::Hex, b"00ff7A")]
        {
            deuteron_fuzz::Fuzz::new(name, &[valid.to_vec()], 50_000)
                .run(|_| {}, |bytes| encoding.decode(bytes).is_ok());
        }
    }
}
