//! The kernel's `filemap` events as text, and what a program demanded of the page cache according to them.

use std::collections::{BTreeMap, HashMap};

use crate::workload::{App, READ_LEN_MAX, Read, WorkloadFile};

/// What happened to a file's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A fault on a page of a mapped file.
    Fault,
    /// `read` and its like looked pages up.
    Get,
    /// Pages went into the page cache: demanded or read ahead.
    Add,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// Thread.
    pub tid: u32,
    /// What happened.
    pub kind: Kind,
    /// Device and inode number.
    pub file: (u32, u32, u64),
    /// First byte and the byte after the last, multiples of 4096.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

/// Parses the text of a trace; lines of other events are passed over.
pub fn parse(text: &str) -> Vec<Event> {
    text.lines().filter_map(event).collect()
}

/// `   python3-123   [001] .....  12.345678: mm_filemap_fault: dev=254:0 ino=1f2 ofs=4096`
fn event(line: &str) -> Option<Event> {
    let (head, rest) = line.split_once(": mm_filemap_")?;
    let (name, fields) = rest.split_once(": ")?;
    let (before, stamp) = head.rsplit_once(' ')?;
    let (seconds, fraction) = stamp.split_once('.')?;
    let micros: u64 = fraction.get(..6)?.parse().ok()?;
    let time_ns = seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros)?.checked_mul(1000)?;
    // The command may hold spaces and dashes; the thread's number follows the last dash before the CPU.
    let tid = before.split_once(" [")?.0.trim_end().rsplit_once('-')?.1.parse().ok()?;
    let kind = match name {
        "fault" => Kind::Fault,
        "get_pages" => Kind::Get,
        "add_to_page_cache" => Kind::Add,
        _ => return None,
    };
    // Newer events write dev=M:N ino=X, older ones dev M:N ino X.
    let fields = fields.replace("dev ", "dev=").replace("ino ", "ino=");
    let field = |name: &str| fields.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    let (major, minor) = field("dev")?.split_once(':')?;
    let file = (major.parse().ok()?, minor.parse().ok()?, u64::from_str_radix(field("ino")?, 16).ok()?);
    let (start, end) = match field("ofs")?.split_once('-') {
        Some((first, last)) => (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?.checked_add(1)?),
        None => {
            let start = field("ofs")?.parse::<u64>().ok()?;
            let order = field("order").map_or(Some(0), |order| order.parse::<u32>().ok().filter(|o| *o < 20))?;
            (start, start.checked_add(4096 << order)?)
        }
    };
    (start < end && start % 4096 == 0).then_some(Event { time_ns, tid, kind, file, start, end })
}

/// What was found of a recorded program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Faults of mapped files.
    pub faults: usize,
    /// Look-ups by `read`.
    pub gets: usize,
    /// Additions to the page cache.
    pub adds: usize,
    /// Demands left out because their pages had been demanded before: the page cache would have served them.
    pub repeated: usize,
    /// Demands of files that could not be named.
    pub unknown: usize,
}

/// The longest think time kept, in microseconds: longer gaps are the recording's own.
const THINK_MAX_US: u64 = 5000;

/// Turns a trace into reads: each fault (of a mapped file: replayed as a read) and each look-up by `read`, of the pages
/// that nothing demanded before. A thread's think time is the time since its demand before, waiting for the disk
/// included, since the events don't tell it apart.
pub fn to_app(name: &str, events: &[Event], files: &HashMap<(u32, u32, u64), WorkloadFile>) -> (App, Counts) {
    let mut app = App { name: name.into(), compute_permille: 500, ..App::default() };
    let mut counts = Counts::default();
    let mut numbers: HashMap<(u32, u32, u64), u32> = HashMap::new();
    let mut threads: BTreeMap<u32, usize> = BTreeMap::new();
    let mut last: HashMap<u32, u64> = HashMap::new();
    let mut demanded: HashMap<(u32, u64), ()> = HashMap::new();
    for event in events {
        match event.kind {
            Kind::Fault => counts.faults += 1,
            Kind::Get => counts.gets += 1,
            Kind::Add => {
                counts.adds += 1;
                continue;
            }
        }
        let Some(file) = files.get(&event.file) else {
            counts.unknown += 1;
            continue;
        };
        let next = numbers.len() as u32;
        let number = *numbers.entry(event.file).or_insert_with(|| {
            app.files.push(file.clone());
            next
        });
        let end = event.end.min(file.size);
        let mut new = None;
        for page in event.start / 4096..end.div_ceil(4096) {
            if demanded.insert((number, page), ()).is_none() {
                new = Some(new.map_or((page, page), |(first, _)| (first, page)));
            }
        }
        let Some((first, last_page)) = new else {
            counts.repeated += 1;
            continue;
        };
        let count = threads.len();
        let thread = *threads.entry(event.tid).or_insert(count) % 64;
        let before = last.insert(event.tid, event.time_ns);
        let think_us = before.map_or(0, |t| event.time_ns.saturating_sub(t) / 1000).min(THINK_MAX_US);
        let offset = first * 4096;
        let len = ((last_page + 1) * 4096).min(file.size) - offset;
        if app.threads.len() <= thread {
            app.threads.resize(thread + 1, Vec::new());
        }
        // A longer one in consecutive pieces.
        let mut at = 0;
        while at < len {
            let piece = READ_LEN_MAX.min(len - at);
            let think_us = if at == 0 { think_us } else { 0 };
            app.threads[thread].push(Read { think_us, file: number, offset: offset + at, len: piece });
            at += piece;
        }
    }
    (app, counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload;

    const TEXT: &str = "\
# tracer: nop
           <...>-1234    [001] .....   100.000010: mm_filemap_get_pages: dev=254:0 ino=2a ofs=0-8191
  a-b c-1234    [000] d..1.   100.000500: mm_filemap_add_to_page_cache: dev 254:0 ino 2a pfn=0x1 ofs=8192 order=2
 worker-1235    [000] .....   100.002010: mm_filemap_fault: dev=254:0 ino=2a ofs=12288
 worker-1235    [000] .....   100.003010: mm_filemap_fault: dev=254:0 ino=2a ofs=4096
 worker-1235    [000] .....   100.003010: mm_filemap_fault: dev=254:0 ino=ff ofs=4096
 worker-1235    [000] .....   100.003010: sched_switch: nothing
";

    #[test]
    fn the_kernels_text_becomes_reads() {
        let events = parse(TEXT);
        assert_eq!(events.len(), 5);
        assert_eq!((events[1].tid, events[1].kind, events[1].start, events[1].end), (1234, Kind::Add, 8192, 24576));
        let file = WorkloadFile { size: 13000, name: "f".into() };
        let (app, counts) = to_app("x", &events, &HashMap::from([((254, 0, 0x2a), file)]));
        assert_eq!(app.threads[0], [Read { think_us: 0, file: 0, offset: 0, len: 8192 }]);
        assert_eq!(app.threads[1], [Read { think_us: 0, file: 0, offset: 12288, len: 712 }]);
        assert_eq!(counts, Counts { faults: 3, gets: 1, adds: 1, repeated: 1, unknown: 1 });
    }

    #[test]
    fn a_look_up_longer_than_a_read_may_be_becomes_several() {
        let (size, end) = (READ_LEN_MAX * 2 + 5000, READ_LEN_MAX * 2 + 8191);
        let text = format!(" x-1 [000] ..... 1.000010: mm_filemap_get_pages: dev=254:0 ino=2a ofs=0-{end}\n");
        let file = WorkloadFile { size, name: "f".into() };
        let (app, _) = to_app("x", &parse(&text), &HashMap::from([((254, 0, 0x2a), file)]));
        assert_eq!((app.reads(), app.bytes_read()), (3, size));
        assert_eq!(workload::parse(&workload::format(std::slice::from_ref(&app))).unwrap(), [app]);
    }

    #[test]
    fn cut_lines_are_passed_over() {
        for line in TEXT.lines() {
            for cut in 0..line.len() {
                if line.is_char_boundary(cut) {
                    parse(&line[..cut]);
                }
            }
        }
    }
}
