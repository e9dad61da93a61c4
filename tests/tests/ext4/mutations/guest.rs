//! The kernel's side: this test program runs again in a guest, mounts one damaged image after the other, and writes down
//! what it finds.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::found::by_kernel;

/// Set in the guest only.
const GUEST: &str = "POSTREAD_TEST_MUTATIONS";

/// The script that runs it. `dmesg` keeps the kernel's complaints off the console, which is slow.
pub(super) const SCRIPT: &str = "dmesg -n 1; mkdir /tmp/m; cd /tmp
POSTREAD_TEST_MUTATIONS=1 POSTREAD_REQUIRE_ALL=0 /mnt/out/test --exact mutations::guest::in_the_guest --nocapture";

/// Images between two synchronisations of what was found, which a crash of the kernel loses.
const SYNC_EVERY: usize = 20;

#[test]
fn in_the_guest() {
    if std::env::var_os(GUEST).is_none() {
        return;
    }
    let out = Path::new("/mnt/out");
    let mut found = File::options().append(true).create(true).open(out.join("found")).unwrap();
    let mut console = File::options().write(true).open("/dev/console").unwrap();
    let mut loops: Vec<Option<(File, String)>> = Vec::new();
    for (i, line) in fs::read_to_string(out.join("damage")).unwrap().lines().enumerate() {
        let mut parts = line.split(' ');
        let number = parts.next().unwrap();
        let base: usize = parts.next().unwrap().parse().unwrap();
        writeln!(console, "image {number}").unwrap();
        loops.resize_with(loops.len().max(base + 1), || None);
        let (file, device) = loops[base].get_or_insert_with(|| attach(out, base));
        let mut undo = Vec::new();
        for write in parts {
            let (at, value) = write.split_once(':').unwrap();
            let (at, value) = (at.parse().unwrap(), hex::decode(value).unwrap());
            let mut old = vec![0; value.len()];
            file.read_exact_at(&mut old, at).unwrap();
            undo.push((at, old));
            file.write_all_at(&value, at).unwrap();
        }
        let text = look(device);
        undo.into_iter().rev().for_each(|(at, old)| file.write_all_at(&old, at).unwrap());
        write!(found, "= {number} {}\n{text}", if text.is_empty() { "refused" } else { "mounted" }).unwrap();
        if i % SYNC_EVERY == 0 {
            found.sync_all().unwrap();
        }
    }
    found.sync_all().unwrap();
}

/// A copy of a base in memory, and the read-only loop device with it.
fn attach(out: &Path, base: usize) -> (File, String) {
    let copy = format!("/tmp/base{base}");
    fs::copy(out.join(format!("base{base}")), &copy).unwrap();
    let device = Command::new("losetup").args(["-r", "-f", "--show", &copy]).output().unwrap();
    assert!(device.status.success(), "{device:?}");
    let mut file = File::options().read(true).write(true).open(&copy).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    (file, String::from_utf8(device.stdout).unwrap().trim().to_owned())
}

/// What the kernel finds in an image; nothing where it does not mount it.
fn look(device: &str) -> String {
    let options = "ro,noload,noatime,errors=continue";
    let mut mount = Command::new("mount");
    mount.args(["-t", "ext4", "-o", options, device, "/tmp/m"]).stderr(Stdio::null());
    if !mount.status().unwrap().success() {
        return String::new();
    }
    let text = by_kernel(Path::new("/tmp/m")).to_text();
    let unmounted = Command::new("umount").arg("/tmp/m").status().unwrap().success();
    assert!(unmounted, "{device} stays mounted");
    text
}
