//! Tests of dm-verity, FEC and AVB against published vectors and `veritysetup`.

mod avb;
mod corpora;
mod fec;
mod format;
mod verify;

use postread_verity::dm_verity::{Params, TreeBuilder};

/// The root hash and the hash area of `data`.
pub(crate) fn build(params: &Params, data: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let blocks = (data.len() / params.data_block_size()) as u64;
    let mut builder = TreeBuilder::new(params, blocks).unwrap();
    let mut tree = vec![0; builder.geometry().hash_area_size() as usize];
    let mut write = |offset: u64, bytes: &[u8]| -> Result<(), std::convert::Infallible> {
        tree[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    builder.push(data, &mut write).unwrap();
    let root = builder.finish(&mut write).unwrap();
    (root, tree)
}
