//! What the tests of the read path share: protected files, engines of every policy, a watchdog.
#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use postread::{Engine, EngineConfig, HashBlocks, Linear, Mapping, OpenFile, Plan, QueuePolicy, Step, VerityLayer};
use postread_io::{MemorySource, Source};
use postread_verity::{Descriptor, MerkleTreeParams, TreeBuilder, TreeInMemory};

/// Bytes that differ from block to block and from file to file.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A file with its tree and descriptor, made by the tree builder.
pub struct Protected {
    pub data: Vec<u8>,
    pub tree: Vec<u8>,
    pub descriptor: Descriptor,
}

impl Protected {
    pub fn new(data: Vec<u8>, params: MerkleTreeParams) -> Self {
        let mut builder = TreeBuilder::new(params, TreeInMemory::default());
        builder.push(&data).expect("fits");
        let (built, sink) = builder.finish().expect("fits");
        let tree = sink.into_bytes(&built.geometry).expect("its own tree");
        Self { data, tree, descriptor: built.descriptor() }
    }

    pub fn of_len(len: usize) -> Self {
        Self::new(pattern(len, len as u64), MerkleTreeParams::default())
    }

    pub fn layer(&self) -> VerityLayer {
        VerityLayer::new(self.descriptor.clone().self_consistent()).expect("a possible size")
    }

    /// Opens it over other bytes than its own.
    pub fn open_over(&self, engine: &Engine, data: Arc<dyn Source>, tree: Arc<dyn Source>) -> OpenFile {
        self.open_with(engine, &self.layer(), data, tree, Vec::new()).0
    }

    pub fn open_with(
        &self,
        engine: &Engine,
        layer: &VerityLayer,
        data: Arc<dyn Source>,
        tree: Arc<dyn Source>,
        decrypt: Vec<Arc<dyn Step>>,
    ) -> (OpenFile, Arc<HashBlocks>) {
        let len = self.data.len() as u64;
        let blocks = layer.hash_blocks(linear(tree, self.tree.len() as u64), decrypt);
        let plan = layer.protect(Plan::new(linear(data, len), len), blocks.clone()).expect("same size");
        (engine.open(plan), blocks)
    }

    pub fn open(&self, engine: &Engine) -> OpenFile {
        self.open_over(engine, memory(&self.data), memory(&self.tree))
    }
}

pub fn memory(bytes: &[u8]) -> Arc<dyn Source> {
    Arc::new(MemorySource::new(bytes.to_vec()))
}

pub fn linear(source: Arc<dyn Source>, len: u64) -> Arc<dyn Mapping> {
    Arc::new(Linear::new(source, 0, len))
}

pub fn policies() -> Vec<QueuePolicy> {
    vec![
        QueuePolicy::Auto,
        QueuePolicy::Inline,
        QueuePolicy::BOUND,
        QueuePolicy::UNBOUND,
        QueuePolicy::BOUND.max_active(1),
        QueuePolicy::UNBOUND.max_active(1),
        QueuePolicy::UNBOUND.high_priority(),
    ]
}

pub fn engine(policy: QueuePolicy) -> Engine {
    Engine::new(EngineConfig::new().policy(policy).measure(true)).expect("engine")
}

/// Runs `f` on a thread of its own and fails where it hangs. (A limit for hangs, not a claim about time.)
pub fn watchdog<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = f();
        let _ = tell.send(());
        result
    });
    match told.recv_timeout(Duration::from_secs(120)) {
        Ok(()) => {}
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        // It panicked: let the join tell.
        Err(mpsc::RecvTimeoutError::Disconnected) => {}
    }
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Reads all of a file with small and large reads in turn.
pub fn read_all(file: &OpenFile) -> Result<Vec<u8>, postread::ReadError> {
    let reader = file.reader();
    let mut all = Vec::new();
    let mut buf = vec![0; 300_000];
    let sizes = [1, 4096, 100, 70_000, 300_000, 4095];
    for turn in 0.. {
        let n = reader.read_at(&mut buf[..sizes[turn % sizes.len()]], all.len() as u64)?;
        if n == 0 {
            break;
        }
        all.extend_from_slice(&buf[..n]);
    }
    Ok(all)
}
