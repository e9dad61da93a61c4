//! Against this machine's kernel.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

use postread_sys::filesystem::{self, FsKind};
use postread_sys::priority::{self, HighPriority};
use postread_sys::schedstat::{self, ThreadStat};
use postread_sys::topology::Topology;
use postread_sys::{CpuSet, affinity, current_cpu, gettid, hardening, online_cpus, procstat, residency, tracefs};
use postread_tests::{require, require_root};

/// Runs in a thread of its own, whose affinity, priority and name nobody else sees.
fn in_thread<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(f).join().unwrap()
}

fn status_field(field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/self/task/{}/status", gettid())).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(":\t").map(str::to_owned));
    line.unwrap_or_else(|| panic!("{field} in {status}"))
}

#[test]
fn affinity_is_what_the_kernel_shows() {
    in_thread(|| {
        let all = affinity::current().unwrap();
        assert_eq!(all.to_string(), status_field("Cpus_allowed_list"));
        assert!(online_cpus().unwrap().len() >= all.intersection(&online_cpus().unwrap()).len());
        for cpu in all.iter() {
            affinity::set_current(&[cpu].into_iter().collect()).unwrap();
            assert_eq!(current_cpu(), cpu);
            assert_eq!(status_field("Cpus_allowed_list"), cpu.to_string());
        }
        assert_eq!(affinity::of_thread(gettid()).unwrap().len(), 1);
        affinity::set_current(&all).unwrap();
        let nowhere: CpuSet = [60_000].into_iter().collect();
        assert_eq!(affinity::set_current(&nowhere).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(affinity::set_current(&CpuSet::new()).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn this_machines_topology_has_its_cpus() {
    let topology = Topology::current().unwrap();
    assert_eq!(topology.online(), online_cpus().unwrap());
    for groups in [topology.cores(), topology.llcs(), topology.nodes().into_iter().map(|n| n.1).collect()] {
        let all = groups.iter().fold(CpuSet::new(), |all, group| all.union(group));
        assert_eq!((all, groups.iter().map(CpuSet::len).sum::<usize>()), (topology.online(), topology.cpus.len()));
    }
}

#[test]
fn nice_is_the_threads_own() {
    let before = priority::current_nice().unwrap();
    let nice_of_thread = in_thread(move || {
        priority::set_nice_current(before.max(0) + 5).unwrap();
        let stat = fs::read_to_string(format!("/proc/self/task/{}/stat", gettid())).unwrap();
        // Field 19 of proc_pid_stat(5); the second one, the name, may hold spaces.
        let field = stat.rsplit(") ").next().unwrap().split(' ').nth(16).unwrap().parse::<i32>().unwrap();
        (priority::current_nice().unwrap(), field)
    });
    assert_eq!(nice_of_thread, (before.max(0) + 5, before.max(0) + 5));
    assert_eq!(priority::current_nice().unwrap(), before);
}

#[test]
fn what_was_granted_is_what_is_in_effect() {
    in_thread(|| {
        let slice = Duration::from_micros(200);
        let before = priority::current_nice().unwrap();
        match priority::raise_current(slice) {
            HighPriority::Nice(nice) => {
                assert!(nice <= before);
                assert_eq!(priority::current_nice().unwrap(), nice);
            }
            HighPriority::Slice(got) => {
                assert_eq!((priority::current_nice().unwrap(), got), (before, slice));
                assert_eq!(priority::current_slice().unwrap(), Some(slice));
            }
            HighPriority::None => assert_eq!(priority::current_nice().unwrap(), before),
            other => panic!("{other}"),
        }
    });
    if require_root().is_some() {
        // CAP_SYS_NICE may be missing even so: then RLIMIT_NICE or the slice decides, as tested above.
        let granted = in_thread(|| priority::raise_current(Duration::from_micros(200)));
        assert!(granted != HighPriority::None, "root gets something");
    }
}

#[test]
fn a_slice_takes_no_privilege_and_keeps_the_nice_value() {
    in_thread(|| {
        priority::set_nice_current(3).unwrap();
        let default = priority::current_slice().unwrap();
        if require("a slice a thread", priority::set_slice_current(Duration::from_micros(500))).is_none() {
            return;
        }
        assert_eq!(priority::current_slice().unwrap(), Some(Duration::from_micros(500)));
        // The kernel's bounds.
        assert_eq!(priority::set_slice_current(Duration::from_nanos(1)).unwrap(), priority::SHORTEST_SLICE);
        assert_eq!(priority::set_slice_current(Duration::from_secs(9)).unwrap(), Duration::from_millis(100));
        assert_eq!(priority::set_slice_current(Duration::ZERO).ok(), default);
        assert_eq!(priority::current_nice().unwrap(), 3);
    });
}

#[test]
fn run_delay_counts_where_threads_contend() {
    // CONFIG_SCHED_INFO is part of every kernel that has schedstat files with numbers in them.
    if require("schedstat", ThreadStat::current()).is_some() {
        assert!(schedstat::counts().unwrap(), "two threads on one CPU and no run_delay");
    }
}

#[test]
fn schedstat_grows_with_work_and_ends_with_the_thread() {
    let stat = in_thread(|| {
        let stat = ThreadStat::current().unwrap();
        let before = stat.read().unwrap();
        while (stat.read().unwrap() - before).run_time_ns < 2_000_000 {}
        assert_eq!(ThreadStat::open(gettid()).unwrap().read().unwrap().slices, stat.read().unwrap().slices);
        stat
    });
    // The thread has been joined, but its kernel task may take a moment to go.
    for _ in 0..1000 {
        if stat.read().is_err() {
            assert!(ThreadStat::open(i32::MAX).is_err());
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("a dead thread's counters can still be read");
}

#[test]
fn residency_follows_reading_and_dropping() {
    // In the target directory where this user may write: /tmp may be a tmpfs, whose pages are always there.
    let target = tempfile::Builder::new().tempfile_in(env!("CARGO_TARGET_TMPDIR"));
    let mut file = target.or_else(|_| tempfile::NamedTempFile::new()).unwrap();
    let len = 5 * 4096 * 16 + 1;
    file.write_all(&vec![7; len]).unwrap();
    let file = file.as_file();
    let kind = filesystem::of_file(file).unwrap().kind;
    let all = residency::resident_pages(file, 0..u64::MAX).unwrap();
    assert_eq!((all.resident, all.total), (81, 81), "just written");
    assert!(all.is_complete());
    let part = residency::resident_pages(file, 4095..8193).unwrap();
    assert_eq!(part.total, 3);
    let reversed = std::ops::Range { start: 9, end: 3 };
    for empty in [0..0, 1 << 40..1 << 41, reversed] {
        assert_eq!(residency::resident_pages(file, empty).unwrap().total, 0);
    }
    residency::drop_cache(file).unwrap();
    let dropped = residency::resident_pages(file, 0..len as u64).unwrap();
    if kind.is_memory() {
        assert_eq!(dropped.resident, 81);
        return;
    }
    assert_eq!(dropped.resident, 0, "on {kind}");
    // Looking brought nothing in; reading does.
    assert_eq!(residency::resident_pages(file, 0..len as u64).unwrap().resident, 0);
    let mut buf = vec![];
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap().read_to_end(&mut buf).unwrap();
    assert!(residency::resident_pages(file, 0..len as u64).unwrap().is_complete());
}

#[test]
fn file_system_kinds() {
    assert_eq!(FsKind::from_magic(0x0102_1994), FsKind::Tmpfs);
    assert_eq!(FsKind::from_magic(1), FsKind::Other(1));
    if require_root().is_some() {
        let dir = tempfile::TempDir::new().unwrap();
        postread_tests::run(
            std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(dir.path()),
        );
        let stat = filesystem::of_path(dir.path());
        postread_tests::run(std::process::Command::new("umount").arg("-l").arg(dir.path()));
        let stat = stat.unwrap();
        assert_eq!((stat.kind, stat.total), (FsKind::Tmpfs, 1 << 20));
        assert!(stat.kind.is_memory());
    }
    let stat = filesystem::of_path(env!("CARGO_MANIFEST_DIR").as_ref()).unwrap();
    assert!(stat.block_size > 0 && stat.available <= stat.total);
}

#[test]
fn memory_can_be_left_out_of_core_dumps() {
    let key = vec![1u8; 3 * 4096];
    hardening::dont_dump(&key[100..5000]).unwrap();
    hardening::dont_dump(&[]).unwrap();
    // The kernel shows the advice as the flag "dd" of the mapping (proc_pid_smaps(5)).
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let at = key.as_ptr() as usize + 100;
    let mut inside = false;
    let flags = smaps.lines().find_map(|line| {
        if let Some((from, to)) = line.split(' ').next().and_then(|range| range.split_once('-'))
            && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
        {
            inside = (from..to).contains(&at);
        }
        line.strip_prefix("VmFlags:").filter(|_| inside).map(str::to_owned)
    });
    assert!(flags.as_deref().is_some_and(|f| f.split(' ').any(|f| f == "dd")), "{flags:?}");
}

#[test]
fn cpu_times_grow() {
    let before = procstat::cpu_times().unwrap();
    let stat = ThreadStat::current().unwrap();
    let start = stat.read().unwrap();
    while (stat.read().unwrap() - start).run_time_ns < 100_000_000 {}
    let spent = procstat::cpu_times().unwrap().since(&before);
    assert!(spent.user + spent.system + spent.nice >= Duration::from_millis(50), "{spent:?}");
}

/// Mounts tracefs at a place of our own; none where that is not possible, with the reason reported.
fn mount_tracefs() -> Option<tempfile::TempDir> {
    require_root()?;
    let dir = tempfile::TempDir::new().unwrap();
    let mount = std::process::Command::new("mount").args(["-t", "tracefs", "none"]).arg(dir.path()).output();
    let mounted = match mount {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(e) => Err(e.to_string()),
    };
    require("tracefs", mounted)?;
    Some(dir)
}

fn unmount(dir: &tempfile::TempDir) {
    postread_tests::run(std::process::Command::new("umount").arg("-l").arg(dir.path()));
}

#[test]
fn a_trace_instance_records_and_is_removed() {
    let Some(dir) = mount_tracefs() else { return };
    let recorded = record(&tracefs::Tracefs::at(dir.path()));
    unmount(&dir);
    let (text, stats) = recorded.unwrap();
    assert!(text.contains("sched_switch") && text.contains("tracing_mark_write: here"), "{text}");
    assert!(stats.iter().any(|s| s.entries > 0));
}

/// The directory of the tracefs in which a child of the next test makes its instance.
const HOLD_INSTANCE_IN: &str = "POSTREAD_TEST_HOLD_INSTANCE_IN";

#[test]
fn a_trace_instance_goes_with_its_process_however_that_ends() {
    if let Some(dir) = std::env::var_os(HOLD_INSTANCE_IN) {
        let name = format!("postread-test-{}", std::process::id());
        let _instance = tracefs::Tracefs::at(dir.as_ref()).create_instance(&name).unwrap();
        std::thread::sleep(Duration::from_secs(600));
        return;
    }
    let Some(dir) = mount_tracefs() else { return };
    let mut left = Vec::new();
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_trace_instance_goes_with_its_process_however_that_ends", "--nocapture"])
            .env(HOLD_INSTANCE_IN, dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let instance = dir.path().join(format!("instances/postread-test-{}", child.id()));
        while !instance.exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(instance.exists(), "the child made none");
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        // The guard removes it in a moment; a limit for hangs, not a claim about time.
        for _ in 0..2000 {
            if !instance.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if instance.exists() {
            let _ = std::fs::remove_dir(&instance);
            left.push(signal);
        }
    }
    unmount(&dir);
    assert!(left.is_empty(), "instances are left after {left:?}");
}

fn record(tracefs: &tracefs::Tracefs) -> std::io::Result<(String, Vec<tracefs::BufferStats>)> {
    assert!(tracefs.event_format("sched/sched_switch")?.contains("prev_pid"));
    assert_eq!(tracefs.create_instance("../x").unwrap_err().kind(), ErrorKind::InvalidInput);
    let name = format!("postread-test-{}", std::process::id());
    let instance = tracefs.create_instance(&name)?;
    let (path, exists) = (instance.dir().to_owned(), tracefs.create_instance(&name).unwrap_err().kind());
    assert_eq!(exists, ErrorKind::AlreadyExists);
    instance.set_buffer_kb(256)?;
    instance.set_clock("mono")?;
    instance.enable("sched/sched_switch")?;
    instance.filter("sched/sched_switch", &format!("prev_pid == {}", gettid()))?;
    assert!(instance.enable("sched/no_such_event").is_err());
    instance.start()?;
    instance.mark("here")?;
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(1));
    }
    instance.stop()?;
    let stats = online_cpus()?.iter().map(|cpu| instance.stats(cpu)).collect::<Result<_, _>>()?;
    instance.raw_pipe(online_cpus()?.first().unwrap_or(0))?;
    let text = instance.text()?;
    drop(instance);
    assert!(!path.exists());
    Ok((text, stats))
}
