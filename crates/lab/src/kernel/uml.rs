//! A User-Mode Linux kernel that runs a script: a process like any other, without privileges.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::{LabError, Tried};
use crate::scratch::{self, Scratch};

/// How long a boot may take, with all that it does.
const TIMEOUT: Duration = Duration::from_secs(300);

/// An available kernel.
#[derive(Debug)]
pub(super) struct Uml {
    kernel: PathBuf,
}

/// The kernel to use: the one given, `POSTREAD_UML`, or the one that `tests/uml/build` makes in the source tree that holds
/// the current directory or this program.
pub(super) fn find(given: Option<&Path>) -> Result<PathBuf, LabError> {
    if let Some(file) = given.map(Path::to_owned).or_else(|| std::env::var_os("POSTREAD_UML").map(PathBuf::from)) {
        return match file.is_file() {
            true => Ok(file),
            false => Err(LabError::Kernel(format!("{}: no such kernel", file.display()))),
        };
    }
    let places = [std::env::current_dir(), std::env::current_exe()].into_iter().flatten();
    let ancestors: Vec<PathBuf> = places.flat_map(|p| p.ancestors().map(Path::to_owned).collect::<Vec<_>>()).collect();
    let kernels = ["target/uml/linux", "target/uml/linux.zst", "../shared/kernel-oracle/uml/linux.zst"];
    let found = ancestors.iter().flat_map(|dir| kernels.map(|kernel| dir.join(kernel))).find(|file| file.is_file());
    found.ok_or_else(|| {
        LabError::Kernel("no User-Mode Linux kernel: build one with tests/uml/build, or name one with --kernel".into())
    })
}

impl Uml {
    /// Unpacks the kernel where it is packed.
    pub(super) fn new(file: &Path, scratch: &Scratch) -> Result<Uml, LabError> {
        let mut magic = [0; 4];
        let what = || format!("reading {}", file.display());
        io::Read::read_exact(&mut File::open(file).tried(what)?, &mut magic).tried(what)?;
        let packed = magic == [0x28, 0xb5, 0x2f, 0xfd];
        if !packed && magic != *b"\x7fELF" {
            return Err(LabError::Kernel(format!("{}: not a kernel, nor one packed by zstd", file.display())));
        }
        if !packed {
            let kernel = file.canonicalize().tried(what)?;
            return Ok(Uml { kernel });
        }
        let kernel = scratch.path("linux");
        let unpacked = Command::new("zstd").arg("-dqf").arg(file).arg("-o").arg(&kernel).stdin(Stdio::null()).output();
        let unpacked = unpacked.tried(|| "running zstd, which unpacks the kernel".into())?;
        if !unpacked.status.success() {
            let error = String::from_utf8_lossy(&unpacked.stderr);
            return Err(LabError::Kernel(format!("{}: {}", file.display(), error.trim())));
        }
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&kernel, executable).tried(|| "making the kernel executable".into())?;
        Ok(Uml { kernel })
    }

    /// Boots and runs `script`. The guest sees this machine's `/` read-only and the directory `out` as `/mnt/out`.
    pub(super) fn run(&self, script: &str, parameters: &[String], scratch: &Scratch) -> Result<(), LabError> {
        let out = scratch.path("out");
        let failed = |what: &str| {
            let read = |name: &str| fs::read_to_string(out.join(name)).unwrap_or_default();
            let text = format!("{}{}", read("console"), read("log"));
            let last: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
            let last = last[last.len().saturating_sub(3)..].join("; ");
            LabError::Kernel(format!("the guest {what}: {last}"))
        };
        let _ = fs::remove_file(out.join("rc"));
        scratch.write("out/script", script.as_bytes())?;
        let init = format!(
            "#!/bin/sh\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp\nmount -t tmpfs none /mnt && mkdir /mnt/out\n\
             mount -t hostfs -o '{}' none /mnt/out\nmount -t proc none /proc\nmount -t sysfs none /sys\n\
             mount -t tracefs none /sys/kernel/tracing\nmount -t devtmpfs none /dev 2> /dev/null\nmount -t tmpfs none /tmp\n\
             echo 1 > /proc/sys/kernel/sched_schedstats\ncd /tmp\nsh /mnt/out/script > /mnt/out/log 2>&1 < /dev/null\n\
             echo $? > /mnt/out/rc\nsync\necho o > /proc/sysrq-trigger\nsleep 60\n",
            out.display()
        );
        scratch.write("init", init.as_bytes())?;
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(scratch.path("init"), executable).tried(|| "making the guest's init executable".into())?;
        let console = File::create(out.join("console")).tried(|| "making the guest's console".into())?;
        let copy = console.try_clone().tried(|| "making the guest's console".into())?;
        let mut command = Command::new(&self.kernel);
        command.args([
            "mem=1G",
            "seccomp=on",
            "rootfstype=hostfs",
            "rootflags=/",
            "ro",
            "con=null",
            "con0=fd:0,fd:1",
            "quiet",
        ]);
        command.arg(format!("init={}", scratch.path("init").display())).args(parameters);
        for (letter, disk) in ["ubda", "ubdb"].iter().zip(["ext4", "f2fs"]) {
            command.arg(format!("{letter}={}", scratch.path(disk).display()));
        }
        command.env("TMPDIR", scratch.path("")).process_group(0);
        let child = command.stdin(Stdio::null()).stdout(console).stderr(copy).spawn();
        let mut child = child.tried(|| format!("starting {}", self.kernel.display()))?;
        let pid = File::create(scratch.path("pid")).and_then(|mut file| write!(file, "{}", child.id()));
        let ended = pid.tried(|| "noting the guest's process".into()).and_then(|()| scratch::wait(&mut child, TIMEOUT));
        let _ = fs::remove_file(scratch.path("pid"));
        if !ended? {
            return Err(failed("did not finish in time"));
        }
        match fs::read_to_string(out.join("rc")) {
            Ok(code) if code.trim() == "0" => Ok(()),
            Ok(_) => Err(failed("failed")),
            Err(_) => Err(failed("crashed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_kernel_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("kernel");
        let scratch = Scratch::new(parent.path()).unwrap();
        fs::write(&file, "not a kernel").unwrap();
        assert!(Uml::new(&file, &scratch).unwrap_err().to_string().contains("not a kernel"));
        fs::write(&file, [0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3]).unwrap();
        Uml::new(&file, &scratch).unwrap_err();
        assert!(find(Some(Path::new("/none"))).unwrap_err().to_string().contains("/none"));
    }
}
