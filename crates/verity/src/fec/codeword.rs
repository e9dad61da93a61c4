//! One codeword with errors at unknown places and erasures at known ones.

use super::{CODEWORD, gf};

/// A codeword is beyond repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more errors than the code can correct")]
#[non_exhaustive]
pub struct CodewordError;

/// The value of a polynomial, lowest power first, at `x`.
fn evaluate(poly: &[u8], x: u8) -> u8 {
    poly.iter().rev().fold(0, |sum, &c| gf::mul(sum, x) ^ c)
}

/// The syndromes of a codeword, given by those of its bytes that are not zero: (position, value).
fn syndromes(bytes: impl Iterator<Item = (usize, u8)> + Clone, roots: usize) -> Vec<u8> {
    let power = |position: usize, m: usize| gf::exp(m * (CODEWORD - 1 - position));
    (0..roots).map(|m| bytes.clone().fold(0, |sum, (at, value)| sum ^ gf::mul(value, power(at, m)))).collect()
}

/// Finds what to add to a codeword to make it a valid one, given `remainder`: its parity as read, plus (XOR) the parity of
/// its message as read. `erasures` are positions (rows, then parity) that are known to be bad. Corrects `e` errors at
/// unknown positions and `f` erasures as long as `2 e + f` is at most the number of parity bytes.
///
/// The corrections are (position, value to XOR); a wrong result is possible when there are more errors than that, so
/// check the digest if there is one.
///
/// # Errors
/// If no valid codeword is close enough.
pub fn correct_codeword(remainder: &[u8], erasures: &[usize]) -> Result<Vec<(usize, u8)>, CodewordError> {
    let roots = remainder.len();
    if erasures.len() > roots || erasures.iter().any(|&at| at >= CODEWORD) {
        return Err(CodewordError);
    }
    let parity = remainder.iter().enumerate().map(|(i, &value)| (CODEWORD - roots + i, value));
    let syndromes = syndromes(parity, roots);
    if syndromes.iter().all(|&s| s == 0) {
        return Ok(Vec::new());
    }
    let locator = locator(&syndromes, erasures);
    let degree = locator.iter().rposition(|&c| c != 0).unwrap_or(0);
    let errors = degree.checked_sub(erasures.len()).ok_or(CodewordError)?;
    if 2 * errors + erasures.len() > roots {
        return Err(CodewordError);
    }
    // The evaluator: syndromes times locator, modulo x^roots.
    let mut evaluator = vec![0; roots];
    for (i, &s) in syndromes.iter().enumerate() {
        for (j, &c) in locator.iter().enumerate().take(roots - i) {
            evaluator[i + j] ^= gf::mul(s, c);
        }
    }
    // The derivative keeps odd powers only.
    let derivative: Vec<u8> =
        locator.iter().enumerate().skip(1).map(|(i, &c)| if i % 2 == 1 { c } else { 0 }).collect();
    let mut corrections = Vec::with_capacity(degree);
    let mut found = 0;
    for position in 0..CODEWORD {
        let x = gf::exp(CODEWORD - 1 - position);
        let x_inverse = gf::inverse(x);
        if evaluate(&locator, x_inverse) != 0 {
            continue;
        }
        found += 1;
        let slope = evaluate(&derivative, x_inverse);
        if slope == 0 {
            return Err(CodewordError);
        }
        let value = gf::mul(x, gf::mul(evaluate(&evaluator, x_inverse), gf::inverse(slope)));
        if value != 0 {
            corrections.push((position, value));
        }
    }
    if found != degree || self::syndromes(corrections.iter().copied(), roots) != syndromes {
        return Err(CodewordError);
    }
    Ok(corrections)
}

/// The polynomial whose roots are the inverses of the bad positions' values: Berlekamp and Massey's algorithm, started
/// from the erasures. Lowest power first.
fn locator(syndromes: &[u8], erasures: &[usize]) -> Vec<u8> {
    let roots = syndromes.len();
    let mut locator = vec![0; roots + 1];
    locator[0] = 1;
    for &position in erasures {
        let x = gf::exp(CODEWORD - 1 - position);
        for i in (1..=roots).rev() {
            locator[i] ^= gf::mul(locator[i - 1], x);
        }
    }
    let mut previous = locator.clone();
    let mut length = erasures.len();
    for step in erasures.len()..roots {
        // What the locator so far gets wrong about the next syndrome.
        let discrepancy = (0..=step).fold(0, |sum, i| sum ^ gf::mul(locator[i], syndromes[step - i]));
        previous.insert(0, 0);
        previous.truncate(roots + 1);
        if discrepancy == 0 {
            continue;
        }
        let mut next = locator.clone();
        for (n, &p) in next.iter_mut().zip(&previous) {
            *n ^= gf::mul(discrepancy, p);
        }
        if 2 * length <= step + erasures.len() {
            length = step + 1 + erasures.len() - length;
            let scale = gf::inverse(discrepancy);
            previous = locator.iter().map(|&c| gf::mul(c, scale)).collect();
        }
        locator = next;
    }
    locator
}
