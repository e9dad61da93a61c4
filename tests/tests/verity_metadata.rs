//! xfstests generic/624 and 625, and 577's stored signatures: the tree, the descriptor and the signature that a kernel
//! gives of a file by `FS_IOC_READ_VERITY_METADATA` are those that lie in its image, read whole and in odd pieces.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use postread::image::Image;
use postread::{Engine, EngineConfig, Plan, QueuePolicy};
use postread_fscrypt::Keyring;
use postread_fsimage::ext4::Options;
use postread_io::MemorySource;
use postread_tests::{kernel_oracle, require_tool, run};
use postread_verity::signature::{Certificate, SigningKey, sign, verify};
use postread_verity::{Descriptor, HashAlg, MerkleTreeParams, NoTree, TreeBuilder};

/// Files, their sizes and how they are protected.
const FILES: [(&str, usize, &str); 6] = [
    ("empty", 0, ""),
    ("block", 4000, ""),
    ("level", 300_000, "--salt=0102030405060708"),
    ("levels", 1_500_000, ""),
    ("wide", 700_000, "--hash-alg=sha512"),
    ("signed", 20_000, "--salt=ff --signature=/mnt/out/signature"),
];

fn read(engine: &Engine, plan: Plan, piece: usize) -> Vec<u8> {
    let (len, reader) = (plan.len() as usize, engine.open(plan).reader());
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let mut buf = vec![0; piece.min(len - bytes.len())];
        let n = reader.read_at(&mut buf, bytes.len() as u64).unwrap();
        assert_ne!(n, 0);
        bytes.extend_from_slice(&buf[..n]);
    }
    bytes
}

#[test]
fn metadata_is_what_the_kernel_gives() {
    let Some(openssl) = require_tool("openssl") else { return };
    let (Some(_), Some(_)) = (require_tool("fsverity"), require_tool("perl")) else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let request = "req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=tests -keyout key -out pem";
    run(Command::new(&openssl).args(request.split(' ')).current_dir(dir.path()));
    run(Command::new(&openssl).args("x509 -in pem -outform DER -out der".split(' ')).current_dir(dir.path()));
    let text = |name: &str| std::fs::read_to_string(at(name)).unwrap();
    let certificate = Certificate::from_pem(&text("pem")).unwrap();
    let contents = |size: usize| -> Vec<u8> { (0..size).map(|i| (i % 251) as u8 ^ (i / 4096) as u8).collect() };
    // Signed here, and the kernel takes it.
    let mut builder = TreeBuilder::new(MerkleTreeParams::new(HashAlg::Sha256, 4096, &[0xff]).unwrap(), NoTree);
    builder.push(&contents(20_000)).unwrap();
    let digest = builder.finish().unwrap().0.descriptor().file_digest();
    let signature = sign(&digest, &SigningKey::from_pem(&text("key")).unwrap(), &certificate).unwrap();
    std::fs::write(at("signature"), &signature).unwrap();
    let mut files = vec![("signature".to_owned(), at("signature")), ("der".to_owned(), at("der"))];
    let mut script = String::from(
        r#"set -eu; cd /tmp; mkdir m; truncate -s 64M i.img; mkfs.ext4 -q -b 4096 -O verity,^has_journal i.img; mount -o loop i.img m
perl -e 'open my $keys, "<", "/proc/keys"; my ($ring) = map { /^(\w+).* \.fs-verity:/ ? hex $1 : () } <$keys>;
  open my $file, "<:raw", "/mnt/out/der"; local $/; my $der = <$file>; my ($type, $none) = ("asymmetric", "");
  syscall(248, $type, $none, $der, length $der, $ring) > 0 or die "add_key: $!"'
"#,
    );
    for (name, size, options) in FILES {
        std::fs::write(at(name), contents(size)).unwrap();
        files.push((name.to_owned(), at(name)));
        script += &format!("cp /mnt/out/{name} m/; fsverity enable m/{name} {options}\n");
        script += &format!("fsverity measure m/{name} > /mnt/out/{name}.digest\n");
        for kind in ["merkle_tree", "descriptor"] {
            script += &format!("fsverity dump_metadata {kind} m/{name} > /mnt/out/{name}.{kind}\n");
        }
    }
    script += "fsverity dump_metadata signature m/signed > /mnt/out/signed.signature\n";
    script += "umount m; cp --sparse=always i.img /mnt/out/";
    let files: Vec<(&str, &Path)> = files.iter().map(|(name, path)| (name.as_str(), path.as_path())).collect();
    let Some(oracle) = kernel_oracle(&script, &files) else { return };

    let theirs = |name: &str| std::fs::read(oracle.dir().join(name)).unwrap();
    let bytes = theirs("i.img");
    let data = Arc::new(MemorySource::new(bytes.clone()));
    let image = Image::open(Arc::new(bytes), data, 0, Keyring::new(), Options::default()).unwrap();
    let engine = Engine::new(EngineConfig::new().policy(QueuePolicy::UNBOUND)).unwrap();
    for (name, size, _) in FILES {
        let inode = image.resolve(name.as_bytes()).unwrap();
        let verity = image.verity(&inode).unwrap().unwrap();
        let measured = String::from_utf8(theirs(&format!("{name}.digest"))).unwrap();
        assert_eq!(verity.digest().to_string(), measured.split(' ').next().unwrap());
        let descriptor = theirs(&format!("{name}.descriptor"));
        assert_eq!(Descriptor::parse(&descriptor).unwrap().file_digest(), verity.digest());
        assert_eq!(descriptor, verity.descriptor.to_bytes(), "{name}");
        let tree = theirs(&format!("{name}.merkle_tree"));
        assert_eq!(tree.len() > 4096, size > 512 << 10);
        let tree_plan = verity.tree_plan().unwrap();
        let verity = verity.self_consistent();
        for piece in [1 << 20, 997, 13] {
            assert!(read(&engine, tree_plan.clone(), piece) == tree, "{name} by {piece}");
            if size < 100_000 || piece > 13 {
                assert!(read(&engine, verity.plan().unwrap().0, piece) == contents(size), "{name} by {piece}");
            }
        }
    }
    let inode = image.resolve(b"signed").unwrap();
    let verity = image.verity(&inode).unwrap().unwrap();
    assert!(verity.descriptor.signature() == Some(&signature[..]) && theirs("signed.signature") == signature);
    verify(verity.descriptor.signature().unwrap(), &verity.digest(), &[certificate]).unwrap();
}
