//! Verifies the files of a target: several at once, with every bad range of each.

mod in_order;

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use postread_fsimage::ext4::{FileType, Inode};
use postread_io::{BlockStatus, Corruption, CorruptionKind};
use postread_verity::TrustedDescriptor;

use super::{Target, shown};
use crate::digest_files::Progress;
use crate::error::{Error, Result};
use crate::image::{Follow, Image, ImageError, canonical};
use crate::path_tree::{PathTree, TreePath};
use crate::scan::BadPart;
use crate::trusted::TrustedDigests;

use in_order::{FileFindings, InOrder};

/// What [`Verifier::run`] reports about a path.
#[derive(Debug)]
#[non_exhaustive]
pub enum Finding {
    /// A hash block of the file is corrupt. Reported once, before the data that it leaves unverifiable.
    Tree(Box<Corruption>),
    /// A range of the file is bad, or cannot be verified.
    Data(BadPart),
    /// The file was read to its end.
    File(Box<FileVerdict>),
    /// The file was not read: it has no fs-verity although its digest is listed, it is not listed although digests are
    /// required, it is listed and does not exist, its metadata is damaged.
    Failed(Error),
    /// A path could not be searched for files: it does not exist, or it is a directory that is locked or damaged.
    Unreadable(Error),
}

/// The verdict on one file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FileVerdict {
    /// Its inode number.
    pub ino: u32,
    /// The descriptor that it was checked against, and why that is trusted.
    pub descriptor: TrustedDescriptor,
    /// Length in bytes.
    pub size: u64,
    /// How many bytes are good.
    pub good_bytes: u64,
    /// How many bytes are bad or cannot be verified.
    pub bad_bytes: u64,
    /// How many hash blocks are corrupt.
    pub bad_tree_blocks: u64,
}

impl FileVerdict {
    /// Whether every byte is good.
    pub fn is_good(&self) -> bool {
        self.bad_bytes == 0
    }

    /// Whether the descriptor was checked against a trusted digest or a signature. If not, a good file is only consistent
    /// with its own metadata.
    pub fn is_trusted(&self) -> bool {
        self.descriptor.trust().is_verified()
    }
}

/// How many files were verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyTotals {
    /// All files, listed ones that do not exist included.
    pub files: u64,
    /// Files whose every byte is good.
    pub good: u64,
    /// Good files that no trusted digest vouches for.
    pub self_consistent: u64,
}

/// Verifies the files of a target that have fs-verity: see [`Target::verifier`].
#[derive(Clone, Copy)]
pub struct Verifier<'a> {
    target: &'a Target,
    jobs: Option<usize>,
    follow: Follow,
    progress: &'a dyn Progress,
}

impl std::fmt::Debug for Verifier<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier").field("target", self.target).field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

impl Target {
    /// Verifies every file that has fs-verity, or for which there is a trusted digest.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let images = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images");
    /// # let file = postread_tests::unpack_image(&images.join("fscrypt/verity-enc.img.zst"));
    /// # let (image, key) = (file.path(), std::fs::read(images.join("key64.bin"))?);
    /// use std::ops::ControlFlow;
    /// use postread::{Finding, Target};
    ///
    /// let target = Target::builder().key(&key).open(image)?;
    /// let totals = target.verifier().run(&["/"], |path, finding| {
    ///     if let Finding::Data(bad) = finding {
    ///         println!("{}: bytes {:?} are bad: {}", path.display(), bad.range, bad.status);
    ///     }
    ///     ControlFlow::Continue(())
    /// });
    /// assert!(totals.files > 0 && totals.good == totals.files);
    /// # Ok(())
    /// # }
    /// ```
    pub fn verifier(&self) -> Verifier<'_> {
        Verifier { target: self, jobs: None, follow: Follow::All, progress: &() }
    }
}

impl<'a> Verifier<'a> {
    /// How many files to verify at once. The default is the number of CPUs.
    #[must_use]
    pub fn jobs(self, jobs: usize) -> Self {
        Self { jobs: Some(jobs), ..self }
    }

    /// Which symbolic links of the paths to follow. The default is all.
    #[must_use]
    pub fn follow(self, follow: Follow) -> Self {
        Self { follow, ..self }
    }

    /// What to notify of bytes and files that are done.
    #[must_use]
    pub fn progress(self, progress: &'a dyn Progress) -> Self {
        Self { progress, ..self }
    }

    /// Verifies the files at and beneath `paths`.
    ///
    /// `report` gets what cannot be searched first, then each file's findings and its verdict, in the order of the paths,
    /// then the listed files that were not verified. It is called from several threads, one at a time. After it returns
    /// `Break` no further file is read.
    pub fn run<P: AsRef<Path>>(
        &self,
        paths: &[P],
        mut report: impl FnMut(&Path, Finding) -> ControlFlow<()> + Send,
    ) -> VerifyTotals {
        let run = Run {
            image: self.target.image(),
            trusted: self.target.trusted(),
            verifier: self,
            all: InOrder::new(&mut report),
            files: AtomicU64::new(0),
            good: AtomicU64::new(0),
            self_consistent: AtomicU64::new(0),
        };
        let (mut jobs, mut tree) = (Vec::new(), PathTree::new());
        for path in paths {
            let path = path.as_ref().as_os_str().as_bytes();
            match run.image.find(path, self.follow) {
                Ok(found) => {
                    run.search(found.inode, &found.path, |path, ino| jobs.push(Job { path: tree.add(path), ino }))
                }
                Err(error) => run.unreadable(&canonical(path), error.without_path(path)),
            }
        }
        jobs.sort_by(|a, b| tree.compare(&a.path, &b.path));
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((index, job)) = {
                let index = next.fetch_add(1, Ordering::Relaxed);
                jobs.get(index).map(|job| (index, job))
            } {
                run.file(index, job.ino, &tree.path(&job.path));
            }
        };
        let threads = self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        std::thread::scope(|scope| {
            // If the system refuses a thread, those that there are do the work; this one always does its part.
            for _ in 1..threads.min(jobs.len()) {
                if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        run.listed_but_not_verified(jobs.iter().map(|job| tree.path(&job.path)));
        VerifyTotals {
            files: run.files.into_inner(),
            good: run.good.into_inner(),
            self_consistent: run.self_consistent.into_inner(),
        }
    }
}

/// A file to verify.
struct Job {
    path: TreePath,
    ino: u32,
}

struct Run<'a, 'r> {
    image: &'a Image,
    trusted: &'a TrustedDigests,
    verifier: &'a Verifier<'a>,
    all: InOrder<'r>,
    files: AtomicU64,
    good: AtomicU64,
    self_consistent: AtomicU64,
}

impl Run<'_, '_> {
    fn unreadable(&self, path: &[u8], error: ImageError) {
        self.all.report(Path::new(shown(path)), Finding::Unreadable(error.into()));
    }

    /// Passes every file to verify at or beneath `path` to `send`.
    fn search(&self, inode: Inode, path: &[u8], mut send: impl FnMut(&[u8], u32)) {
        if !inode.is_dir() {
            if inode.is_verity() || self.trusted.get(path).is_some() {
                send(path, inode.ino);
            }
            return;
        }
        match self.image.locked(&inode) {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return self.unreadable(path, error),
        }
        let mut walk = self.image.walk(inode.ino);
        while let Some(visit) = walk.next() {
            let path = if visit.path.is_empty() { path.to_vec() } else { [path, b"/", &visit.path].concat() };
            let inode = match visit.inode {
                Ok(inode) => inode,
                Err(error) => {
                    self.unreadable(&path, error);
                    continue;
                }
            };
            if inode.is_dir() {
                match self.image.locked(&inode) {
                    Ok(None) => {}
                    Ok(Some(error)) | Err(error) => {
                        self.unreadable(&path, error);
                        walk.skip_dir();
                    }
                }
            } else if inode.file_type == FileType::Regular && (inode.is_verity() || self.trusted.get(&path).is_some()) {
                send(&path, inode.ino);
            }
        }
    }

    /// Reports the trusted paths that no file was checked for, except files that were not asked for.
    fn listed_but_not_verified(&self, paths: impl Iterator<Item = Vec<u8>>) {
        // Hashes of paths: the paths of a deep chain would take the square of its length.
        let hasher = RandomState::new();
        let trusted = self.trusted;
        let verified: HashSet<u64> = match trusted.is_empty() {
            true => HashSet::new(),
            false => paths.map(|path| hasher.hash_one(path)).collect(),
        };
        let is_verified = |path: &[u8]| verified.contains(&hasher.hash_one(trusted.real_path(path).to_vec()));
        for path in trusted.paths().filter(|path| trusted.contradicts(path) || !is_verified(path)) {
            if let Some(error) = trusted.trouble(self.image, path) {
                self.files.fetch_add(1, Ordering::Relaxed);
                self.all.report(Path::new(shown(path)), Finding::Failed(error));
            }
        }
    }

    fn file(&self, index: usize, ino: u32, path: &[u8]) {
        let name: Arc<Path> = Path::new(shown(path)).into();
        let Some(mut findings) = self.all.start(index, name) else { return };
        match self.verify(ino, path, &mut findings) {
            Ok(None) => {}
            Ok(Some(verdict)) => {
                self.files.fetch_add(1, Ordering::Relaxed);
                if verdict.is_good() {
                    self.good.fetch_add(1, Ordering::Relaxed);
                    self.self_consistent.fetch_add(u64::from(!verdict.is_trusted()), Ordering::Relaxed);
                }
                findings.report(Finding::File(Box::new(verdict)));
            }
            Err(error) => {
                self.files.fetch_add(1, Ordering::Relaxed);
                findings.report(Finding::Failed(error));
            }
        }
        self.verifier.progress.file_done();
    }

    /// Reads a file to its end. `None` if it has no fs-verity and needs none.
    fn verify(&self, ino: u32, path: &[u8], findings: &mut FileFindings<'_, '_>) -> Result<Option<FileVerdict>> {
        let trusted = self.trusted.get(path);
        let inode = self.image.fs().inode(ino).map_err(ImageError::from)?;
        let Some(verity) = self.image.verity(&inode)? else {
            return match trusted {
                Some(wanted) => Err(ImageError::NoVerity { wanted: Box::new(*wanted) }.into()),
                None => Ok(None),
            };
        };
        let verity = match trusted {
            Some(digest) => verity.trust(digest)?,
            None if self.verifier.target.0.require_digests => return Err(ImageError::NotListed.into()),
            None => verity.self_consistent(),
        };
        let file = self.verifier.target.engine().open(verity.plan()?.0);
        let mut scan = file.scan(0..file.len());
        let mut bad_tree = HashSet::new();
        for part in scan.by_ref() {
            if let BlockStatus::Corrupt(c) = &part.status
                && c.kind == CorruptionKind::Tree
                && bad_tree.insert(c.position)
            {
                findings.report(Finding::Tree(c.clone()));
            }
            findings.report(Finding::Data(part));
        }
        self.verifier.progress.advance(file.len());
        Ok(Some(FileVerdict {
            ino,
            descriptor: verity.descriptor().clone(),
            size: file.len(),
            good_bytes: scan.totals().good,
            bad_bytes: scan.totals().bad,
            bad_tree_blocks: bad_tree.len() as u64,
        }))
    }
}
