//! Files read verified, with and without a tree beside them; digests of files that stay and of files that change.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use postread::{
    Changed, DigestJob, Digester, ErrorKind, FileError, Progress, VerifiedFile, digest_file, digest_files, sidecar,
};
use postread_verity::{FileDigest, HashAlg, MerkleTreeParams, TreeBuilder, TreeInMemory, Trust};

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

struct Fixture {
    dir: tempfile::TempDir,
    path: PathBuf,
    data: Vec<u8>,
    digest: FileDigest,
    tree: Vec<u8>,
    descriptor: Vec<u8>,
}

impl Fixture {
    fn new(len: usize, params: MerkleTreeParams) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let data = pattern(len);
        fs::write(&path, &data).unwrap();
        let mut builder = TreeBuilder::new(params, TreeInMemory::default());
        std::io::copy(&mut &data[..], &mut builder).unwrap();
        let (built, tree) = builder.finish().unwrap();
        let descriptor = built.descriptor();
        let tree = tree.into_bytes(&built.geometry).unwrap();
        let (digest, descriptor) = (descriptor.file_digest(), descriptor.to_bytes().to_vec());
        Self { dir, path, data, digest, tree, descriptor }
    }

    fn beside(&self, suffix: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(format!("file{suffix}"));
        fs::write(&path, bytes).unwrap();
        path
    }

    fn open(&self) -> postread::Result<VerifiedFile> {
        VerifiedFile::open(&self.path, &self.digest)
    }

    fn assert_reads(&self) {
        let mut file = self.open().unwrap();
        assert_eq!(file.trusted().trust(), &Trust::Digest);
        assert_eq!(file.warnings().len(), 0);
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        assert!(read == self.data);
        if let Some(start) = self.data.len().checked_sub(10) {
            file.seek(SeekFrom::End(-10)).unwrap();
            let mut end = Vec::new();
            file.read_to_end(&mut end).unwrap();
            assert!(end == self.data[start..]);
        }
        assert_eq!(file.changed().unwrap(), None);
    }
}

#[test]
fn with_and_without_a_tree_and_a_descriptor() {
    for len in [0, 1, 4096, 4097, 600_000] {
        let f = Fixture::new(len, MerkleTreeParams::default());
        assert_eq!(digest_file(&f.path).unwrap(), f.digest);
        f.assert_reads();
        f.beside(".verity-tree", &f.tree);
        f.assert_reads();
        f.beside(".verity-desc", &f.descriptor);
        f.assert_reads();
        fs::remove_file(sidecar::tree_path(&f.path).unwrap()).unwrap();
        f.assert_reads();
    }
}

#[test]
fn other_parameters_come_from_the_descriptor_or_the_caller() {
    let params = MerkleTreeParams::new(HashAlg::Sha512, 1024, b"salt").unwrap();
    let f = Fixture::new(100_000, params);
    assert_eq!(f.open().unwrap_err().kind(), ErrorKind::Corrupt);
    let file = VerifiedFile::options().digest(f.digest).params(params).open(&f.path).unwrap();
    assert_eq!(file.len(), 100_000);
    f.beside(".verity-desc", &f.descriptor);
    f.assert_reads();
}

#[test]
fn nothing_is_trusted_by_itself() {
    let f = Fixture::new(10_000, MerkleTreeParams::default());
    f.beside(".verity-desc", &f.descriptor);
    let error = VerifiedFile::options().open(&f.path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let missing = VerifiedFile::open(f.dir.path().join("missing"), &f.digest).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().ends_with("missing: No such file or directory (os error 2)"), "{missing}");
}

#[test]
fn a_damaged_file_gives_its_good_bytes_and_no_others() {
    let f = Fixture::new(600_000, MerkleTreeParams::default());
    let mut bad = f.data.clone();
    bad[300_000] ^= 1;
    fs::write(&f.path, &bad).unwrap();
    // Without a tree the digest alone tells; with one, where.
    assert_eq!(f.open().unwrap_err().kind(), ErrorKind::Corrupt);
    f.beside(".verity-tree", &f.tree);
    let mut file = f.open().unwrap();
    let mut read = Vec::new();
    let error = postread::Error::from(file.read_to_end(&mut read).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let block = 300_000 / 4096 * 4096;
    assert!(read == f.data[..block], "{}", read.len());
    file.seek(SeekFrom::Start(block as u64 + 4096)).unwrap();
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).unwrap();
    assert!(rest == f.data[block + 4096..]);

    let mut ranges = Vec::new();
    assert!(
        sidecar::bad_ranges(&f.path, &MerkleTreeParams::default(), &f.digest, None, |range| ranges.push(range))
            .unwrap()
    );
    assert_eq!(ranges.iter().map(|r| (r.offset, r.length)).collect::<Vec<_>>(), [(block as u64, 4096)]);
}

#[test]
fn a_file_that_changes_after_it_was_opened_is_noticed() {
    let f = Fixture::new(10_000, MerkleTreeParams::default());
    let file = f.open().unwrap();
    let writer = fs::OpenOptions::new().write(true).open(&f.path).unwrap();
    writer.write_all_at(b"more", 10_000).unwrap();
    assert_eq!(file.changed().unwrap(), Some(Changed::Size { opened: 10_000, now: 10_004 }));
    writer.set_len(10_000).unwrap();
    writer.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(file.changed().unwrap(), Some(Changed::Written));

    let file = f.open().unwrap();
    let other = f.dir.path().join("other");
    fs::write(&other, &f.data).unwrap();
    fs::rename(&other, &f.path).unwrap();
    assert_eq!(file.changed().unwrap(), Some(Changed::Replaced));
    let mut buf = [0; 10];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 10);
    fs::remove_file(&f.path).unwrap();
    assert_eq!(file.changed().unwrap(), Some(Changed::Replaced));
}

#[test]
fn many_files_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for i in 0..100 {
        let path = dir.path().join(i.to_string());
        // One is large enough for all threads, one is missing.
        match i {
            40 => fs::write(&path, pattern(20_000_000)).unwrap(),
            50 => {}
            _ => fs::write(&path, pattern(i * 100)).unwrap(),
        }
        paths.push(path);
    }
    let results = digest_files(&paths);
    assert!(results.iter().map(|(path, _)| path).eq(&paths));
    for (i, (path, result)) in results.iter().enumerate() {
        match result {
            Err(error) => assert_eq!((i, error.kind()), (50, ErrorKind::NotFound)),
            Ok(digest) => assert_eq!(*digest, digest_file(path).unwrap()),
        }
    }
}

fn job(path: &Path) -> DigestJob {
    DigestJob { path: path.to_owned(), params: MerkleTreeParams::default(), tag: () }
}

#[test]
fn a_caller_that_wants_no_more_ends_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    fs::write(&path, "x").unwrap();
    let (mut taken, mut given) = (0, 0);
    let endless = std::iter::repeat_with(|| {
        taken += 1;
        Ok(job(&path))
    });
    Digester::new().run(endless, |_, _| {
        given += 1;
        if given == 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(given, 10);
    // No more than what may wait for its turn, and what the threads were at.
    assert!(taken < 3000, "{taken}");
}

/// Changes the file in the middle of its digest, and sets its modification time back.
struct Meddler(PathBuf, std::sync::Once);

impl Progress for Meddler {
    fn advance(&self, _bytes: u64) {
        self.1.call_once(|| {
            let modified = fs::metadata(&self.0).unwrap().modified().unwrap();
            // The change time has the resolution of the kernel's clock tick.
            std::thread::sleep(std::time::Duration::from_millis(20));
            let file = fs::OpenOptions::new().write(true).open(&self.0).unwrap();
            file.write_all_at(b"!", 0).unwrap();
            file.set_modified(modified).unwrap();
        });
    }
}

#[test]
fn a_file_that_is_changed_meanwhile_has_no_digest_whatever_its_times_say() {
    let dir = tempfile::tempdir().unwrap();
    for len in [1_000_000, 20_000_000] {
        let path = dir.path().join("f");
        fs::write(&path, pattern(len)).unwrap();
        let meddler = Meddler(path.clone(), std::sync::Once::new());
        let mut result = None;
        Digester::new().progress(&meddler).run(std::iter::once(Ok(job(&path))), |_, tree| {
            result = Some(tree);
            ControlFlow::Continue(())
        });
        assert!(matches!(result, Some(Err(FileError::Changed))), "{result:?}");
    }
}
