//! The fs-verity ioctls against a real kernel: this test runs its own binary again in a kernel that has fs-verity.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::Command;

use postread_sys::fsverity::{
    Cause, Enable, Error, Metadata, enable, is_verity, measure, read_all_metadata, read_metadata,
};
use postread_tests::{kernel_oracle, require_tool, run};

/// Names the directory that holds the guest's file systems, in the guest only.
const GUEST: &str = "POSTREAD_TEST_GUEST";

const SCRIPT: &str = r#"
set -eu
for options in "verity -O verity" "plain"; do
    set -- $options; name=$1; shift
    truncate -s 16M /tmp/$name.img
    mkfs.ext4 -q -F -b 4096 "$@" /tmp/$name.img
    mkdir /tmp/$name
    mount -o loop /tmp/$name.img /tmp/$name
done
cd /tmp
POSTREAD_TEST_GUEST=/tmp POSTREAD_REQUIRE_ALL=1 RUST_BACKTRACE=1 /mnt/out/test --exact in_the_guest --nocapture
"#;

#[test]
fn against_a_kernel_that_has_it() {
    if std::env::var_os(GUEST).is_some() {
        return;
    }
    if require_tool("fsverity").is_none() {
        return;
    }
    let Some(guest) = kernel_oracle(SCRIPT, &[("test", &std::env::current_exe().unwrap())]) else { return };
    assert!(guest.log.contains("1 passed") && guest.log.contains("CHECKED IN THE GUEST"), "{}", guest.log);
}

/// Does nothing outside the guest: the test above runs it there, and checks that it ran.
#[test]
fn in_the_guest() {
    let Some(dir) = std::env::var_os(GUEST) else { return };
    let dir = Path::new(&dir);
    good_files(&dir.join("verity"));
    refusals(dir);
    println!("CHECKED IN THE GUEST");
}

fn good_files(dir: &Path) {
    for (i, (len, hash_algorithm, salt)) in
        [(0, 1, &[][..]), (1, 1, &[]), (4096, 1, &[]), (1_000_000, 1, b"pepper"), (600_000, 2, &[9; 32])]
            .into_iter()
            .enumerate()
    {
        let path = dir.join(format!("f{i}"));
        fs::write(&path, (0..len).map(|b| (b % 251) as u8).collect::<Vec<_>>()).unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(is_verity(&file).unwrap(), Some(false));
        enable(&file, &Enable { hash_algorithm, salt, ..Enable::default() }).unwrap();
        assert_eq!(is_verity(&file).unwrap(), Some(true));

        let alg = ["", "sha256", "sha512"][hash_algorithm as usize];
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let measured = measure(&file).unwrap();
        assert_eq!(u32::from(measured.hash_algorithm), hash_algorithm);
        let output = run(Command::new("fsverity").arg("measure").arg(&path));
        let expected = format!("{alg}:{} {}\n", hex(&measured.digest), path.display());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);

        for (kind, name) in [(Metadata::MerkleTree, "merkle_tree"), (Metadata::Descriptor, "descriptor")] {
            let ours = read_all_metadata(&file, kind, 1 << 20).unwrap();
            let theirs = run(Command::new("fsverity").args(["dump_metadata", name]).arg(&path)).stdout;
            assert!(ours == theirs, "{name} of file {i}");
            let mut one = [0];
            assert_eq!(read_metadata(&file, kind, ours.len() as u64, &mut one).unwrap(), 0);
            if ours.len() > 100 {
                assert_eq!((read_metadata(&file, kind, 99, &mut one).unwrap(), one[0]), (1, ours[99]));
                assert_eq!(cause(read_all_metadata(&file, kind, 100)), Cause::TooLarge);
            }
        }
        assert_eq!(cause(read_all_metadata(&file, Metadata::Signature, 1 << 20)), Cause::NotVerity, "no signature");
        assert_eq!(cause(enable(&file, &Enable::default())), Cause::AlreadyEnabled);
    }
}

fn refusals(dir: &Path) {
    let verity = dir.join("verity");
    let file = |path: &Path| {
        fs::write(path, "data").unwrap();
        File::open(path).unwrap()
    };
    let plain = file(&verity.join("plain"));
    assert_eq!(cause(measure(&plain)), Cause::NotVerity);
    assert_eq!(cause(read_all_metadata(&plain, Metadata::Descriptor, 1 << 20)), Cause::NotVerity);
    let wrong = |parameters: Enable<'_>| cause(enable(&plain, &parameters));
    assert_eq!(wrong(Enable { hash_algorithm: 77, ..Enable::default() }), Cause::InvalidParameters);
    assert_eq!(wrong(Enable { block_size: 3000, ..Enable::default() }), Cause::InvalidParameters);
    assert_eq!(wrong(Enable { salt: &[0; 33], ..Enable::default() }), Cause::TooLong);
    assert_eq!(wrong(Enable { signature: &[0; 20_000], ..Enable::default() }), Cause::TooLong);
    {
        let _writer = OpenOptions::new().write(true).open(verity.join("plain")).unwrap();
        assert_eq!(wrong(Enable::default()), Cause::OpenForWriting);
    }
    assert_eq!(cause(enable(&File::open(&verity).unwrap(), &Enable::default())), Cause::NotRegular);

    let off = file(&dir.join("plain/f"));
    assert_eq!(cause(enable(&off, &Enable::default())), Cause::FeatureOff);
    assert_eq!(cause(measure(&off)), Cause::FeatureOff);
    let tmpfs = file(&dir.join("f"));
    assert_eq!(cause(enable(&tmpfs, &Enable::default())), Cause::NotSupported);
    assert_eq!(cause(measure(&tmpfs)), Cause::NotSupported);

    run(Command::new("mount").args(["-o", "remount,ro"]).arg(&verity));
    assert_eq!(wrong(Enable::default()), Cause::ReadOnly);
}

fn cause<T: std::fmt::Debug>(result: Result<T, Error>) -> Cause {
    result.unwrap_err().cause
}
