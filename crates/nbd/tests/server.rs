//! The server, spoken to byte by byte: what no well-behaved client sends, and clients that go away.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use postread_io::{BlockStatus, Corruption, PreadConfig, PreadOptions, PreadPool, ReadAt};
use postread_nbd::{Events, Export, Server};
use postread_tests::{Random, noise};

const LEN: usize = 5 << 20;
/// A block that is corrupt.
const BAD: usize = 3 << 20;

/// Noise, of which one block is corrupt.
struct Disk(Vec<u8>);

impl ReadAt for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let (at, n) = (offset as usize, buf.len().min(self.0.len().saturating_sub(offset as usize)));
        if at < BAD + 4096 && at + n > BAD {
            return Err(Corruption::data(BAD as u64, 4096, &[1; 32], &[2; 32]).into());
        }
        buf[..n].copy_from_slice(&self.0[at..at + n]);
        Ok(n)
    }
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Events for Log {
    fn bad(&self, export: &str, at: u64, range: Range<u64>, status: &BlockStatus) {
        self.0.lock().unwrap().push(format!("{export} {at} {range:?} {status}"));
    }
}

struct Setup {
    _dir: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
    log: Log,
}

/// A server of the disk from byte 1000 on, as `disk`, and of another export.
fn setup() -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let bytes = noise(LEN, 9);
    let pool = PreadPool::new(PreadConfig::new()).unwrap();
    let source = Arc::new(pool.read_at(Arc::new(Disk(bytes.clone())), PreadOptions::default()));
    let first = Export::new("disk", source.clone(), 1000, LEN as u64 - 1000).description("the first");
    let log = Log::default();
    let server = Server::new(vec![first, Export::new("all", source, 0, LEN as u64)]).events(log.clone());
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || server.serve_unix(&listener));
    Setup { _dir: dir, path, bytes: bytes[1000..].to_vec(), log }
}

struct Client(UnixStream);

impl Client {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(stream)
    }

    /// Up to the options.
    fn hello(path: &Path, flags: u32) -> Self {
        let mut client = Self::connect(path);
        assert_eq!(client.read(18), [&b"NBDMAGICIHAVEOPT"[..], &[0, 3]].concat());
        client.0.write_all(&flags.to_be_bytes()).unwrap();
        client
    }

    /// With an export by the older way.
    fn old(path: &Path) -> Self {
        let mut client = Self::hello(path, 3);
        client.option(1, b"disk");
        assert_eq!(
            client.read(10),
            [&(LEN as u64 - 1000).to_be_bytes()[..], &(1u16 | 2 | 4 | 256).to_be_bytes()].concat()
        );
        client
    }

    /// With structured replies.
    fn structured(path: &Path) -> Self {
        let mut client = Self::hello(path, 3);
        client.option(8, b"");
        assert_eq!(client.answer(), (8, 1, Vec::new()));
        client.option(7, b"\0\0\0\x04disk\0\0");
        let (option, kind, data) = client.answer();
        assert_eq!((option, kind, data.len()), (7, 3, 12));
        assert_eq!(client.answer(), (7, 1, Vec::new()));
        client
    }

    fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn ended(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0)) || self.0.write_all(&[0; 64]).is_err()
    }

    fn option(&mut self, kind: u32, data: &[u8]) {
        let len = data.len() as u32;
        let out = [&b"IHAVEOPT"[..], &kind.to_be_bytes(), &len.to_be_bytes(), data].concat();
        self.0.write_all(&out).unwrap();
    }

    fn answer(&mut self) -> (u32, u32, Vec<u8>) {
        let head = self.read(20);
        assert_eq!(head[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let data = self.read(word(16) as usize);
        (word(8), word(12), data)
    }

    fn request(&mut self, kind: u16, cookie: u64, offset: u64, len: u32) {
        self.request_with(0, kind, cookie, offset, len).unwrap();
    }

    fn request_with(&mut self, flags: u16, kind: u16, cookie: u64, offset: u64, len: u32) -> io::Result<()> {
        let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
        out.extend(flags.to_be_bytes());
        out.extend(kind.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend(len.to_be_bytes());
        self.0.write_all(&out)
    }

    /// A simple reply: error and cookie.
    fn simple(&mut self) -> (u32, u64) {
        let head = self.read(16);
        assert_eq!(head[..4], 0x6744_6698u32.to_be_bytes());
        (u32::from_be_bytes(head[4..8].try_into().unwrap()), u64::from_be_bytes(head[8..].try_into().unwrap()))
    }

    /// A chunk: whether it is the last, its type, its cookie and its payload.
    fn chunk(&mut self) -> (bool, u16, u64, Vec<u8>) {
        let head = self.read(20);
        assert_eq!(head[..4], 0x668e_33efu32.to_be_bytes());
        let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let payload = self.read(u32::from_be_bytes(head[16..].try_into().unwrap()) as usize);
        (half(4) & 1 != 0, half(6), u64::from_be_bytes(head[8..16].try_into().unwrap()), payload)
    }

    fn reads(&mut self, bytes: &[u8], range: Range<usize>) {
        self.request(0, 77, range.start as u64, range.len() as u32);
        assert_eq!(self.simple(), (0, 77));
        assert!(self.read(range.len()) == bytes[range]);
    }
}

#[test]
fn the_older_way_to_begin_and_simple_replies() {
    let setup = setup();
    let mut client = Client::old(&setup.path);
    client.reads(&setup.bytes, 0..1);
    client.reads(&setup.bytes, 12_345..2_345_678);
    client.reads(&setup.bytes, LEN - 1001..LEN - 1000);
    // With the zeros that old clients want, and the first export where there is no name.
    let mut old = Client::hello(&setup.path, 1);
    old.option(1, b"");
    assert_eq!(old.read(10 + 124)[10..], [0; 124]);
    old.reads(&setup.bytes, 5..10);
    // Errors do not end the connection.
    let bad = (BAD - 1000) as u64;
    for (kind, offset, len, errno) in [
        (0, LEN as u64, 1, 22),
        (0, u64::MAX, 4096, 22),
        (0, 0, 0, 22),
        (0, bad, 10, 5),
        (0, bad - 4096, 10_000, 5),
        (4, 0, 4096, 1),
        (6, 0, 4096, 1),
        (7, 0, 4096, 22),
        (99, 0, 4096, 22),
        (3, 0, 0, 0),
    ] {
        client.request(kind, 5, offset, len);
        assert_eq!(client.simple(), (errno, 5), "{kind} {offset} {len}");
    }
    client.request(1, 6, 0, 10_000);
    client.0.write_all(&[7; 10_000]).unwrap();
    assert_eq!(client.simple(), (1, 6));
    client.reads(&setup.bytes, 0..100);
    let log = setup.log.0.lock().unwrap();
    assert_eq!(log.len(), 2, "{log:?}");
    assert!(log[0].starts_with(&format!("disk {bad} {bad}..{} data block at {BAD} is corrupt: expected 01", bad + 10)));
}

#[test]
fn structured_replies_come_in_chunks_and_name_the_bad_byte() {
    let setup = setup();
    let mut client = Client::structured(&setup.path);
    client.request(0, 9, 100, 2_500_000);
    let (mut found, mut chunks) = (vec![0; 2_500_000], 0);
    loop {
        let (last, kind, cookie, payload) = client.chunk();
        assert_eq!((kind, cookie), (1, 9));
        let at = u64::from_be_bytes(payload[..8].try_into().unwrap()) as usize - 100;
        found[at..at + payload.len() - 8].copy_from_slice(&payload[8..]);
        chunks += 1;
        if last {
            break;
        }
    }
    assert!(found == setup.bytes[100..2_500_100] && chunks == 3, "{chunks}");
    // In one piece.
    client.request_with(4, 0, 10, 0, 2_500_000).unwrap();
    let (last, kind, _, payload) = client.chunk();
    assert!(last && kind == 1 && payload[8..] == setup.bytes[..2_500_000]);
    let bad = BAD as u64 - 1000;
    client.request(0, 11, bad - 100, 200);
    let (last, kind, cookie, payload) = client.chunk();
    assert_eq!((last, kind, cookie), (true, 0x8002, 11));
    assert_eq!(payload[..4], 5u32.to_be_bytes());
    assert_eq!(payload[payload.len() - 8..], bad.to_be_bytes(), "the first byte that is bad");
    assert!(payload.windows(15).any(|text| text == b"is corrupt: exp"));
    // A flag that nobody knows, and block status that was not asked for.
    for (flags, kind) in [(1 << 9, 0), (0, 7)] {
        client.request_with(flags, kind, 12, 0, 512).unwrap();
        let (last, kind, _, payload) = client.chunk();
        assert_eq!((last, kind, &payload[..4]), (true, 0x8001, &22u32.to_be_bytes()[..]));
    }
    client.request(3, 13, 0, 0);
    assert_eq!(client.chunk(), (true, 0, 13, Vec::new()));
}

#[test]
fn options_are_answered_one_by_one() {
    let setup = setup();
    let mut client = Client::hello(&setup.path, 3);
    client.option(3, b"");
    assert_eq!(client.answer(), (3, 2, b"\0\0\0\x04diskthe first".to_vec()));
    assert_eq!(client.answer(), (3, 2, b"\0\0\0\x03all".to_vec()));
    assert_eq!(client.answer().1, 1);
    const INVALID: u32 = 1 << 31 | 3;
    const UNKNOWN: u32 = 1 << 31 | 6;
    const UNSUPPORTED: u32 = 1 << 31 | 1;
    const TOO_BIG: u32 = 1 << 31 | 9;
    for (kind, data, wanted) in [
        (5, &b""[..], UNSUPPORTED),
        (11, b"", UNSUPPORTED),
        (77, b"anything", UNSUPPORTED),
        (3, b"x", INVALID),
        (8, b"x", INVALID),
        (7, b"", INVALID),
        (7, b"\0\0\0\x09disk\0\0", INVALID),
        (7, b"\0\0\0\x04disk\0\x01", INVALID),
        (7, b"\xff\xff\xff\xffdisk\0\0", INVALID),
        (7, b"\0\0\0\x04none\0\0", UNKNOWN),
        (10, b"\0\0\0\x04disk\0\0\0\0", INVALID),
    ] {
        client.option(kind, data);
        assert_eq!(client.answer().1, wanted, "{kind} {data:?}");
    }
    client.option(99, &vec![7; 100_000]);
    assert_eq!(client.answer().1, TOO_BIG);
    client.option(8, b"");
    assert_eq!(client.answer().1, 1);
    for (kind, data, wanted) in [
        (10, &b"\0\0\0\x04none\0\0\0\0"[..], UNKNOWN),
        (10, b"\0\0\0\x04disk\0\0\0\x01", INVALID),
        (10, b"\0\0\0\x04disk\0\0\0\0x", INVALID),
        (10, b"\0\0\0\x04disk\xff\xff\xff\xff", INVALID),
    ] {
        client.option(kind, data);
        assert_eq!(client.answer().1, wanted, "{kind} {data:?}");
    }
    client.option(9, b"\0\0\0\x04disk\0\0\0\0");
    assert_eq!(client.answer(), (9, 4, b"\0\0\0\0base:allocation".to_vec()));
    assert_eq!(client.answer().1, 1);
    client.option(10, b"\0\0\0\x04disk\0\0\0\x02\0\0\0\x03x:y\0\0\0\x0fbase:allocation");
    assert_eq!(client.answer(), (10, 4, b"\0\0\0\x01base:allocation".to_vec()));
    assert_eq!(client.answer().1, 1);
    client.option(6, b"\0\0\0\0\0\x03\0\x01\0\x02\0\x03");
    let infos: Vec<_> = (0..4).map(|_| client.answer()).collect();
    assert!(infos.iter().all(|(option, kind, _)| (*option, *kind) == (6, 3)));
    assert_eq!(infos[1].2, b"\0\x01disk");
    assert_eq!(infos[3].2, [&[0, 3][..], &[1u32, 4096, 32 << 20].map(u32::to_be_bytes).concat()].concat());
    assert_eq!(client.answer().1, 1);
    client.option(7, b"\0\0\0\x04disk\0\0");
    assert_eq!((client.answer().1, client.answer().1), (3, 1));
    client.request_with(8, 7, 1, 100, 5000).unwrap();
    let (last, kind, _, payload) = client.chunk();
    assert_eq!((last, kind), (true, 5));
    assert_eq!(payload, [1u32, 5000, 0].map(u32::to_be_bytes).concat());
    // It goes away in good order.
    let mut other = Client::hello(&setup.path, 3);
    other.option(2, b"");
    assert_eq!(other.answer(), (2, 1, Vec::new()));
    assert!(other.ended());
}

#[test]
fn garbage_ends_its_connection_and_no_other() {
    let setup = setup();
    let mut good = Client::old(&setup.path);
    for flags in [0, 4, 0xffff_ffff] {
        assert!(Client::hello(&setup.path, flags).ended());
    }
    let mut client = Client::hello(&setup.path, 3);
    client.0.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(client.ended());
    let mut client = Client::hello(&setup.path, 3);
    client.option(1, b"none");
    assert!(client.ended());
    let mut client = Client::old(&setup.path);
    client.0.write_all(&[0x55; 28]).unwrap();
    assert!(client.ended());
    // Options without end.
    let mut client = Client::hello(&setup.path, 3);
    let one = [&b"IHAVEOPT"[..], &77u32.to_be_bytes(), &0u32.to_be_bytes()].concat();
    let _ = client.0.write_all(&one.repeat(300));
    let mut all = Vec::new();
    let _ = client.0.read_to_end(&mut all);
    assert!(all.len() <= 256 * 40, "{}", all.len());
    // Noise at every point.
    let mut random = Random::new(4);
    for round in 0..200 {
        let stream = UnixStream::connect(&setup.path).unwrap();
        let mut client = if round % 2 == 0 { Client(stream) } else { Client::old(&setup.path) };
        let mut bytes = noise(random.below(300), round);
        if round % 3 == 0 && bytes.len() > 32 {
            bytes[..4].copy_from_slice(&[0, 0, 0, 3]);
            bytes[4..12].copy_from_slice(b"IHAVEOPT");
            bytes[12..19].fill(0);
        }
        let _ = client.0.write_all(&bytes);
        drop(client);
    }
    good.reads(&setup.bytes, 0..100_000);
}

/// A client that asks for everything and reads nothing takes a bounded amount of memory, and another one is served.
#[test]
fn a_client_that_reads_nothing_holds_up_nobody() {
    let setup = setup();
    let mut greedy: Vec<Client> = (0..8).map(|_| Client::old(&setup.path)).collect();
    for client in &mut greedy {
        client.0.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        for n in 0..2000 {
            if client.request_with(0, 0, n, 0, 1 << 20).is_err() {
                break;
            }
        }
    }
    let mut client = Client::old(&setup.path);
    client.reads(&setup.bytes, 0..1 << 20);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 600 << 10, "{kib} KiB");
    // What they asked for is there, when they read.
    let mut first = greedy.swap_remove(0);
    assert_eq!(first.simple(), (0, 0));
    assert!(first.read(1 << 20) == setup.bytes[..1 << 20]);
}

/// 64 clients, of which half go away at any moment and the others read meanwhile, for `POSTREAD_NBD_SECS` (2).
#[test]
fn clients_come_and_go() {
    let setup = setup();
    let seconds = std::env::var("POSTREAD_NBD_SECS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let end = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for n in 0..64 {
            let setup = &setup;
            scope.spawn(move || {
                let mut random = Random::new(n);
                while Instant::now() < end {
                    let mut client =
                        if n % 2 == 0 { Client::old(&setup.path) } else { Client::structured(&setup.path) };
                    let quits = n % 4 < 2;
                    for cookie in 0..random.below(20) as u64 {
                        let offset = random.below(1 << 20) as u64;
                        let len = 1 + random.below(300_000) as u32;
                        client.request(0, cookie, offset, len);
                        if quits {
                            continue;
                        }
                        let wanted = &setup.bytes[offset as usize..][..len as usize];
                        if n % 2 == 0 {
                            assert_eq!(client.simple(), (0, cookie));
                            assert!(client.read(len as usize) == wanted);
                        } else {
                            let (last, kind, found, payload) = client.chunk();
                            assert!(last && kind == 1 && found == cookie && &payload[8..] == wanted);
                        }
                    }
                    if random.below(2) == 0 {
                        let _ = client.request_with(0, 2, 0, 0, 0);
                    }
                }
            });
        }
    });
    Client::old(&setup.path).reads(&setup.bytes, 0..1000);
}
