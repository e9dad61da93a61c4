//! What the kernel's dm-crypt encrypts, we decrypt: LUKS of every cipher, and plain mappings of every IV mode.

use std::fs;

use postread_dmcrypt::{CipherSpec, Mapping};
use postread_tests::{Uml, noise, require_tool};

use crate::decrypt;

const LEN: usize = 64 << 10;

/// Version, cipher, bits of key, other options.
const LUKS: [(&str, &str, u32, &str); 12] = [
    ("luks1", "aes-cbc-essiv:sha256", 256, ""),
    ("luks1", "serpent-xts-plain64", 512, ""),
    ("luks1", "twofish-cbc-plain64", 256, ""),
    ("luks1", "xchacha12,aes-adiantum-plain64", 256, ""),
    ("luks2", "aes-xts-plain64", 512, "--sector-size 512"),
    ("luks2", "aes-xts-plain64", 256, "--sector-size 4096"),
    ("luks2", "serpent-cbc-essiv:sha256", 256, "--sector-size 1024"),
    ("luks2", "serpent-xts-plain64", 256, "--sector-size 4096"),
    ("luks2", "twofish-xts-plain64", 512, "--sector-size 2048"),
    ("luks2", "xchacha12,aes-adiantum-plain64", 256, "--sector-size 4096"),
    ("luks2", "xchacha20,aes-adiantum-plain64", 256, "--sector-size 512"),
    ("luks2", "aes-cbc-benbi", 128, ""),
];

#[test]
fn luks_of_every_cipher() {
    let (Some(uml), Some(_)) = (Uml::new(), require_tool("cryptsetup")) else { return };
    fs::write(uml.dir().join("plain"), noise(LEN, 1)).unwrap();
    let mut script = "set -ex\nprintf 'correct horse' > pass\n".to_owned();
    for (i, (version, cipher, bits, options)) in LUKS.iter().enumerate() {
        let small = if *version == "luks2" {
            "--luks2-metadata-size 16k --luks2-keyslots-size 512k --pbkdf pbkdf2"
        } else {
            ""
        };
        script += &format!(
            "truncate -s 3M image
             cryptsetup luksFormat -q --type {version} -c {cipher} -s {bits} {options} {small} --pbkdf-force-iterations 1000 image pass
             cryptsetup open --key-file pass image x
             dd if=/mnt/out/plain of=/dev/mapper/x bs=64k status=none conv=fsync
             cryptsetup close x
             cp --sparse=always image /mnt/out/{i}; rm image\n"
        );
    }
    let run = uml.run(&script).success();
    for (i, case) in LUKS.iter().enumerate() {
        let image = fs::read(run.dir().join(i.to_string())).unwrap();
        let (_, data) = decrypt(&image, b"correct horse", LEN);
        assert!(data == noise(LEN, 1), "{case:?}");
    }
}

/// Specification, bytes of key, IV offset, sector size, large sectors.
const PLAIN: [(&str, usize, u64, u32, bool); 17] = [
    ("aes-xts-plain64", 64, 0, 512, false),
    ("aes-xts-plain64", 64, 16, 4096, false),
    ("aes-xts-plain64", 48, 16, 4096, true),
    ("aes-xts-plain64be", 32, 4_294_967_290, 512, false),
    ("aes-cbc-plain", 16, 4_294_967_290, 512, false),
    ("aes-cbc-plain64", 16, 4_294_967_290, 512, false),
    ("aes-cbc-essiv:sha256", 24, 7, 512, false),
    ("aes-xts-essiv:sha256", 64, 8, 1024, false),
    ("aes-cbc-benbi", 32, 5, 512, false),
    ("aes-cbc-null", 32, 5, 512, false),
    ("aes:4-cbc-plain64", 128, 3, 512, false),
    ("aes:2-xts-plain64", 128, 0, 512, false),
    ("serpent-cbc-essiv:sha256", 32, 0, 512, false),
    ("twofish-xts-benbi", 64, 8, 2048, true),
    ("xchacha20,aes-adiantum-plain64", 32, 8, 4096, true),
    ("xchacha12,aes-adiantum-plain64be", 32, 9, 512, false),
    ("capi:xts(serpent)-plain64", 64, 0, 4096, false),
];

#[test]
fn plain_mappings_of_every_iv_mode() {
    let (Some(uml), Some(_)) = (Uml::new(), require_tool("dmsetup")) else { return };
    fs::write(uml.dir().join("plain"), noise(LEN, 1)).unwrap();
    let mut script =
        "set -ex\nexport DM_DISABLE_UDEV=1\ntruncate -s 128K image\nloop=$(losetup -f --show image)\n".to_owned();
    for (i, (spec, key, iv_offset, size, large)) in PLAIN.iter().enumerate() {
        let large = if *large { " iv_large_sectors" } else { "" };
        let options = format!("{} sector_size:{size}{large}", if large.is_empty() { 1 } else { 2 });
        let key = hex::encode(noise(*key, i as u64));
        script += &format!(
            "dmsetup create x --table \"0 128 crypt {spec} {key} {iv_offset} $loop 16 {options}\"
             dd if=/mnt/out/plain of=/dev/mapper/x bs=64k status=none conv=fsync
             [ -b /dev/mapper/x ]; dmsetup remove --retry x
             sync; dd if=image of=/mnt/out/{i} bs=8k skip=1 count=8 status=none\n"
        );
    }
    let run = uml.run(&script).success();
    for (i, case @ (spec, key, iv_offset, size, large)) in PLAIN.iter().enumerate() {
        let spec: CipherSpec = spec.parse().unwrap();
        let mapping = Mapping::new(&spec, &noise(*key, i as u64)).unwrap().with_sector_size(*size).unwrap();
        let mapping = mapping.with_iv_large_sectors(*large).with_iv_offset(*iv_offset);
        let encrypted = fs::read(run.dir().join(i.to_string())).unwrap();
        let mut data = encrypted.clone();
        mapping.decrypt(&mut data, 0).unwrap();
        assert!(data == noise(LEN, 1), "{case:?}");
        mapping.encrypt(&mut data, 0).unwrap();
        assert!(data == encrypted, "{case:?}");
        // From the middle on.
        let mut data = encrypted[LEN / 2..].to_vec();
        mapping.decrypt(&mut data, LEN as u64 / 2 / 512).unwrap();
        assert!(data == noise(LEN, 1)[LEN / 2..], "{case:?}");
    }
}
