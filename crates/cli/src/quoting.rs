//! The words of a shell line: bare, "quoted with escapes" or 'literal'; and bytes as such a word.
//!
//! Escapes, in bare and double-quoted words: `\n`, `\r`, `\t`, `\0`, `\\`, `\"`, `\'`, `\ ` and `\xNN`, any byte.

use std::fmt::Write;

/// Cuts a line into words. A word is bytes: escapes may make any.
pub fn words(line: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut characters = line.char_indices().peekable();
    loop {
        while characters.next_if(|(_, character)| character.is_whitespace()).is_some() {}
        let Some(&(start, _)) = characters.peek() else { return Ok(words) };
        let mut word = Vec::new();
        // A word goes on until a space outside of quotes: `a"b c"` is one.
        while let Some((_, character)) = characters.next_if(|(_, character)| !character.is_whitespace()) {
            match character {
                '"' | '\'' => quoted(character, start, &mut characters, &mut word)?,
                '\\' => escape(&mut characters, &mut word)?,
                _ => push(character, &mut word),
            }
        }
        words.push(word);
    }
}

type Characters<'a> = std::iter::Peekable<std::str::CharIndices<'a>>;

/// The rest of a quoted stretch, its end included.
fn quoted(quote: char, start: usize, characters: &mut Characters, word: &mut Vec<u8>) -> Result<(), String> {
    loop {
        match characters.next() {
            None => return Err(format!("the quote of the word at place {} is not closed", start + 1)),
            Some((_, character)) if character == quote => return Ok(()),
            Some((_, '\\')) if quote == '"' => escape(characters, word)?,
            Some((_, character)) => push(character, word),
        }
    }
}

/// What follows a backslash.
fn escape(characters: &mut Characters, word: &mut Vec<u8>) -> Result<(), String> {
    let Some((at, character)) = characters.next() else { return Err("the line ends after a \\".into()) };
    word.push(match character {
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        '0' => 0,
        '\\' | '"' | '\'' | ' ' => character as u8,
        'x' => {
            let mut digit = || characters.next().and_then(|(_, character)| character.to_digit(16));
            let (Some(high), Some(low)) = (digit(), digit()) else {
                return Err(format!("\\x at place {at} needs two hexadecimal digits"));
            };
            (high << 4 | low) as u8
        }
        _ => return Err(format!("\\{character} at place {at} is not an escape")),
    });
    Ok(())
}

fn push(character: char, word: &mut Vec<u8>) {
    word.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Bytes as text that [`words`] reads back as one word when quoted: printable characters as they are, the rest
/// escaped. Tabs and line breaks never appear, so that one record is one line.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                _ if character.is_control() => {
                    let mut buffer = [0; 4];
                    for byte in character.encode_utf8(&mut buffer).bytes() {
                        let _ = write!(text, "\\x{byte:02x}");
                    }
                }
                _ => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Bytes as one word: bare where that is enough, else quoted.
pub fn word(bytes: &[u8]) -> String {
    let text = escaped(bytes);
    if text.is_empty() || text.contains(|character: char| character.is_whitespace() || character == '\'') {
        format!("\"{text}\"")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron_bench::Random;

    fn cut(line: &str) -> Vec<String> {
        words(line).unwrap().into_iter().map(|word| word.escape_ascii().to_string()).collect()
    }

    #[test]
    fn words_are_cut_at_spaces_outside_of_quotes() {
        assert_eq!(cut("  put a  b "), ["put", "a", "b"]);
        assert_eq!(cut(r#"put "a b" 'c "d" \n' e"f g"h"#), ["put", "a b", r#"c \"d\" \\n"#, "ef gh"]);
        assert_eq!(cut(r#"a\ b "" '' \x00\xff"#), ["a b", "", "", r"\x00\xff"]);
        assert_eq!(words("käse").unwrap(), ["käse".as_bytes()]);
        assert!(words("").unwrap().is_empty());
    }

    #[test]
    fn mistakes_are_named() {
        for (line, reason) in [
            (r#"put "a"#, "not closed"),
            ("put 'a", "not closed"),
            (r"a\", "ends after"),
            (r"\q", "not an escape"),
            (r"\x1", "two hexadecimal digits"),
            (r"\xzz", "two hexadecimal digits"),
        ] {
            let error = words(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn any_bytes_come_back_from_their_word() {
        let mut random = Random::new(3);
        for length in 0..300 {
            let mut bytes = vec![0; length % 20];
            random.fill(&mut bytes);
            // Half of them from the characters that matter.
            if length % 2 == 0 {
                for byte in &mut bytes {
                    *byte = b" \"'\\\n\t\0ax\xc3\xa4"[random.below(11) as usize];
                }
            }
            let line = format!("put {} end", word(&bytes));
            assert_eq!(words(&line).unwrap(), [&b"put"[..], &bytes, b"end"], "{line}");
            assert!(!escaped(&bytes).contains(['\n', '\t']));
        }
    }

    #[test]
    fn random_lines_never_panic() {
        let mut random = Random::new(4);
        for _ in 0..20_000 {
            let line: String = (0..random.below(12))
                .map(|_| ['"', '\'', '\\', 'x', '0', ' ', 'ä', 'n'][random.below(8) as usize])
                .collect();
            let _ = words(&line);
        }
    }
}
