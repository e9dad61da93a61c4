//! What the tests share.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sha2::{Digest, Sha256};

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

pub(crate) fn stored(file: &str) -> PathBuf {
    repository().join("tests/images/fscrypt").join(file)
}

pub(crate) fn text_of(file: &str) -> String {
    fs::read_to_string(stored(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The image, unpacked into `dir` as `NAME.img`.
pub(crate) fn unpack(dir: &Path, name: &str) -> String {
    let image = postread_tests::unpack_image(&stored(&format!("{name}.img.zst")));
    let file = format!("{name}.img");
    fs::copy(image.path(), dir.join(&file)).unwrap();
    file
}

pub(crate) fn key(file: &str) -> String {
    repository().join("tests/images").join(file).to_str().unwrap().to_owned()
}

/// Every image with an encrypted tree, and its key as an option.
pub(crate) fn encrypted(dir: &Path) -> Vec<(&'static str, String)> {
    // The v1 images of the 64-byte key are of its whole, the others of its first 32 bytes.
    let (key64, key32) = (key("key64.bin"), key("key32.bin"));
    fs::write(dir.join("k64"), fs::read(&key64).unwrap()).unwrap();
    let plain64 = [
        "xts-pad4",
        "xts-pad8",
        "xts-pad16",
        "xts-pad32",
        "lblk64",
        "lblk32",
        "no-extents",
        "inline-data",
        "bigalloc",
        "data-unit-512",
        "casefold-enc",
        "verity-enc",
    ];
    let plain32 = ["cbc128", "adiantum", "direct", "verity-adiantum"];
    let v1 = ["v1-cbc", "v1-adiantum", "v1-direct"];
    let mut all: Vec<_> = plain64.into_iter().map(|name| (name, key64.clone())).collect();
    all.extend(plain32.into_iter().map(|name| (name, key32.clone())));
    all.extend(v1.into_iter().map(|name| (name, format!("0000111122223333={key32}"))));
    all.push(("v1-xts", format!("0000111122223333={key64}")));
    all
}

pub(crate) fn postread(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_postread")).current_dir(dir).args(args).output().unwrap()
}

/// Copies the program to where any user may run it. Another process does: a file that this one has open to write may be
/// inherited by what another test starts just then, and can't be run as long as that has it.
pub(crate) fn copy_program(to: &Path) {
    postread_tests::run(Command::new("cp").arg(env!("CARGO_BIN_EXE_postread")).arg(to));
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The output's text, if the exit status is the one wanted.
#[track_caller]
pub(crate) fn expect(output: &Output, status: i32) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(status), "{text}{}", stderr(output));
    text
}

/// A tree as `tests/images/tree` lists it.
pub(crate) fn manifest(dir: &Path) -> String {
    let (mut files, mut links) = (Vec::new(), Vec::new());
    collect(dir, Path::new("."), &mut files, &mut links);
    files.sort();
    links.sort();
    let lines = files.into_iter().chain(links).map(|(path, line)| format!("{line} {path}\n"));
    lines.collect()
}

type Lines = Vec<(String, String)>;

fn collect(top: &Path, at: &Path, files: &mut Lines, links: &mut Lines) {
    for entry in fs::read_dir(top.join(at)).unwrap() {
        let entry = entry.unwrap();
        let path = at.join(entry.file_name());
        let name = String::from_utf8(path.as_os_str().as_bytes().to_vec()).unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            collect(top, &path, files, links);
        } else if kind.is_symlink() {
            links.push((name, format!("link {}", fs::read_link(entry.path()).unwrap().display())));
        } else {
            let bytes = fs::read(entry.path()).unwrap();
            files.push((name, format!("file {} {}", bytes.len(), hex::encode(Sha256::digest(&bytes)))));
        }
    }
}

/// Flips a bit of a file of an image, by where the image's extents have it.
pub(crate) fn flip(image: &Path, path: &str, logical: u64, key: Option<&[u8]>) {
    let mut bytes = fs::read(image).unwrap();
    let (fs, inode) = locate(&bytes, path, key);
    let extents = fs.extents(&inode).unwrap();
    let extent = extents.iter().find(|e| e.logical <= logical && logical < e.end()).unwrap();
    bytes[(extent.physical + logical - extent.logical) as usize] ^= 0x10;
    std::fs::write(image, bytes).unwrap();
}

/// A file of an image, found with the library.
pub(crate) fn locate(
    bytes: &[u8],
    path: &str,
    key: Option<&[u8]>,
) -> (postread_fsimage::ext4::Ext4, postread_fsimage::ext4::Inode) {
    let image = open(bytes, key);
    let inode = image.resolve(path.as_bytes()).unwrap();
    (image.fs().clone(), inode)
}

pub(crate) fn open(bytes: &[u8], key: Option<&[u8]>) -> postread::image::Image {
    let mut keyring = postread_fscrypt::Keyring::new();
    if let Some(key) = key {
        keyring.add(postread_fscrypt::MasterKey::new(key).unwrap());
    }
    let bytes = std::sync::Arc::new(bytes.to_vec());
    let data = std::sync::Arc::new(postread_io::ReadAtSource::new(bytes.clone()));
    postread::image::Image::open(bytes, data, 0, keyring, Default::default()).unwrap()
}

/// Changes an image by requests of `debugfs`. None where that is missing.
pub(crate) fn debugfs(dir: &Path, image: &str, requests: &[&str]) -> Option<()> {
    let debugfs = postread_tests::require_tool("debugfs")?;
    for request in requests {
        let output = Command::new(&debugfs).current_dir(dir).args(["-w", "-R", request, image]).output().unwrap();
        // It ends with 0 whatever fails: errors are on standard error, after the line of its version.
        assert!(output.status.success() && stderr(&output).lines().count() <= 1, "{request}: {}", stderr(&output));
    }
    Some(())
}

/// What may stand in the place of `/v/f4096` once that is removed: requests of `debugfs`, with a file `evil` at hand.
pub(crate) const IN_PLACE: [&[&str]; 5] = [
    &["write evil /v/evil", "symlink /v/f4096 evil"],
    &["mkdir /v/f4096"],
    &["mknod /v/f4096 p"],
    &["mknod /v/f4096 c 1 5"],
    &["write evil /v/f4096"],
];

/// Puts a link in the place of a directory above a listed file.
pub(crate) const LINK_ABOVE: &[&str] = &["rm /v/sub/deep/er/leaf", "rmdir /v/sub/deep/er", "symlink /v/sub/deep/er .."];
