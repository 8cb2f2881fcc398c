//! Mutations of inputs.

use rand::{Rng, rngs::StdRng};

/// Bytes that parsers treat in special ways.
const SPECIAL: [u8; 16] =
    [0, 1, 0x7f, 0x80, 0xff, b'\n', b'\r', b'"', b'\'', b'\\', b'{', b'}', b':', b'-', b' ', b'\t'];

/// Changes an input in one to six places.
pub(crate) fn mutate(input: &mut Vec<u8>, pool: &[Vec<u8>], dictionary: &[&str], rng: &mut StdRng) {
    for _ in 0..rng.random_range(1..=6) {
        let at = rng.random_range(0..=input.len());
        match rng.random_range(0..10) {
            0 | 1 if !dictionary.is_empty() => {
                let word = dictionary[rng.random_range(0..dictionary.len())];
                input.splice(at..at, word.bytes());
            }
            2 if !dictionary.is_empty() => {
                let word = dictionary[rng.random_range(0..dictionary.len())];
                let end = (at + rng.random_range(0..=word.len())).min(input.len());
                input.splice(at..end, word.bytes());
            }
            // A piece of another input.
            3 => {
                let other = &pool[rng.random_range(0..pool.len())];
                let piece = range(other.len(), rng);
                let piece = other[piece].to_vec();
                input.splice(at..at, piece);
            }
            // A piece of the same one.
            4 => {
                let piece = input[range(input.len(), rng)].to_vec();
                input.splice(at..at, piece);
            }
            5 => {
                input.drain(range(input.len(), rng));
            }
            6 => input.truncate(at),
            7 if at < input.len() => input[at] ^= 1 << rng.random_range(0..8),
            8 if at < input.len() => {
                input[at] = input[at].wrapping_add(rng.random_range(0..=4)).wrapping_sub(2)
            }
            _ => {
                let byte =
                    if rng.random() { SPECIAL[rng.random_range(0..SPECIAL.len())] } else { rng.random() };
                input.insert(at, byte);
            }
        }
    }
}

/// A short part of a text of this length.
fn range(length: usize, rng: &mut StdRng) -> std::ops::Range<usize> {
    let begin = rng.random_range(0..=length);
    begin..(begin + rng.random_range(0..=32)).min(length)
}
