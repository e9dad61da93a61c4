//! Repairs a range of columns: erasures of whole rows for all columns at once, other errors one codeword at a time.

use super::codeword::correct_codeword;
use super::encode::Encoder;
use super::gf::{self, Doublings, TILE, Tile};
use super::{CODEWORD, CodewordError};

/// Reads a range of columns, row by row, and finds corrections for them.
#[derive(Debug)]
pub struct Decoder {
    encoder: Encoder,
    /// For each tile of columns: the remainder's cells, first cell first. All zero in valid codewords.
    remainder: Vec<Tile>,
}

impl Decoder {
    /// A decoder of `width` columns.
    ///
    /// # Panics
    /// Unless there are 2 to 24 roots.
    pub fn new(roots: usize, width: usize) -> Self {
        Self { encoder: Encoder::new(roots, width), remainder: Vec::new() }
    }

    /// Starts over.
    pub fn reset(&mut self) {
        self.encoder.reset();
        self.remainder.clear();
    }

    /// Appends the next row of the message as it was read; columns past its end have zeros. A row that could not be
    /// read may be filled with anything, as long as it is passed as an erasure.
    ///
    /// # Panics
    /// If the row is wider than the decoder.
    pub fn push_row(&mut self, row: &[u8]) {
        self.encoder.push_row(row);
    }

    /// Ends the message with its parity as it was read: `roots` bytes for each column.
    ///
    /// # Panics
    /// If there is not as much parity as that.
    pub fn set_parity(&mut self, parity: &[u8]) {
        let (roots, width) = (self.encoder.roots(), self.encoder.width());
        assert_eq!(parity.len(), roots * width, "{roots} bytes for each of {width} columns");
        self.remainder.clear();
        for (tile, parity) in parity.chunks(roots * TILE).enumerate() {
            for i in 0..roots {
                let mut cell = *self.encoder.cell(tile, i);
                for (byte, column) in cell.iter_mut().zip(parity.chunks_exact(roots)) {
                    *byte ^= column[i];
                }
                self.remainder.push(cell);
            }
        }
        // Columns that only fill the last tile.
        let (used, roots) = (width % TILE, roots);
        if used > 0 {
            let at = self.remainder.len() - roots;
            for cell in &mut self.remainder[at..] {
                cell[used..].fill(0);
            }
        }
    }

    /// True if all columns are valid codewords.
    pub fn is_clean(&self) -> bool {
        self.remainder.iter().all(|cell| cell.iter().all(|&byte| byte == 0))
    }

    /// The columns that are not valid codewords.
    pub fn bad_columns(&self) -> impl Iterator<Item = usize> {
        let roots = self.encoder.roots();
        (0..self.encoder.width())
            .filter(move |c| (0..roots).any(|i| self.remainder[c / TILE * roots + i][c % TILE] != 0))
    }

    /// The remainder of one column, for [`correct_codeword`].
    fn column(&self, column: usize) -> Vec<u8> {
        let roots = self.encoder.roots();
        (0..roots).map(|i| self.remainder[column / TILE * roots + i][column % TILE]).collect()
    }

    /// Corrections of one column; see [`correct_codeword`].
    ///
    /// # Errors
    /// If there are more errors than the code can correct.
    pub fn correct_column(&self, column: usize, erasures: &[usize]) -> Result<Vec<(usize, u8)>, CodewordError> {
        correct_codeword(&self.column(column), erasures)
    }

    /// Attributes all errors to the rows `erasures` and returns what to add to each. `None` if there are more of them
    /// than roots, or one is not a row of the message.
    pub fn erasures(&self, erasures: &[usize]) -> Option<Repair> {
        let roots = self.encoder.roots();
        let rows = CODEWORD - roots;
        if erasures.len() > roots || erasures.iter().any(|&row| row >= rows) {
            return None;
        }
        let matrix = solve(erasures, roots)?;
        let width = self.encoder.width();
        let mut corrections = vec![vec![0; width]; erasures.len()];
        let mut inconsistent = vec![false; width];
        let mut doublings = Box::new(Doublings::new());
        for (tile, cells) in self.remainder.chunks_exact(roots).enumerate() {
            let columns = tile * TILE..width.min((tile + 1) * TILE);
            let mut out = vec![[0; TILE]; roots];
            for (i, cell) in cells.iter().enumerate() {
                doublings.set(cell);
                for (out, row) in out.iter_mut().zip(&matrix) {
                    doublings.add_multiple(row[i], out);
                }
            }
            let (values, checks) = out.split_at(erasures.len());
            for (correction, value) in corrections.iter_mut().zip(values) {
                correction[columns.clone()].copy_from_slice(&value[..columns.len()]);
            }
            for check in checks {
                for (bad, &byte) in inconsistent[columns.clone()].iter_mut().zip(check) {
                    *bad |= byte != 0;
                }
            }
        }
        Some(Repair { erasures: erasures.to_vec(), corrections, inconsistent })
    }
}

/// What to add to the rows treated as erasures.
#[derive(Clone, Debug)]
pub struct Repair {
    erasures: Vec<usize>,
    corrections: Vec<Vec<u8>>,
    inconsistent: Vec<bool>,
}

impl Repair {
    /// What to XOR to the row as it was read.
    pub fn correction(&self, row: usize) -> Option<&[u8]> {
        let at = self.erasures.iter().position(|&e| e == row)?;
        Some(&self.corrections[at])
    }

    /// The columns in which something else is wrong too: their corrections are not good. None are found where there are
    /// as many erasures as roots.
    pub fn inconsistent(&self) -> impl Iterator<Item = usize> {
        self.inconsistent.iter().enumerate().filter(|(_, bad)| **bad).map(|(column, _)| column)
    }
}

/// The matrix by which a remainder (as a column of `roots` cells) is multiplied: one row for the value of each erasure, then
/// one row for each syndrome left over, whose product is zero when nothing else is wrong. `None` if an erasure comes
/// twice.
fn solve(erasures: &[usize], roots: usize) -> Option<Vec<Vec<u8>>> {
    let count = erasures.len();
    let x: Vec<u8> = erasures.iter().map(|&row| gf::exp(CODEWORD - 1 - row)).collect();
    // Syndrome m of a remainder: the sum of cell i times 2^(m (roots - 1 - i)).
    let syndrome: Vec<Vec<u8>> =
        (0..roots).map(|m| (0..roots).map(|i| gf::exp(m * (roots - 1 - i))).collect()).collect();
    // The first syndromes are sums of value times x^m: Gauss and Jordan invert that matrix.
    let mut left: Vec<Vec<u8>> = (0..count).map(|m| x.iter().map(|&x| gf::pow(x, m)).collect()).collect();
    let mut right: Vec<Vec<u8>> = syndrome[..count].to_vec();
    for at in 0..count {
        let pivot = (at..count).find(|&row| left[row][at] != 0)?;
        left.swap(at, pivot);
        right.swap(at, pivot);
        let scale = gf::inverse(left[at][at]);
        for c in left[at].iter_mut().chain(&mut right[at]) {
            *c = gf::mul(*c, scale);
        }
        for row in (0..count).filter(|&row| row != at) {
            let factor = left[row][at];
            let (l, r) = (left[at].clone(), right[at].clone());
            for (a, b) in left[row].iter_mut().zip(&l).chain(right[row].iter_mut().zip(&r)) {
                *a ^= gf::mul(factor, *b);
            }
        }
    }
    // The other syndromes, less what the values found explain.
    for (m, mut check) in syndrome.into_iter().enumerate().skip(count) {
        for (value, &x) in right[..count].to_vec().iter().zip(&x) {
            let factor = gf::pow(x, m);
            for (c, &v) in check.iter_mut().zip(value) {
                *c ^= gf::mul(factor, v);
            }
        }
        right.push(check);
    }
    Some(right)
}
