//! Random damage to an image: fields of its metadata get other values.

use postread_tests::Random;

use super::bases::Base;

/// Bytes to write into an image.
#[derive(Debug, Clone)]
pub(super) struct Damage {
    pub(super) base: usize,
    pub(super) writes: Vec<(usize, Vec<u8>)>,
    /// One field is damaged, so that what can be read besides it is as it was.
    pub(super) one_field: bool,
}

impl Damage {
    pub(super) fn random(random: &mut Random, bases: &[Base]) -> Self {
        let base = random.below(bases.len());
        // Each kind of structure as often as the others, however many there are of it.
        let mut kinds: Vec<&str> = bases[base].places.iter().map(|place| place.0).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let one_field = random.below(4) > 0;
        let fields = if one_field { 1 } else { 2 + random.below(4) };
        let pick = |_| {
            let kind = kinds[random.below(kinds.len())];
            field(random, &bases[base], kind)
        };
        let writes = (0..fields).map(pick).collect();
        Self { base, writes, one_field }
    }

    pub(super) fn apply(&self, base: &Base) -> Vec<u8> {
        let mut bytes = base.bytes.clone();
        for (at, value) in &self.writes {
            bytes[*at..][..value.len()].copy_from_slice(value);
        }
        bytes
    }

    /// What was damaged, for reports.
    pub(super) fn describe(&self, base: &Base) -> String {
        let one = |(at, value): &(usize, Vec<u8>)| {
            let place = base.places.iter().find(|place| (place.1..place.1 + place.2).contains(at));
            let (kind, start) = place.map_or(("?", 0), |place| (place.0, place.1));
            let before = hex::encode(&base.bytes[*at..][..value.len()]);
            format!("{kind} at {start:#x} + {:#x}: {before} to {}", at - start, hex::encode(value))
        };
        self.writes.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

fn field(random: &mut Random, base: &Base, kind: &str) -> (usize, Vec<u8>) {
    let places: Vec<_> = base.places.iter().filter(|place| place.0 == kind).collect();
    let &&(_, start, len) = &places[random.below(places.len())];
    // Most of a directory block is its first entries; the rest is seldom in use.
    let width = [1, 2, 4][random.below(3)];
    let at = start + random.below((len - width) / width + 1) * width;
    let old = &base.bytes[at..at + width];
    let old = old.iter().rev().fold(0u32, |word, &byte| word << 8 | u32::from(byte));
    let new = match random.below(7) {
        0 => old ^ 1 << random.below(8 * width),
        1 => base.numbers[random.below(base.numbers.len())],
        2 => 0,
        3 => u32::MAX,
        4 => old.wrapping_add(1 << random.below(5)),
        5 => old.wrapping_sub(1 << random.below(5)),
        _ => random.next_u64() as u32,
    };
    (at, new.to_le_bytes()[..width].to_vec())
}
