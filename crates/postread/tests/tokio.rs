//! Open files as tokio's `AsyncRead` and `AsyncSeek`, with tokio's own ways to use them.
#![cfg(feature = "tokio")]

mod common;

use std::future::Future;
use std::io::{ErrorKind, SeekFrom};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use common::{Protected, engine, memory, policies, watchdog};
use postread::{QueuePolicy, Target, VerifiedFile};
use postread_io::testing::{Deferred, Order};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncSeekExt, ReadBuf};

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("runtime").block_on(future)
}

#[test]
fn what_implements_them_stays_send_and_sync() {
    fn check<T: AsyncRead + tokio::io::AsyncSeek + Send + Sync + Unpin>() {}
    check::<postread::FileReader>();
    check::<postread::File>();
    check::<VerifiedFile>();
}

#[test]
fn tokio_reads_every_byte_in_order_with_buffers_of_every_size() {
    for policy in policies() {
        watchdog("reads", move || {
            let p = Protected::of_len(1_000_003);
            let file = p.open(&engine(policy));
            run(async {
                let mut all = Vec::new();
                assert_eq!(file.reader().read_to_end(&mut all).await.expect("good"), p.data.len());
                assert!(all == p.data, "{policy}");
                let (mut reader, mut all) = (file.reader(), Vec::new());
                let mut buf = vec![0; 700_000];
                for size in [1, 4096, 100, 70_000, 700_000, 4095].into_iter().cycle() {
                    match reader.read(&mut buf[..size]).await.expect("good") {
                        0 => break,
                        n => all.extend_from_slice(&buf[..n]),
                    }
                }
                assert!(all == p.data, "{policy}");
            });
            file.close();
        });
    }
}

#[test]
fn a_seek_moves_blocking_and_asynchronous_reads_alike() {
    watchdog("seek", || {
        let p = Protected::of_len(600_000);
        let mut reader = p.open(&engine(QueuePolicy::UNBOUND)).reader();
        run(async {
            let mut buf = [0; 1000];
            assert_eq!(reader.seek(SeekFrom::End(-1500)).await.expect("inside"), 598_500);
            reader.read_exact(&mut buf).await.expect("good");
            assert_eq!(buf[..], p.data[598_500..599_500]);
            std::io::Read::read_exact(&mut reader, &mut buf[..400]).expect("good");
            assert_eq!(buf[..400], p.data[599_500..599_900]);
            let mut tail = Vec::new();
            reader.read_to_end(&mut tail).await.expect("good");
            assert_eq!(tail, p.data[599_900..]);
            assert!(reader.seek(SeekFrom::Current(-700_000)).await.is_err());
            assert_eq!(reader.stream_position().await.expect("known"), 600_000);
        });
    });
}

/// A poll may come with a smaller buffer than the one before it, and a seek may come while a read is pending.
#[test]
fn a_pending_read_survives_a_smaller_buffer_and_a_seek_cancels_it() {
    watchdog("pending", || {
        let p = Protected::of_len(1_000_000);
        let data = Deferred::new(memory(&p.data));
        let file = p.open_over(&engine(QueuePolicy::UNBOUND), Arc::new(data.clone()), memory(&p.tree));
        let mut reader = file.reader();
        let (mut large, mut small) = ([0; 50_000], [0; 100]);
        let mut cx = Context::from_waker(Waker::noop());
        let mut buf = ReadBuf::new(&mut large);
        assert!(Pin::new(&mut reader).poll_read(&mut cx, &mut buf).is_pending());
        assert!(buf.filled().is_empty() && data.held() > 0);
        let mut all = Vec::new();
        while all.len() < 60_000 {
            let mut buf = ReadBuf::new(&mut small);
            match Pin::new(&mut reader).poll_read(&mut cx, &mut buf) {
                Poll::Ready(read) => {
                    read.expect("good");
                    assert!(!buf.filled().is_empty());
                    all.extend_from_slice(buf.filled());
                }
                Poll::Pending => {
                    data.complete_one(Order::Fifo);
                    std::thread::yield_now();
                }
            }
        }
        assert!(all == p.data[..all.len()]);

        let mut other = file.reader();
        let mut buf = ReadBuf::new(&mut large);
        assert!(Pin::new(&mut other).poll_read(&mut cx, &mut buf).is_pending());
        std::io::Seek::seek(&mut other, SeekFrom::Start(700_000)).expect("inside");
        let mut read = [0; 10];
        {
            let mut exact = pin!(other.read_exact(&mut read));
            while exact.as_mut().poll(&mut cx).is_pending() {
                data.complete_one(Order::Fifo);
                std::thread::yield_now();
            }
        }
        assert_eq!(read, p.data[700_000..700_010]);
        drop((reader, other));
        while file.in_flight() > 0 {
            data.complete_one(Order::Fifo);
            std::thread::yield_now();
        }
        file.close();
    });
}

#[test]
fn bytes_that_differ_are_an_error_at_their_offset() {
    watchdog("bad block", || {
        let p = Protected::of_len(500_000);
        let mut bytes = p.data.clone();
        bytes[300_000] ^= 1;
        for policy in policies() {
            let file = p.open_over(&engine(policy), memory(&bytes), memory(&p.tree));
            let mut all = Vec::new();
            let error = run(async { file.reader().read_to_end(&mut all).await.expect_err("block 73 differs") });
            assert_eq!(all.len(), 300_000 / 4096 * 4096, "{policy}");
            assert!(all == p.data[..all.len()]);
            assert_ne!(error.kind(), ErrorKind::UnexpectedEof);
            assert!(error.to_string().contains("299008"), "{error}");
        }
    });
}

#[test]
fn files_by_path() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file");
    let p = Protected::of_len(300_001);
    std::fs::write(&path, &p.data).expect("written");
    let mut file = VerifiedFile::open(&path, &p.descriptor.file_digest()).expect("it is the file");
    run(async {
        let mut all = Vec::new();
        tokio::io::copy(&mut file, &mut all).await.expect("good");
        assert!(all == p.data);
        assert_eq!(file.seek(SeekFrom::Start(5)).await.expect("inside"), 5);
        assert_eq!(file.read_u8().await.expect("good"), p.data[5]);
    });

    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images");
    let image = postread_tests::unpack_image(&images.join("fscrypt/verity-enc.img.zst"));
    let key = std::fs::read(images.join("key64.bin")).expect("readable");
    let target = Target::builder().key(&key).open(image.path()).expect("an image");
    let mut read = 0;
    for entry in target.walk("/").expect("a root") {
        let entry = entry.expect("good");
        if !entry.metadata().is_file() {
            continue;
        }
        let mut file = target.open_file(entry.path()).expect("it opens");
        let mut all = Vec::new();
        run(file.read_to_end(&mut all)).expect("good");
        assert!(all == target.read(entry.path()).expect("good"), "{:?}", entry.path());
        read += all.len();
    }
    assert!(read > 100_000, "{read}");
}
