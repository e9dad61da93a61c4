//! Targets: files of images by path, and the example programs.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use postread::ext4::ExtentKind;
use postread::{ErrorKind, FileDigest, Keys, Target, Trust, TrustedDigests};
use postread_tests::unpack_image;
use tempfile::NamedTempFile;

fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images")
}

fn image(name: &str) -> NamedTempFile {
    unpack_image(&images().join(format!("fscrypt/{name}.img.zst")))
}

fn key() -> Vec<u8> {
    std::fs::read(images().join("key64.bin")).unwrap()
}

/// Paths, and where they lead, of the regular files with fs-verity.
fn verity_files(target: &Target) -> Vec<PathBuf> {
    let walk = target.walk("/").unwrap().map(Result::unwrap);
    walk.filter(|entry| entry.metadata().is_verity()).map(|entry| entry.path().to_owned()).collect()
}

#[test]
fn a_target_is_shared_by_threads() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<Target>();
    let image = image("verity-enc");
    let target = Target::builder().key(&key()).open(image.path()).unwrap();
    let paths = verity_files(&target);
    assert!(paths.len() > 3);
    let read: Vec<Vec<u8>> = paths.iter().map(|path| target.read(path).unwrap()).collect();
    let threads = [0, 1].map(|_| {
        let (target, paths, read) = (target.clone(), paths.clone(), read.clone());
        std::thread::spawn(move || {
            assert!(paths.iter().zip(read).all(|(path, read)| target.read(path).unwrap() == read))
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn files_read_and_seek() {
    let image = image("verity-enc");
    let target = Target::builder().key(&key()).open(image.path()).unwrap();
    let path = verity_files(&target).into_iter().max_by_key(|path| target.metadata(path).unwrap().len()).unwrap();
    let whole = target.read(&path).unwrap();
    let mut file = target.open_file(&path).unwrap();
    assert_eq!(*file.trusted().unwrap().trust(), Trust::SelfConsistent);
    assert_eq!(file.len(), whole.len() as u64);
    let mut read = Vec::new();
    file.read_to_end(&mut read).unwrap();
    assert_eq!(read, whole);
    assert_eq!(file.seek(SeekFrom::End(-10)).unwrap(), file.len() - 10);
    let mut end = [0; 10];
    file.read_exact(&mut end).unwrap();
    assert_eq!(end, whole[whole.len() - 10..]);
    file.seek(SeekFrom::Current(-10)).unwrap();
    assert!(file.seek(SeekFrom::Current(i64::MIN)).is_err());
    let mut middle = [0; 100];
    file.read_exact_at(&mut middle, 1000).unwrap();
    assert_eq!(middle, whole[1000..1100]);
    assert_eq!(file.read_exact_at(&mut middle, file.len() - 1).unwrap_err().kind(), ErrorKind::Io);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let read = runtime.block_on(file.read_range(7, 5000)).unwrap().to_vec();
    assert_eq!(read, whole[7..5007.min(whole.len())]);
}

/// What is not there is the same error from every call.
#[test]
fn what_is_not_there() {
    let image = image("verity");
    let target = Target::open(image.path()).unwrap();
    for path in ["/nowhere", "v/nowhere", "/v/nowhere/deeper"] {
        let errors = [
            target.read(path).map(drop),
            target.open_file(path).map(drop),
            target.walk(path).map(drop),
            target.read_dir(path).map(drop),
            target.metadata(path).map(drop),
            target.symlink_metadata(path).map(drop),
            target.read_link(path).map(drop),
            target.xattrs(path).map(drop),
            target.canonicalize(path).map(drop),
        ];
        let all: Vec<_> = errors.into_iter().map(|error| error.unwrap_err()).collect();
        assert!(all.iter().all(|error| error.kind() == ErrorKind::NotFound), "{all:?}");
        assert!(all.iter().all(|error| error.to_string() == all[0].to_string()), "{all:?}");
    }
    assert_eq!(target.read("/v/nowhere").unwrap_err().to_string(), "/v/nowhere: no such file");
    let image = image_locked();
    let target = Target::open(image.path()).unwrap();
    assert_eq!(target.read("/enc/nowhere").unwrap_err().kind(), ErrorKind::Key);
}

fn image_locked() -> NamedTempFile {
    image("verity-enc")
}

#[test]
fn trusted_digests_are_compared_before_any_byte() {
    let image = image("verity");
    let target = Target::open(image.path()).unwrap();
    let digest = |path: &Path| *target.open_file(path).unwrap().trusted().unwrap().file_digest();
    let path = verity_files(&target).into_iter().find(|path| target.metadata(path).unwrap().len() > 4096).unwrap();
    let right: FileDigest = digest(&path);
    let with = |digest| Target::builder().digest(&path, digest).require_digests(true).open(image.path()).unwrap();
    assert_eq!(*with(right).open_file(&path).unwrap().trusted().unwrap().trust(), Trust::Digest);
    let text = right.to_string();
    let flipped = if text.ends_with('0') { "1" } else { "0" };
    let wrong: FileDigest = [&text[..text.len() - 1], flipped].concat().parse().unwrap();
    assert_ne!(right, wrong);
    assert_eq!(with(wrong).read(&path).unwrap_err().kind(), ErrorKind::Corrupt);
    let other = verity_files(&target).into_iter().find(|other| *other != path).unwrap();
    assert_eq!(with(right).read(&other).unwrap_err().kind(), ErrorKind::Corrupt);
    // A digest for what has no fs-verity at all.
    let list = TrustedDigests::only(right);
    let without = Target::builder().trusted(list).open(image.path()).unwrap();
    let plain =
        without.walk("/").unwrap().map(Result::unwrap).find(|e| e.metadata().is_file() && !e.metadata().is_verity());
    if let Some(plain) = plain {
        assert_eq!(without.read(plain.path()).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

/// A flipped bit ends the read with the bytes before it, and is never read.
#[test]
fn a_corrupt_block_is_an_error() {
    let image = image("verity");
    let target = Target::open(image.path()).unwrap();
    let stored_at = |path: &PathBuf| {
        let inode = target.metadata(path).unwrap().inode().clone();
        let extents = target.image().fs().extents(&inode).unwrap();
        let extent = extents.iter().find(|e| e.logical <= 8192 && 8192 < e.end().min(inode.size))?;
        (extent.kind == ExtentKind::Written).then_some((extent.physical + 8192 - extent.logical) as usize)
    };
    let found = verity_files(&target).into_iter().find_map(|path| Some((stored_at(&path)?, path)));
    let (at, path) = found.unwrap();
    let whole = target.read(&path).unwrap();
    let mut bytes = std::fs::read(image.path()).unwrap();
    bytes[at + 5] ^= 1;
    std::fs::write(image.path(), bytes).unwrap();
    let target = Target::open(image.path()).unwrap();
    assert_eq!(target.read(&path).map(drop).unwrap_err().kind(), ErrorKind::Corrupt);
    let mut file = target.open_file(&path).unwrap();
    let mut read = Vec::new();
    let error = file.read_to_end(&mut read).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    assert_eq!(read, whole[..8192]);
}

#[test]
fn options_that_make_no_sense() {
    let image = image("verity");
    let kind = |builder: postread::Builder| builder.open(image.path()).unwrap_err().kind();
    assert_eq!(kind(Target::builder().key(b"short")), ErrorKind::InvalidInput);
    assert_eq!(kind(Target::builder().offset(1 << 60)), ErrorKind::InvalidInput);
    assert_eq!(kind(Target::builder().partition(3)), ErrorKind::NotFound);
    assert_eq!(kind(Target::builder().piece(image.path())), ErrorKind::InvalidInput);
    assert_eq!(kind(Target::builder().fscrypt_metadata("/proc/self").passphrase(b"x")), ErrorKind::NotFound);
    assert_eq!(kind(Target::builder().passphrase(b"x")), ErrorKind::Key);
    assert_eq!(Target::open("/proc/self/nothing").unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(Target::open("/dev/null").unwrap_err().kind(), ErrorKind::InvalidInput);
    let mut keys = Keys::new();
    assert!(keys.add_hardware_wrapped(&[0; 31]).is_err() && keys.is_empty());
}

/// Runs an example. `cargo test` builds them all before it runs any test.
fn example(name: &str, args: &[&Path]) -> Output {
    let deps = std::env::current_exe().unwrap();
    let program = deps.parent().unwrap().parent().unwrap().join("examples").join(name);
    Command::new(&program).args(args).output().unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

#[test]
fn the_examples_run() {
    let image = image("verity-enc");
    let target = Target::builder().key(&key()).open(image.path()).unwrap();
    let path = verity_files(&target).pop().unwrap();
    let output = example("encrypted_image", &[image.path(), &images().join("key64.bin"), &path]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, target.read(&path).unwrap());
    let output = example("encrypted_image", &[image.path(), &images().join("key32.bin"), &path]);
    assert!(!output.status.success() && output.stdout.is_empty());
    let output = example("list_image", &[image.path()]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("/enc\n"), "{output:?}");
}
