//! Directories that fold case: a kernel says which names it takes for one (`images/make-casefold`), and what it hashes
//! encrypted ones to.

use std::path::Path;
use std::sync::Arc;

use postread::image::{Follow, Image, ImageError, Names};
use postread_fscrypt::{Keyring, MasterKey, NameKey, dirhash};
use postread_fsimage::ext4::{DirHash, Options, casefold, casefold_for_hash};
use postread_io::MemorySource;
use postread_tests::{Random, emulator_oracle, require_tool, seed, unpack_image};

fn keyring() -> Keyring {
    let bytes: Vec<u8> = (0..64u8).map(|i| i.wrapping_mul(7).wrapping_add(1)).collect();
    let mut keyring = Keyring::new();
    keyring.add(MasterKey::new(&bytes).unwrap());
    keyring
}

fn open(bytes: Vec<u8>) -> Image {
    let data = Arc::new(MemorySource::new(bytes.clone()));
    Image::open(Arc::new(bytes), data, 0, keyring(), Options::default()).unwrap()
}

fn image(name: &str) -> Image {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("images/{name}.img.zst"));
    open(std::fs::read(unpack_image(&path).path()).unwrap())
}

/// Every pair of names is one here where it is one for the kernel.
#[test]
fn names_are_found_as_the_kernel_finds_them() {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("images/casefold/lookups");
    let list = std::fs::read_to_string(list).unwrap();
    let images = ["plain", "strict", "encrypted"].map(|name| (name, image(&format!("casefold/{name}"))));
    assert_eq!(images.each_ref().map(|(_, i)| i.fs().superblock().encoding.unwrap().is_strict()), [false, true, false]);
    let (mut found, mut not_found) = (0, 0);
    for line in list.lines() {
        let fields: Vec<&str> = line.splitn(6, ' ').collect();
        let [made, wanted] = [fields[0], fields[1]].map(|name| hex::decode(name).unwrap());
        for ((name, image), verdict) in images.iter().zip(&fields[2..5]) {
            let what = format!("{name}: {line}");
            let entry = image.lookup(&image.resolve(b"/d").unwrap(), &wanted).unwrap();
            assert_eq!(entry.as_ref().map(|entry| &entry.name), (*verdict == "1").then_some(&made), "{what}");
            // The same by a path, whose own part folds as well; the root does not.
            let path = [b"/d/", &wanted[..]].concat();
            match image.find(&path, Follow::None) {
                Ok(there) => {
                    assert_eq!(
                        (Some(there.inode.ino), there.path),
                        (entry.map(|e| e.ino), [b"/d/", &made[..]].concat()),
                        "{what}"
                    );
                    found += 1;
                }
                Err(error) => {
                    assert!(matches!(error, ImageError::NotFound { .. }) && *verdict != "1", "{what}: {error}");
                    not_found += 1;
                }
            }
        }
    }
    assert!(found > 1000 && not_found > 300, "{found} {not_found}");
    assert!(images.iter().all(|(_, image)| image.resolve(b"/D").is_err()));
}

#[test]
fn without_the_key_names_are_exact() {
    let image = image("casefold/encrypted").with_keys(Keyring::new());
    let dir = image.resolve(b"/d").unwrap();
    let entries: Vec<_> = image.read_dir(&dir).unwrap().map(|entry| entry.unwrap()).collect();
    assert!(entries.len() > 400);
    for entry in entries.iter().take(50) {
        assert!(entry.no_key);
        assert_eq!(image.lookup(&dir, &entry.name).unwrap().unwrap().ino, entry.ino);
        let other = entry.name.to_ascii_lowercase();
        assert!(other == entry.name || image.lookup(&dir, &other).unwrap().is_none());
    }
}

/// Compares the hash beside every entry of the directory with ours, and gives the names.
fn check_hashes(image: &Image, dir: &[u8]) -> Vec<Vec<u8>> {
    let dir = image.resolve(dir).unwrap();
    let context = image.context(&dir).unwrap().unwrap();
    let keys = keyring();
    let master = keys.find(&context.policy).unwrap();
    let Names::Decrypted(key) = image.names(&dir).unwrap() else { panic!("the key is there") };
    let key: &NameKey = &key;
    let entries = image.fs().read_dir(&dir).unwrap();
    let names = entries.map(|entry| {
        let entry = entry.unwrap();
        let name = key.decrypt_name(&entry.name).unwrap();
        let ours = dirhash(master, &context, &casefold_for_hash(&name));
        assert_eq!(DirHash::from_siphash(ours), entry.hash.unwrap(), "{}", name.escape_ascii());
        name
    });
    names.collect()
}

#[test]
fn stored_hashes_are_those_of_the_folded_names() {
    assert!(check_hashes(&image("casefold/encrypted"), b"/d").len() > 400);
    let image = image("fscrypt/casefold-enc");
    for dir in [&b"/enc"[..], b"/enc/many", b"/enc/sub/deep"] {
        assert!(!check_hashes(&image, dir).is_empty());
    }
}

/// Names with every code point there is, and such as move marks, fold to what the kernel hashes.
#[test]
fn the_whole_code_space_folds_as_the_kernel_folds_it() {
    let (Some(_), Some(_)) = (require_tool("xfs_io"), require_tool("perl")) else { return };
    let mut random = Random::new(seed());
    let mut names: Vec<Vec<u8>> = Vec::new();
    let add =
        |names: &mut Vec<Vec<u8>>, rest: &[u8]| names.push([format!("A{:05x}", names.len()).as_bytes(), rest].concat());
    let everything: Vec<char> = ('\u{1}'..=char::MAX).filter(|c| *c != '/').collect();
    let mut rest = String::new();
    for &c in &everything {
        if rest.len() + c.len_utf8() > 249 {
            add(&mut names, rest.as_bytes());
            rest.clear();
        }
        rest.push(c);
    }
    add(&mut names, rest.as_bytes());
    // Those that do something by themselves, in any order, with and without bytes that are no UTF-8.
    let active: Vec<char> = everything
        .into_iter()
        .filter(|c| !c.is_ascii() && casefold(c.to_string().as_bytes()).unwrap() != c.to_string().as_bytes())
        .chain(('\u{300}'..'\u{370}').chain(['a', 'İ', '\u{5b0}', '\u{1dfa}', '\u{378}', '\u{a7c7}']))
        .filter(|c| !('\u{ac00}'..='\u{d7a3}').contains(c) || *c < '\u{ac40}')
        .collect();
    assert!(active.len() > 6000, "{}", active.len());
    for i in 0..3000 {
        let mut name = Vec::new();
        for _ in 0..random.below(30) {
            let c = if random.below(2) == 0 {
                char::from_u32(0x300 + random.below(0x70) as u32).unwrap()
            } else {
                active[random.below(active.len())]
            };
            name.extend_from_slice(c.to_string().as_bytes());
            if i % 3 == 0 && random.below(4) == 0 {
                name.push(0x80 + random.below(0x40) as u8);
            }
            if i % 5 == 0 && random.below(20) == 0 {
                name.push(0xc0 + random.below(0x40) as u8);
            }
        }
        add(&mut names, &name);
    }
    let list = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(list.path(), names.join(&0)).unwrap();
    let key: String = (0..64u32).map(|i| format!("\\x{:02x}", (i * 7 + 1) & 255)).collect();
    let script = format!(
        r#"set -eu; cd /tmp; mkdir m; truncate -s 32M i.img
mkfs.ext4 -q -b 4096 -N 64 -O encrypt,casefold,^has_journal -E encoding=utf8 i.img; mount -o loop i.img m
id=$(printf '{key}' | xfs_io -c add_enckey m | awk '{{print $NF}}'); mkdir m/d; chattr +F m/d
xfs_io -c "set_encpolicy -v 2 -c 1 -n 4 -f 3 $id" m/d; echo x > m/d/first
perl -e '$/ = "\0"; while (<STDIN>) {{ chomp; link("m/d/first", "m/d/$_") or die "$_: $!" }}' < /mnt/out/names
umount m; cp --sparse=always i.img /mnt/out/"#
    );
    // Since 6.14 Linux decrypts every name of the directory before it makes one that is not there.
    let Some(run) = emulator_oracle(&script, &[("names", list.path())]) else { return };
    let mut found = check_hashes(&open(std::fs::read(run.dir().join("i.img")).unwrap()), b"/d");
    names.push(b"first".to_vec());
    names.sort();
    found.sort();
    assert!(found == names);
}
