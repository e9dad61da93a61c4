//! Buffered and direct, whole and beyond the end, more bios than the ring takes.

use std::io::Write;
use std::sync::mpsc;

use super::*;
use crate::CompletionCpu;
use crate::buf::Buf;
use crate::threads::allowed_cpus;

fn pool(config: UringConfig) -> Option<UringPool> {
    match UringPool::new(config) {
        Ok(pool) => Some(pool),
        Err(error) if std::env::var_os("POSTREAD_REQUIRE_ALL").is_none() => {
            skipped("io_uring", &format!("the host refuses it: {error}"));
            None
        }
        Err(error) => panic!("io_uring: {error}"),
    }
}

/// Bypasses the test harness, which hides the output of tests that pass.
fn skipped(what: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIP {what}: {why}");
}

fn read_many(source: &impl Source, reads: &[(u64, usize)]) -> Vec<(Bio, u32)> {
    let (tell, told) = mpsc::channel();
    for (n, (offset, len)) in reads.iter().enumerate() {
        let tell = tell.clone();
        let done = Completion::from_fn(move |bio, cpu| tell.send((n, bio.expect("not lost"), cpu)).expect("waits"));
        source.submit(Bio::new(*offset, Buf::new(*len)), done);
    }
    let mut all: Vec<_> = reads.iter().map(|_| told.recv().expect("completes")).collect();
    all.sort_by_key(|(n, ..)| *n);
    all.into_iter().map(|(_, bio, cpu)| (bio, cpu)).collect()
}

fn bytes() -> Vec<u8> {
    (0..1_000_100u32).map(|i| (i % 251) as u8).collect()
}

#[test]
fn buffered() {
    let Some(pool) = pool(UringConfig::new().depth(4)) else { return };
    let bytes = bytes();
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(&bytes).expect("written");
    for cpu in allowed_cpus() {
        let options = PreadOptions { completion_cpu: CompletionCpu::Cpu(cpu), inline_resident: false, align: 1 };
        let source = pool.file(file.try_clone().expect("clone"), options);
        let reads: Vec<(u64, usize)> = (0..100).map(|n| (n * 9_999, 10_000)).chain([(1_000_000, 1000)]).collect();
        for ((bio, on), (offset, _)) in read_many(&source, &reads).iter().zip(&reads) {
            let good = bio.len().min(bytes.len() - *offset as usize);
            assert!(bio.buf()[..good] == bytes[*offset as usize..][..good]);
            assert_eq!(
                bio.statuses().at(good),
                if good < bio.len() { &BlockStatus::Short } else { &BlockStatus::Good }
            );
            assert_eq!(*on, cpu);
        }
        let (bio, _) = read_many(&source, &[(u64::MAX - 10, 100)]).remove(0);
        assert!(bio.statuses().first_bad(0..100).is_some());
    }
}

#[test]
fn direct() {
    let Some(pool) = pool(UringConfig::new()) else { return };
    let bytes = bytes();
    let mut named = tempfile::NamedTempFile::new().expect("temporary file");
    named.write_all(&bytes).expect("written");
    named.as_file().sync_all().expect("synced");
    let (file, align) = match crate::open_direct(named.path()) {
        Ok(opened) => opened,
        Err(error) => {
            skipped("O_DIRECT", &format!("the temporary directory has none: {error}"));
            return;
        }
    };
    let options = PreadOptions { completion_cpu: CompletionCpu::RoundRobin, inline_resident: true, align };
    let preads = crate::PreadPool::new(crate::PreadConfig::new()).expect("threads");
    let rings: Arc<dyn Source> = Arc::new(pool.file(file.try_clone().expect("clone"), options));
    let threads: Arc<dyn Source> = Arc::new(preads.file(file, options));
    for source in [rings, threads] {
        let reads = [(0, 4096), (8192, 65536), (995_328, 8192), (1_003_520, 4096)];
        for ((bio, _), (offset, _)) in read_many(&source, &reads).iter().zip(&reads) {
            let good = bio.len().min(bytes.len().saturating_sub(*offset as usize));
            assert!(bio.buf()[..good] == bytes[(*offset as usize).min(bytes.len())..][..good], "{offset}");
            let behind = if good < bio.len() { &BlockStatus::Short } else { &BlockStatus::Good };
            assert_eq!(bio.statuses().at(good), behind, "{offset}");
        }
    }
}

#[test]
fn errors_are_reported() {
    let Some(pool) = pool(UringConfig::new()) else { return };
    let directory = File::open("/").expect("a directory");
    let options = PreadOptions { completion_cpu: CompletionCpu::Submitter, inline_resident: false, align: 1 };
    let (bio, _) = read_many(&pool.file(directory, options), &[(0, 10_000)]).remove(0);
    assert!(matches!(bio.statuses().at(9_999), BlockStatus::Io { errno: Some(libc::EISDIR), .. }));
}
