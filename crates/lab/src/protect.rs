//! The files of a workload, protected: made once, read cold again and again.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use postread::{Linear, Plan, VerityLayer};
use postread_io::{CompletionCpu, PreadOptions, PreadPool, Source};
use postread_sys::{filesystem, residency};
use postread_verity::{Descriptor, MerkleTreeParams, TreeBuilder, TreeInMemory};

use crate::error::{LabError, Tried};
use crate::workload::App;

/// How files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cold {
    /// Through the page cache, out of which they are dropped before each start.
    PageCacheDropped,
    /// With `O_DIRECT`.
    Direct,
}

/// A file on disk and its tree. Both have no names any more: however the program ends, nothing is left behind.
#[derive(Debug)]
struct Protected {
    data: File,
    tree: File,
    descriptor: Descriptor,
}

/// An app's files.
#[derive(Debug)]
pub(crate) struct ProtectedApp {
    files: Vec<Protected>,
}

/// Refuses a directory whose files can't be cold.
pub(crate) fn check_directory(dir: &Path) -> Result<(), LabError> {
    let stat = filesystem::of_path(dir).tried(|| format!("statfs {}", dir.display()))?;
    if stat.kind.is_memory() {
        return Err(LabError::NeverCold { dir: dir.into(), kind: format!("{:?}", stat.kind).to_lowercase() });
    }
    Ok(())
}

impl ProtectedApp {
    /// Makes the app's files in `dir`: bytes that no file system compresses, and each one's Merkle tree.
    pub(crate) fn make(dir: &Path, number: usize, app: &App) -> Result<ProtectedApp, LabError> {
        let mut files = Vec::new();
        for (i, file) in app.files.iter().enumerate() {
            let mut data = nameless(dir, &format!("{number}-{i}"))?;
            let mut builder = TreeBuilder::new(MerkleTreeParams::default(), TreeInMemory::default());
            let mut left = file.size;
            let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ ((number as u64) << 32 | i as u64);
            let mut buf = vec![0; 1 << 20];
            while left > 0 {
                let n = left.min(buf.len() as u64) as usize;
                for word in buf[..n].chunks_mut(8) {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
                }
                data.write_all(&buf[..n]).tried(|| format!("writing to {}", dir.display()))?;
                builder.push(&buf[..n]).map_err(|e| LabError::Engine(e.to_string()))?;
                left -= n as u64;
            }
            let (built, bytes) = builder.finish().map_err(|e| LabError::Engine(e.to_string()))?;
            let bytes =
                bytes.into_bytes(&built.geometry).ok_or_else(|| LabError::Engine("an incomplete tree".into()))?;
            let mut tree = nameless(dir, &format!("{number}-{i}.verity-tree"))?;
            tree.write_all(&bytes).tried(|| format!("writing to {}", dir.display()))?;
            files.push(Protected { data, tree, descriptor: built.descriptor() });
        }
        Ok(ProtectedApp { files })
    }

    /// Drops the files from the page cache and looks whether they are out of it.
    pub(crate) fn make_cold(&self) -> Result<(), LabError> {
        self.files.iter().flat_map(|file| [&file.data, &file.tree]).try_for_each(make_cold)
    }

    /// Plans for reading the files, verified: with empty caches of hash blocks, as after boot.
    pub(crate) fn plans(&self, pool: &PreadPool, cold: Cold) -> Result<Vec<Plan>, LabError> {
        self.files.iter().map(|file| file.plan(pool, cold)).collect()
    }
}

impl Protected {
    fn plan(&self, pool: &PreadPool, cold: Cold) -> Result<Plan, LabError> {
        let engine = |error: &dyn std::fmt::Display| LabError::Engine(error.to_string());
        let layer = VerityLayer::new(self.descriptor.clone().self_consistent()).map_err(|e| engine(&e))?;
        let geometry = *layer.verifier().geometry();
        let tree = Linear::new(source(&self.tree, pool, cold, CompletionCpu::Submitter)?, 0, geometry.tree_size());
        let data = Linear::new(source(&self.data, pool, cold, CompletionCpu::Submitter)?, 0, geometry.data_size());
        let blocks = layer.hash_blocks(Arc::new(tree), Vec::new());
        layer.protect(Plan::new(Arc::new(data), geometry.data_size()), blocks).map_err(|e| engine(&e))
    }
}

/// A new file in `dir` that has no name any more.
pub(crate) fn nameless(dir: &Path, name: &str) -> Result<File, LabError> {
    let path = dir.join(format!(".postread-lab-{}-{name}", std::process::id()));
    let what = || format!("making {}", path.display());
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).tried(what)?;
    std::fs::remove_file(&path).tried(what)?;
    Ok(file)
}

/// Drops a file from the page cache and looks whether it is out of it.
pub(crate) fn make_cold(file: &File) -> Result<(), LabError> {
    let mut left = residency::Residency::default();
    // A page that is being written or looked at stays for a moment.
    for _ in 0..50 {
        residency::drop_cache(file).tried(|| "dropping a file from the page cache".into())?;
        left = residency::resident_pages(file, 0..u64::MAX).tried(|| "looking into the page cache".into())?;
        if left.resident == 0 {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    Err(LabError::Warm { resident: left.resident, total: left.total })
}

pub(crate) fn source(
    file: &File,
    pool: &PreadPool,
    cold: Cold,
    cpu: CompletionCpu,
) -> Result<Arc<dyn Source>, LabError> {
    let mut options = PreadOptions::default();
    options.completion_cpu = cpu;
    // Pages that the kernel has read ahead would complete on the submitting CPU, regardless of the setting.
    options.inline_resident = cpu == CompletionCpu::Submitter;
    let mut open = OpenOptions::new();
    open.read(true);
    if cold == Cold::Direct {
        open.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
        options.align = 4096;
    }
    // A separate file description, with its own flags, of a file without a name.
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let file = open.open(path).tried(|| "opening a file of the workload".into())?;
    Ok(Arc::new(pool.file(file, options)))
}
