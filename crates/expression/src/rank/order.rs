//! Sorts numbers by their bits.

/// From this number of keys on, radix sort pays.
const MANY: usize = 512;

/// Bits of a digit, and digits of the upper half of a key.
const DIGIT: u32 = 11;
const DIGITS: usize = 3;

/// The places of `keys`, lowest key first, equal ones in their original order.
///
/// Many keys are sorted by their upper halves with a radix sort, from the lowest digit on. An upper half is the sign,
/// the exponent and 20 bits of the fraction: different numbers seldom share it. Keys with equal upper halves are
/// adjacent then, and are compared.
pub(super) fn in_order(keys: &[u64]) -> Vec<u32> {
    if keys.len() < MANY {
        let mut order: Vec<u32> = (0..keys.len() as u32).collect();
        order.sort_by_key(|&place| keys[place as usize]);
        return order;
    }
    // The upper half of a key above its place: one number to move.
    let mut from: Vec<u64> = keys.iter().zip(0u64..).map(|(key, place)| key >> 32 << 32 | place).collect();
    let digit = |n: u64, which: usize| (n >> (32 + DIGIT * which as u32)) as usize & ((1 << DIGIT) - 1);
    let mut counts = [[0u32; 1 << DIGIT]; DIGITS];
    for &n in &from {
        for (which, counts) in counts.iter_mut().enumerate() {
            counts[digit(n, which)] += 1;
        }
    }
    let mut to = vec![0u64; from.len()];
    for (which, counts) in counts.iter_mut().enumerate() {
        if counts[digit(from[0], which)] as usize == from.len() {
            continue;
        }
        let mut next = 0;
        for count in counts.iter_mut() {
            next += std::mem::replace(count, next);
        }
        for &n in &from {
            let at = &mut counts[digit(n, which)];
            to[*at as usize] = n;
            *at += 1;
        }
        std::mem::swap(&mut from, &mut to);
    }
    let mut order: Vec<u32> = from.iter().map(|&n| n as u32).collect();
    let mut start = 0;
    while start < from.len() {
        let mut end = start + 1;
        while end < from.len() && from[end] >> 32 == from[start] >> 32 {
            end += 1;
        }
        if end > start + 1 {
            order[start..end].sort_by_key(|&place| keys[place as usize]);
        }
        start = end;
    }
    order
}

/// A number's bits, such that they sort as the numbers do; the two zeros are one.
pub(super) fn ascending(value: f64) -> u64 {
    let bits = (value + 0.0).to_bits();
    if bits >> 63 == 1 { !bits } else { bits | (1 << 63) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sorts by comparison.
    fn compared(keys: &[u64]) -> Vec<u32> {
        let mut order: Vec<u32> = (0..keys.len() as u32).collect();
        order.sort_by_key(|&place| (keys[place as usize], place));
        order
    }

    /// Keys that differ in all bits, in a few, in the lower half alone, or not at all.
    fn keys() -> impl Strategy<Value = Vec<u64>> {
        let mask = prop_oneof![Just(u64::MAX), Just(0xffff_ffff), Just(0xff00_0000_0000_0001), Just(7), Just(0), any::<u64>()];
        (mask, any::<u64>(), 0usize..3 * MANY)
            .prop_flat_map(|(mask, rest, len)| prop::collection::vec(any::<u64>().prop_map(move |k| k & mask | rest & !mask), len))
    }

    proptest! {
        #[test]
        fn any_keys_are_in_order(keys in keys()) {
            prop_assert_eq!(in_order(&keys), compared(&keys));
        }

        #[test]
        fn bits_sort_as_numbers_do(a in any::<f64>(), b in any::<f64>()) {
            if let Some(order) = a.partial_cmp(&b) {
                prop_assert_eq!(ascending(a).cmp(&ascending(b)), order);
            }
        }
    }

    #[test]
    fn zeros_and_ends() {
        assert_eq!(ascending(-0.0), ascending(0.0));
        assert!(ascending(f64::NEG_INFINITY) < ascending(f64::MIN) && ascending(f64::MAX) < ascending(f64::INFINITY));
    }
}
