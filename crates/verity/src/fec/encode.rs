//! Parity of many codewords at a time.
//!
//! A codeword's parity is the remainder of its message modulo the generator polynomial: a shift register fed with one byte
//! at a time. Here the register's cells are runs of bytes, one byte for each column.

use super::gf::{self, Doublings, TILE, Tile};

/// The generator polynomial of a code: the product of (x - 2^i) for i below `roots`, highest power first, without its
/// leading 1.
fn generator(roots: usize) -> Vec<u8> {
    let mut poly = vec![1];
    for i in 0..roots {
        let root = gf::exp(i);
        poly.push(0);
        for at in (1..poly.len()).rev() {
            poly[at] ^= gf::mul(poly[at - 1], root);
        }
    }
    poly.remove(0);
    poly
}

/// Computes the parity of a range of columns from the rows of their message, first row first.
pub struct Encoder {
    width: usize,
    generator: Vec<u8>,
    /// For each tile of columns, the cells of its register in a ring.
    cells: Vec<Tile>,
    /// Which cell of each ring is the first.
    head: usize,
    doublings: Box<Doublings>,
}

impl Encoder {
    /// An encoder of `width` columns.
    ///
    /// # Panics
    /// Unless there are 2 to 24 roots.
    pub fn new(roots: usize, width: usize) -> Self {
        assert!((2..=24).contains(&roots), "{roots} roots");
        Self {
            width,
            generator: generator(roots),
            cells: vec![[0; TILE]; roots * width.div_ceil(TILE)],
            head: 0,
            doublings: Box::new(Doublings::new()),
        }
    }

    /// Starts over.
    pub fn reset(&mut self) {
        self.cells.fill([0; TILE]);
        self.head = 0;
    }

    /// The number of parity bytes of a codeword.
    pub fn roots(&self) -> usize {
        self.generator.len()
    }

    /// The number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Appends the next row; columns past its end have zeros.
    ///
    /// # Panics
    /// If the row is wider than the encoder.
    pub fn push_row(&mut self, row: &[u8]) {
        assert!(row.len() <= self.width, "a row of {} bytes in {} columns", row.len(), self.width);
        let roots = self.roots();
        let (mut whole, rest) = {
            let (whole, rest) = row.as_chunks::<TILE>();
            (whole.iter(), rest)
        };
        let mut last = [0; TILE];
        last[..rest.len()].copy_from_slice(rest);
        let mut last = Some(&last);
        let zeros = [0; TILE];
        for ring in self.cells.chunks_exact_mut(roots) {
            let bytes = whole.next().or_else(|| last.take()).unwrap_or(&zeros);
            self.doublings.set_sum(bytes, &ring[self.head]);
            // The first cell leaves; its place becomes the last cell.
            ring[self.head] = [0; TILE];
            for (i, &coefficient) in self.generator.iter().enumerate() {
                let at = self.head + 1 + i;
                self.doublings.add_multiple(coefficient, &mut ring[if at >= roots { at - roots } else { at }]);
            }
        }
        self.head = if self.head + 1 == roots { 0 } else { self.head + 1 };
    }

    /// Cell `i` of the parity of tile `tile` of columns.
    pub(crate) fn cell(&self, tile: usize, i: usize) -> &Tile {
        let roots = self.roots();
        &self.cells[tile * roots + (self.head + i) % roots]
    }

    /// The parity of all columns, as it is stored: `roots` bytes for each column.
    pub fn parity(&self) -> Vec<u8> {
        let roots = self.roots();
        let mut out = vec![0; roots * self.width];
        for (tile, out) in out.chunks_mut(roots * TILE).enumerate() {
            for i in 0..roots {
                let cell = self.cell(tile, i);
                for (column, byte) in out.chunks_exact_mut(roots).zip(cell) {
                    column[i] = *byte;
                }
            }
        }
        out
    }
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("roots", &self.roots()).field("width", &self.width).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polynomial division, a byte at a time.
    fn slow_parity(message: &[u8], roots: usize) -> Vec<u8> {
        let generator = generator(roots);
        let mut remainder = vec![0; roots];
        for &byte in message {
            let feedback = byte ^ remainder.remove(0);
            remainder.push(0);
            for (r, &g) in remainder.iter_mut().zip(&generator) {
                *r ^= gf::mul(g, feedback);
            }
        }
        remainder
    }

    #[test]
    fn columns_agree_with_division() {
        for roots in 2..=24 {
            let rows = 255 - roots;
            let width = TILE + 40;
            let mut x = 1u32;
            let mut next = move || {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (x >> 24) as u8
            };
            let message: Vec<Vec<u8>> = (0..rows).map(|_| (0..width).map(|_| next()).collect()).collect();
            let mut encoder = Encoder::new(roots, width);
            for row in &message {
                encoder.push_row(row);
            }
            let parity = encoder.parity();
            for column in [0, 1, 17, TILE - 1, TILE, width - 1] {
                let codeword: Vec<u8> = message.iter().map(|row| row[column]).collect();
                assert_eq!(parity[column * roots..(column + 1) * roots], slow_parity(&codeword, roots)[..]);
            }
        }
    }

    #[test]
    fn the_generator_has_its_roots() {
        for roots in 2..=24 {
            let generator = generator(roots);
            for i in 0..roots {
                let x = gf::exp(i);
                assert_eq!(generator.iter().fold(1, |sum, &g| gf::mul(sum, x) ^ g), 0);
            }
        }
    }
}
