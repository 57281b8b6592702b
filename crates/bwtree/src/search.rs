//! The innermost loops: comparing keys and finding a head in an array.

use deuteron_epoch::prefetch;
use std::cmp::Ordering;
use std::hint::select_unpredictable;

/// The index of the first head for which `number` gives not less than `wanted`; heads ascend.
///
/// Without branches that depend on the data: a search over a few cache lines is bound by mispredicted branches, not by
/// instructions. And without bounds checks, which would be a third of them.
#[inline]
pub(crate) fn lower_bound<T: Copy>(heads: &[T], wanted: u64, number: impl Fn(T) -> u64) -> usize {
    let mut from = 0;
    let mut count = heads.len();
    // S1: `from + count <= heads.len()`, and everything before `from` is less than `wanted`.
    while count > 1 {
        let half = count / 2;
        // SAFETY: `half < count`, so by S1 the index is below `heads.len()`.
        let middle = unsafe { *heads.get_unchecked(from + half - 1) };
        from = select_unpredictable(number(middle) < wanted, from + half, from);
        count -= half;
    }
    // SAFETY: `count` is 1, so by S1 `from` is below `heads.len()`.
    from + usize::from(count == 1 && number(unsafe { *heads.get_unchecked(from) }) < wanted)
}

/// The order of two keys, that of their bytes. Most differ within their first eight: no call of a library function for those.
///
/// ```
/// use deuteron_bwtree::compare_keys;
/// assert!(compare_keys(b"a", b"ab").is_lt() && compare_keys(b"b", b"ab").is_gt());
/// ```
#[inline]
pub fn compare(left: &[u8], right: &[u8]) -> Ordering {
    match (left.split_first_chunk::<8>(), right.split_first_chunk::<8>()) {
        (Some((left, left_rest)), Some((right, right_rest))) => {
            let (left, right) = (u64::from_be_bytes(*left), u64::from_be_bytes(*right));
            if left != right || (left_rest.is_empty() && right_rest.is_empty()) {
                left.cmp(&right)
            } else {
                left_rest.cmp(right_rest)
            }
        }
        _ => match left.iter().zip(right).find(|(left, right)| left != right) {
            Some((left, right)) => left.cmp(right),
            None => left.len().cmp(&right.len()),
        },
    }
}

/// Asks the processor for keys or values that will be copied soon: for the first lines of them, the rest follows by itself. A hint.
///
/// ```
/// let (keys, next) = ([b"one", b"two"], 1);
/// deuteron_bwtree::prefetch_bytes(keys[next]);
/// ```
#[inline]
pub fn prefetch_bytes(bytes: &[u8]) {
    const LINE: usize = 64;
    if let Some(last) = bytes.len().checked_sub(1) {
        for at in (0..=last.min(2 * LINE)).step_by(LINE) {
            prefetch(&raw const bytes[at]);
        }
        prefetch(&raw const bytes[last.min(3 * LINE)]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lower_bound_is_partition_point(mut heads in prop::collection::vec(0u64..50, 0..40), wanted in 0u64..50) {
            heads.sort_unstable();
            let expected = heads.partition_point(|&head| head < wanted);
            prop_assert_eq!(lower_bound(&heads, wanted, |head| head), expected);
        }

        #[test]
        fn keys_compare_like_slices(
            left in prop::collection::vec(0u8..3, 0..12),
            right in prop::collection::vec(0u8..3, 0..12),
        ) {
            prop_assert_eq!(compare(&left, &right), left.cmp(&right));
        }
    }
}
