//! Draws that several of the benchmarks have in common: kinds by their shares, skewed numbers, texts.

use crate::Random;

/// A kind of transaction, by the shares of all of them in per cent.
pub(super) fn kind(shares: &[(&'static str, u32)], random: &mut Random) -> usize {
    let mut draw = random.below(shares.iter().map(|(_, share)| u64::from(*share)).sum()) as u32;
    for (kind, (_, share)) in shares.iter().enumerate() {
        match draw.checked_sub(*share) {
            None => return kind,
            Some(rest) => draw = rest,
        }
    }
    unreachable!("the draw is below the sum of the shares")
}

/// A number in `low..=high`.
pub(super) fn between(low: u64, high: u64, random: &mut Random) -> u64 {
    low + random.below(high - low + 1)
}

/// TPC's and TATP's non-uniform number in `low..=high`: the bits that are set in many of `0..=mask` make some more likely than others.
/// `shift` moves those to another place.
pub(super) fn non_uniform(mask: u64, shift: u64, low: u64, high: u64, random: &mut Random) -> u64 {
    let skewed = random.below(mask + 1) | between(low, high, random);
    (skewed + shift) % (high - low + 1) + low
}

/// Letters and digits, as many as drawn from `low..=high`.
pub(super) fn text(low: u64, high: u64, random: &mut Random) -> Vec<u8> {
    const CHARACTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-";
    characters(between(low, high, random), CHARACTERS, random)
}

/// Digits, as many as drawn from `low..=high`.
pub(super) fn digits(low: u64, high: u64, random: &mut Random) -> Vec<u8> {
    characters(between(low, high, random), b"0123456789", random)
}

fn characters(count: u64, characters: &[u8], random: &mut Random) -> Vec<u8> {
    (0..count).map(|_| characters[random.below(characters.len() as u64) as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skewed_numbers_stay_in_their_range_and_some_are_drawn_often() {
        let mut random = Random::new(3);
        let mut counts = vec![0u32; 3_000];
        for _ in 0..300_000 {
            counts[non_uniform(1_023, 259, 1, 3_000, &mut random) as usize - 1] += 1;
        }
        counts.sort_unstable();
        let hottest: u32 = counts[2_700..].iter().sum();
        // A tenth of the numbers would have a tenth of the uniform draws.
        assert!(hottest > 90_000, "{hottest}");
        assert!(counts.iter().any(|&count| count > 0));
    }

    #[test]
    fn texts_have_their_lengths() {
        let mut random = Random::new(4);
        let lengths: Vec<usize> = (0..200).map(|_| text(6, 10, &mut random).len()).collect();
        assert!(
            (6..=10).all(|length| lengths.contains(&length))
                && lengths.iter().all(|length| (6..=10).contains(length))
        );
        assert!(digits(9, 9, &mut random).iter().all(u8::is_ascii_digit));
    }
}
