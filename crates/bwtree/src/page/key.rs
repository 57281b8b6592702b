//! Keys cut in pieces: the prefix that a run shares, the eight bytes behind it, the rest.
//!
//! A *head* is the first eight bytes of what follows the shared prefix, padded with zeros and compared as one
//! big-endian integer. Two different keys may have the same head; then lengths and rests decide
//! ([`compare_behind_head`]).

use crate::search::compare;
use deuteron_llama::Filter;
use std::cmp::Ordering;

/// Bytes of a key head.
pub(crate) const HEAD_BYTES: usize = 8;

/// The head of `suffix`, as stored: the first eight bytes, zero-padded.
#[inline]
pub(crate) fn head_bytes(suffix: &[u8]) -> [u8; HEAD_BYTES] {
    if let Some(head) = suffix.first_chunk::<HEAD_BYTES>() {
        return *head;
    }
    // Without a call of a library function: two halves, which overlap.
    if let (Some(first), Some(last)) = (suffix.first_chunk::<4>(), suffix.last_chunk::<4>()) {
        let [first, last] = [first, last].map(|half| u64::from(u32::from_be_bytes(*half)));
        return (first << 32 | last << (8 * (HEAD_BYTES - suffix.len()))).to_be_bytes();
    }
    let mut head = [0; HEAD_BYTES];
    head.iter_mut().zip(suffix).for_each(|(head, byte)| *head = *byte);
    head
}

/// The head of `suffix` as a number that orders like the bytes.
#[inline]
pub(crate) fn head_number(suffix: &[u8]) -> u64 {
    u64::from_be_bytes(head_bytes(suffix))
}

/// What follows the head in `suffix`, empty if the head holds all of it.
#[inline]
pub(crate) fn behind_head(suffix: &[u8]) -> &[u8] {
    suffix.get(HEAD_BYTES..).unwrap_or(&[])
}

/// Orders two suffixes whose heads are equal.
///
/// If either fits into its head, the other begins with the same bytes or with those and zeros, so the shorter
/// one is the smaller. Otherwise the rests decide.
#[inline]
pub(crate) fn compare_behind_head(
    left_bytes: usize,
    left_rest: &[u8],
    right_bytes: usize,
    right_rest: &[u8],
) -> Ordering {
    if left_bytes <= HEAD_BYTES || right_bytes <= HEAD_BYTES {
        left_bytes.cmp(&right_bytes)
    } else {
        left_rest.cmp(right_rest)
    }
}

/// Copies a slice into one as long. Most are short: up to sixteen bytes go as two pieces of a known length that overlap, or one by one, without a call of a
/// library function.
#[inline]
pub(crate) fn copy_short(target: &mut [u8], source: &[u8]) {
    #[inline]
    fn copy_ends<const HALF: usize>(target: &mut [u8], source: &[u8]) {
        if let (Some(first), Some(last)) = (source.first_chunk::<HALF>(), source.last_chunk::<HALF>()) {
            *target.first_chunk_mut().expect("as long as the source") = *first;
            *target.last_chunk_mut().expect("as long as the source") = *last;
        }
    }
    assert_eq!(target.len(), source.len());
    match source.len() {
        0..4 => target.iter_mut().zip(source).for_each(|(target, source)| *target = *source),
        4..8 => copy_ends::<4>(target, source),
        8..=16 => copy_ends::<8>(target, source),
        _ => target.copy_from_slice(source),
    }
}

/// The number of leading bytes that `left` and `right` share.
#[inline]
pub(crate) fn common_prefix_bytes(left: &[u8], right: &[u8]) -> usize {
    let words = left.as_chunks::<8>().0.iter().zip(right.as_chunks::<8>().0);
    let same = 8 * words.take_while(|(left, right)| left == right).count();
    same + left[same..].iter().zip(&right[same..]).take_while(|(left, right)| left == right).count()
}

/// How `key` lies to a run all of whose keys begin with `prefix`: before it, behind it, or (equal) within, in
/// which case `key` begins with `prefix` too.
#[inline]
pub(crate) fn compare_with_prefix(key: &[u8], prefix: &[u8]) -> Ordering {
    if prefix.is_empty() {
        return Ordering::Equal;
    }
    match key.get(..prefix.len()) {
        // Prefixes of bases are short, and those of small deltas whole keys: no call of a library function for either.
        Some(start) => compare(start, prefix),
        None => key.cmp(&prefix[..key.len()]).then(Ordering::Less),
    }
}

/// The shortest key that is greater than `left` and not greater than `right`, as a prefix of `right`.
pub(crate) fn separator<'r>(left: &[u8], right: &'r [u8]) -> &'r [u8] {
    debug_assert!(left < right);
    &right[..common_prefix_bytes(left, right) + 1]
}

/// A key where it lies in a run: shared prefix, head, rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyParts<'a> {
    /// The bytes shared by the whole run.
    pub(crate) prefix: &'a [u8],
    /// The next bytes, zero-padded.
    pub(crate) head: [u8; HEAD_BYTES],
    /// The length of head and rest together, without the padding.
    pub(crate) suffix_bytes: usize,
    /// What does not fit into the head.
    pub(crate) rest: &'a [u8],
}

impl<'a> KeyParts<'a> {
    /// A key in one piece.
    #[inline]
    pub(crate) fn whole(key: &'a [u8]) -> KeyParts<'a> {
        KeyParts { prefix: key, head: [0; HEAD_BYTES], suffix_bytes: 0, rest: &[] }
    }

    /// The key's length in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.prefix.len() + self.suffix_bytes
    }

    /// The bits that the key has in a [`Filter`]: two.
    #[inline]
    pub(crate) fn filter(&self) -> Filter {
        let pieces = [self.prefix, self.in_head(), self.rest];
        let bytes = pieces.into_iter().flatten();
        // FNV-1a, which does not ask how the key is cut in pieces.
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        // The last bytes have not come as far up yet.
        let spread = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        1 << (spread >> 60) | 1 << (spread >> 56 & 15)
    }

    /// How many leading bytes it shares with `key`.
    pub(crate) fn shared_bytes(&self, key: &[u8]) -> usize {
        let mut shared = 0;
        for piece in [self.prefix, self.in_head(), self.rest] {
            let bytes = common_prefix_bytes(piece, &key[shared..]);
            shared += bytes;
            if bytes < piece.len() {
                break;
            }
        }
        shared
    }

    fn in_head(&self) -> &[u8] {
        &self.head[..self.suffix_bytes.min(HEAD_BYTES)]
    }

    /// Writes the key to the beginning of `room`, of at least eight bytes more than it has, which are written to, too.
    #[inline]
    pub(crate) fn write_to(&self, room: &mut [u8]) {
        let (prefix, rest) = room.split_at_mut(self.prefix.len());
        copy_short(prefix, self.prefix);
        // All of the head, with its padding: so many bytes as are known here.
        let (head, behind) = rest.split_first_chunk_mut().expect("there are so many bytes more");
        *head = self.head;
        if !self.rest.is_empty() {
            behind[..self.rest.len()].copy_from_slice(self.rest);
        }
    }

    /// Appends the key to `key`.
    pub(crate) fn append_to(&self, key: &mut Vec<u8>) {
        key.extend_from_slice(self.prefix);
        key.extend_from_slice(self.in_head());
        key.extend_from_slice(self.rest);
    }

    /// How the key lies to one in one piece.
    pub(crate) fn compare_whole(&self, key: &[u8]) -> Ordering {
        match compare_with_prefix(key, self.prefix) {
            Ordering::Equal => {}
            order => return order.reverse(),
        }
        let suffix = &key[self.prefix.len()..];
        let heads = u64::from_be_bytes(self.head).cmp(&head_number(suffix));
        heads.then_with(|| {
            compare_behind_head(self.suffix_bytes, self.rest, suffix.len(), behind_head(suffix))
        })
    }

    /// The same key behind another shared prefix, with which it must begin; `None` if it does not lie together for that: it would
    /// have to be copied.
    #[inline]
    pub(crate) fn behind(self, prefix: &'a [u8]) -> Option<KeyParts<'a>> {
        if self.suffix_bytes == 0 {
            let suffix = self.prefix.strip_prefix(prefix)?;
            let (head, rest) = (head_bytes(suffix), behind_head(suffix));
            return Some(KeyParts { prefix, head, suffix_bytes: suffix.len(), rest });
        }
        (self.prefix == prefix).then_some(self)
    }

    /// The key in one piece, in place if it is, else in `scratch`.
    pub(crate) fn contiguous<'s>(&self, scratch: &'s mut Vec<u8>) -> &'s [u8]
    where
        'a: 's,
    {
        if self.suffix_bytes == 0 {
            return self.prefix;
        }
        scratch.clear();
        self.append_to(scratch);
        scratch
    }

    /// The key in a vector of its own.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.bytes());
        self.append_to(&mut key);
        key
    }
}

impl Ord for KeyParts<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.suffix_bytes == 0 && other.suffix_bytes == 0 {
            return self.prefix.cmp(other.prefix);
        }
        if self.prefix == other.prefix {
            let heads = self.head.cmp(&other.head);
            return heads.then_with(|| {
                compare_behind_head(self.suffix_bytes, self.rest, other.suffix_bytes, other.rest)
            });
        }
        let left = self.prefix.iter().chain(self.in_head()).chain(self.rest);
        left.cmp(other.prefix.iter().chain(other.in_head()).chain(other.rest))
    }
}

impl PartialOrd for KeyParts<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for KeyParts<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for KeyParts<'_> {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Keys over a tiny alphabet with zeros, so that padding and shared heads are common.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(vec![0u8, 1, 255]), 0..12)
    }

    fn cut(key: &[u8], prefix_bytes: usize) -> KeyParts<'_> {
        let (prefix, suffix) = key.split_at(prefix_bytes.min(key.len()));
        KeyParts { prefix, head: head_bytes(suffix), suffix_bytes: suffix.len(), rest: behind_head(suffix) }
    }

    proptest! {
        #[test]
        fn cut_keys_order_like_whole_ones(left in key(), right in key(), p in 0usize..12, q in 0usize..12) {
            prop_assert_eq!(cut(&left, p).cmp(&cut(&right, q)), left.cmp(&right));
            prop_assert_eq!(cut(&left, p).compare_whole(&right), left.cmp(&right));
            prop_assert_eq!(KeyParts::whole(&left).compare_whole(&right), left.cmp(&right));
            prop_assert_eq!(cut(&left, p).shared_bytes(&right), common_prefix_bytes(&left, &right));
            prop_assert_eq!(cut(&left, p).to_vec(), left);
        }

        #[test]
        fn the_bits_of_a_key_do_not_ask_how_it_is_cut(key in key(), p in 0usize..12) {
            prop_assert_eq!(cut(&key, p).filter(), KeyParts::whole(&key).filter());
            prop_assert!((1..=2).contains(&KeyParts::whole(&key).filter().count_ones()));
        }

        #[test]
        fn a_key_in_one_piece_can_be_cut_anywhere(key in key(), other in key(), p in 0usize..12, q in 0usize..12) {
            let (whole, cut) = (KeyParts::whole(&key), cut(&key, p));
            let behind = |parts: KeyParts<'_>, prefix| parts.behind(prefix).map(|parts| (parts.prefix.len(), parts.to_vec()));
            let q = q.min(key.len());
            prop_assert_eq!(behind(whole, &key[..q]), Some((q, key.clone())));
            prop_assert_eq!(behind(cut, cut.prefix), Some((cut.prefix.len(), key.clone())));
            prop_assert_eq!(behind(whole, &other).is_some(), key.starts_with(&other));
            prop_assert!(whole.behind(&key[..q]).is_none_or(|parts| parts.head == head_bytes(&key[q..])));
        }

        #[test]
        fn a_head_is_the_beginning_padded(suffix in prop::collection::vec(any::<u8>(), 0..12)) {
            let padded = [&suffix[..], &[0; HEAD_BYTES]].concat();
            prop_assert_eq!(&head_bytes(&suffix)[..], &padded[..HEAD_BYTES]);
        }

        #[test]
        fn a_common_prefix_is_as_long_as_can_be(left in key(), right in key(), shared in prop::collection::vec(0u8..3, 0..20)) {
            let (left, right) = ([&shared[..], &left].concat(), [&shared[..], &right].concat());
            let bytes = common_prefix_bytes(&left, &right);
            prop_assert!(bytes >= shared.len() && left[..bytes] == right[..bytes]);
            prop_assert!(bytes == left.len().min(right.len()) || left[bytes] != right[bytes]);
        }

        #[test]
        fn a_separator_lies_between(left in key(), right in key()) {
            prop_assume!(left < right);
            let between = separator(&left, &right);
            prop_assert!(left.as_slice() < between && between <= right.as_slice());
        }

        #[test]
        fn a_key_lies_before_within_or_behind_a_prefix(key in key(), prefix in key()) {
            let expected = if key.starts_with(&prefix) { Ordering::Equal } else { key.cmp(&prefix) };
            prop_assert_eq!(compare_with_prefix(&key, &prefix), expected);
        }
    }

    #[test]
    fn a_key_is_put_together_from_pieces_of_any_length() {
        let key: Vec<u8> = (0..40).collect();
        for (bytes, prefix) in
            (0..=key.len()).flat_map(|bytes| (0..=bytes).map(move |prefix| (bytes, prefix)))
        {
            let parts = cut(&key[..bytes], prefix);
            assert_eq!(parts.to_vec(), key[..bytes], "{prefix} of {bytes}");
            let mut room = vec![0xAA; bytes + HEAD_BYTES];
            parts.write_to(&mut room);
            assert_eq!(room[..bytes], key[..bytes], "{prefix} of {bytes}");
        }
    }

    #[test]
    fn the_bits_of_a_key_stay_as_they_are_as_they_lie_on_disk() {
        let bits = |key: &[u8]| KeyParts::whole(key).filter();
        let keys = [&b""[..], b"a", b"deuteron", &[0; 8], &[255; 40]];
        assert_eq!(keys.map(bits), [288, 260, 34, 513, 136]);
    }

    #[test]
    fn of_three_other_keys_a_filter_lets_one_in_ten_pass() {
        let filter = |number: u64| KeyParts::whole(&number.to_be_bytes()).filter();
        // Neighbours, as a range of a page has them.
        let held = |at: u64| (0..3).fold(0, |bits, index| bits | filter(7 * at + 2 * index));
        let passed = (0..10_000u64).filter(|&at| held(at) & filter(7 * at + 1) == filter(7 * at + 1)).count();
        assert!((500..1800).contains(&passed), "{passed}");
    }
}
