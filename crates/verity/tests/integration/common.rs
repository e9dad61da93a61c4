//! What the tests share.

pub(crate) use postread_tests::noise;
use postread_verity::{HashAlg, MerkleTreeParams, Tree, TreeBuilder, TreeInMemory};

/// The tree of `data`, and its bytes.
pub(crate) fn build(params: MerkleTreeParams, data: &[u8]) -> (Tree, Vec<u8>) {
    let mut builder = TreeBuilder::new(params, TreeInMemory::default());
    builder.push(data).unwrap();
    let (tree, sink) = builder.finish().unwrap();
    let bytes = sink.into_bytes(&tree.geometry).expect("the sink has had every block");
    (tree, bytes)
}

pub(crate) fn params(alg: HashAlg, block_size: u32, salt: &[u8]) -> MerkleTreeParams {
    MerkleTreeParams::new(alg, block_size, salt).unwrap()
}

/// Whether a tool is there. Where it is not, the test is skipped with the reason, or fails if everything is required.
pub(crate) fn have_tool(tool: &str, arg: &str, test: &str) -> bool {
    let found = std::process::Command::new(tool).arg(arg).output().is_ok();
    if !found {
        assert_ne!(std::env::var("POSTREAD_REQUIRE_ALL").as_deref(), Ok("1"), "{test} needs {tool}");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("SKIP {test}: no {tool}\n").as_bytes());
    }
    found
}
