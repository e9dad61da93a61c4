//! The helpers themselves.

use std::process::Command;

use postread_tests::{Mount, Uml, require, require_root, require_tool, run, unpack_image};
use tempfile::TempDir;

#[test]
fn images_are_unpacked_as_zstd_packed_them() {
    let Some(zstd) = require_tool("zstd") else { return };
    let dir = TempDir::new().unwrap();
    for (name, len, data) in
        [("empty", 0, 0..0), ("holes", 1_000_001, 300_000..300_100), ("tail", 131_072, 131_071..131_072)]
    {
        let mut image = vec![0u8; len];
        image[data.clone()].iter_mut().zip(1..).for_each(|(b, i)| *b = i);
        let file = dir.path().join(name);
        std::fs::write(&file, &image).unwrap();
        run(Command::new(&zstd).arg("-q").arg(&file));
        let unpacked = unpack_image(&dir.path().join(format!("{name}.zst")));
        assert!(std::fs::read(unpacked.path()).unwrap() == image, "{name}");
    }
}

#[test]
fn a_mounted_image_can_be_written_and_is_unmounted() {
    if require_root().is_none() {
        return;
    }
    let Some(mkfs) = require_tool("mkfs.ext4") else { return };
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(4 << 20).unwrap();
    run(Command::new(mkfs).args(["-q", "-F"]).arg(image.path()));
    let Some(mount) = require("a loop mount", Mount::image(image.path(), "ext4", "")) else { return };
    std::fs::write(mount.path().join("file"), "here").unwrap();
    let dir = mount.path().to_owned();
    mount.unmount();
    assert!(!dir.join("file").exists());
    let mount = Mount::image(image.path(), "ext4", "ro").unwrap();
    assert_eq!(std::fs::read(mount.path().join("file")).unwrap(), b"here");
    let dir = mount.path().to_owned();
    drop(mount);
    assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(dir.to_str().unwrap()));
}

#[test]
fn a_script_runs_in_a_real_kernel() {
    let Some(uml) = Uml::new() else { return };
    let disk = tempfile::NamedTempFile::new().unwrap();
    disk.as_file().set_len(1 << 20).unwrap();
    std::fs::write(uml.dir().join("in"), "in").unwrap();
    let script = "cp /mnt/out/in /mnt/out/out; printf disk > /dev/ubda; echo $GREETING; nproc; exit 7";
    let run = uml.disk(disk.path()).cpus(1).parameters("GREETING=hello").run(script);
    assert_eq!((run.status, &*run.log), (Some(7), "hello\n1"), "{}", run.console);
    assert_eq!(std::fs::read(run.dir().join("out")).unwrap(), b"in");
    assert!(std::fs::read(disk.path()).unwrap().starts_with(b"disk"));
    // A kernel that crashes gives no status, and what was synced before is kept.
    let run = Uml::new().unwrap().run("echo begun; sync; echo c > /proc/sysrq-trigger; sleep 60");
    assert_eq!((run.status, &*run.log), (None, "begun"));
}
