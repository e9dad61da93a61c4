//! Trace events as tracefs prints them (`trace`, `trace_pipe`).

use crate::event::{Event, Kind, Left, Pid, Trace};

/// Parses the text of a trace. Other events and lines that make no sense are skipped; lines such as
/// `CPU:1 [LOST 3 EVENTS]` are counted.
pub fn parse(text: &str) -> Trace {
    let mut trace = Trace::default();
    for line in text.lines() {
        if let Some(lost) = lost(line) {
            trace.lost += lost;
        } else {
            // Skips everything else in a trace.
            let _ = event(line, &mut trace);
        }
    }
    // tracefs merges the CPUs' buffers in order of time; other tools may not.
    trace.events.sort_by_key(|event| event.time_ns);
    trace
}

fn lost(line: &str) -> Option<u64> {
    line.split_once("[LOST ")?.1.split_once(' ')?.0.parse().ok()
}

/// `   kworker/0:1H-31    [000] d..2.    12.345678: sched_switch: prev_comm=... `
fn event(line: &str, trace: &mut Trace) -> Option<()> {
    let (head, rest) = line.split_once(": ")?;
    let (name, fields) = rest.split_once(": ")?;
    let (before, stamp) = head.rsplit_once(' ')?;
    let (seconds, micros) = stamp.split_once('.')?;
    let time_ns = match micros.len() {
        6 => {
            seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros.parse().ok()?)?.checked_mul(1000)?
        }
        9 => seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(micros.parse().ok()?)?,
        _ => return None,
    };
    // The command may hold spaces, dashes and brackets: the thread's number follows the last dash before the CPU.
    let (task, place) = before.rsplit_once(" [")?;
    let (comm, pid) = task.trim_end().rsplit_once('-')?;
    let pid: Pid = pid.parse().ok()?;
    let (cpu, flags) = place.split_once(']')?;
    let cpu = cpu.parse().ok()?;
    // The third flag: in a hard interrupt (h, H, z, Z), a soft one (s), or neither.
    let interrupt = flags.trim().as_bytes().get(2).is_some_and(|flag| b"hHzZs".contains(flag));
    if comm.trim() != "<...>" && pid != 0 {
        trace.comms.entry(pid).or_insert_with(|| comm.trim().into());
    }
    let kind = kind(name, fields, trace)?;
    trace.events.push(Event { time_ns, cpu, pid, interrupt, kind });
    Some(())
}

fn kind(name: &str, fields: &str, trace: &mut Trace) -> Option<Kind> {
    let field = |key: &str| fields.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str| field(key)?.parse::<u32>().ok();
    let address = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    Some(match name {
        "sched_switch" => {
            // prev_comm=A prev_pid=1 prev_prio=120 prev_state=R+ ==> next_comm=B next_pid=2 next_prio=100
            let (prev, next) = fields.split_once(" ==> ")?;
            let (prev_comm, prev_rest) = prev.strip_prefix("prev_comm=")?.rsplit_once(" prev_pid=")?;
            let (next_comm, next_rest) = next.strip_prefix("next_comm=")?.rsplit_once(" next_pid=")?;
            let prev: Pid = prev_rest.split(' ').next()?.parse().ok()?;
            let next: Pid = next_rest.split(' ').next()?.parse().ok()?;
            for (pid, comm) in [(prev, prev_comm), (next, next_comm)] {
                if pid != 0 {
                    // The latest name: a thread is named after it was made.
                    trace.comms.insert(pid, comm.into());
                }
            }
            let left = match field("prev_state")?.as_bytes().first()? {
                b'R' => Left::Runnable,
                b'X' | b'Z' => Left::Dead,
                _ => Left::Sleeping,
            };
            Kind::Switch { prev, left, next }
        }
        "sched_waking" => Kind::Waking { pid: number("pid")?, cpu: number("target_cpu")? },
        "sched_wakeup" => Kind::Wakeup { pid: number("pid")?, cpu: number("target_cpu")? },
        "sched_wakeup_new" => Kind::WakeupNew { pid: number("pid")?, cpu: number("target_cpu")? },
        "sched_migrate_task" => Kind::Migrate { pid: number("pid")?, to: number("dest_cpu")? },
        "irq_handler_entry" | "softirq_entry" => Kind::InterruptBegin,
        "irq_handler_exit" | "softirq_exit" => Kind::InterruptEnd,
        "workqueue_queue_work" => {
            // work struct=0000000012345678 function=verity_work workqueue=fsverity_read_queue req_cpu=8 cpu=-1
            let function = trace.name(plain(field("function")?));
            let queue = trace.name(field("workqueue")?);
            // -1, and 4294967295 before Linux 5.19, on an unbound queue.
            let cpu = field("cpu")?.parse::<i64>().ok()?;
            let cpu = u32::try_from(cpu).ok().filter(|cpu| *cpu != u32::MAX);
            Kind::Queue { work: address(field("struct")?)?, function, queue, cpu }
        }
        "workqueue_activate_work" => {
            // work struct 0000000012345678 function=verity_work, or `work struct 0000000012345678` before.
            Kind::Activate { work: address(fields.strip_prefix("work struct ")?.split([' ', ':']).next()?)? }
        }
        "workqueue_execute_start" => {
            // work struct 0000000012345678: function verity_work
            let (work, function) = fields.strip_prefix("work struct ")?.split_once(": function ")?;
            let function = trace.name(plain(function));
            Kind::Start { work: address(work)?, function }
        }
        "workqueue_execute_end" => {
            Kind::End { work: address(fields.strip_prefix("work struct ")?.split([' ', ':']).next()?)? }
        }
        _ => return None,
    })
}

/// A function's name without offset, module and the compiler's suffixes.
fn plain(function: &str) -> &str {
    let function = function.split([' ', '+']).next().unwrap_or(function);
    function.split(".cfi_jt").next().unwrap_or(function).split(".llvm.").next().unwrap_or(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# tracer: nop
           <...>-57      [001] dNh3.    12.000001: workqueue_queue_work: work struct=00000000a1b2c3d4 function=verity_work workqueue=fsverity_read_queue req_cpu=8 cpu=0
           a b-c-57      [001] d.s3.    12.000002: workqueue_activate_work: work struct 00000000a1b2c3d4 function=verity_work 
           a b-c-57      [001] d..3.    12.000003: sched_waking: comm=kworker/0:1H pid=31 prio=100 target_cpu=000
CPU:0 [LOST 3 EVENTS]
          <idle>-0       [000] d..2.    12.000005: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=kworker/0:1H next_pid=31 next_prio=100
    kworker/0:1H-31      [000] .....    12.000006: workqueue_execute_start: work struct 00000000a1b2c3d4: function verity_work.cfi_jt+0x0/0x40
    kworker/0:1H-31      [000] .....    12.000009: workqueue_execute_end: work struct 00000000a1b2c3d4: function verity_work
    kworker/0:1H-31      [000] d..2.    12.000010: sched_switch: prev_comm=kworker/0:1H prev_pid=31 prev_prio=100 prev_state=I ==> next_comm=x [y] ==> z next_pid=57 next_prio=120
            x-57         [000] d..2.    12.000011: sched_migrate_task: comm=kworker/u4:1 pid=9 prio=100 orig_cpu=0 dest_cpu=1
            x-57         [000] d..2.    12.000011: workqueue_queue_work: work struct=00000000a1b2c3d5 function=f workqueue=q req_cpu=8 cpu=-1
";

    #[test]
    fn the_kernels_text_becomes_events() {
        let trace = parse(TEXT);
        assert_eq!((trace.events.len(), trace.lost), (9, 3));
        let kinds: Vec<Kind> = trace.events.iter().map(|event| event.kind).collect();
        assert_eq!(kinds[0], Kind::Queue { work: 0xa1b2_c3d4, function: 0, queue: 1, cpu: Some(0) });
        assert_eq!(kinds[1], Kind::Activate { work: 0xa1b2_c3d4 });
        assert_eq!(kinds[2], Kind::Waking { pid: 31, cpu: 0 });
        assert_eq!(kinds[3], Kind::Switch { prev: 0, left: Left::Runnable, next: 31 });
        assert_eq!(kinds[4], Kind::Start { work: 0xa1b2_c3d4, function: 0 });
        assert_eq!(kinds[6], Kind::Switch { prev: 31, left: Left::Sleeping, next: 57 });
        assert!(matches!(kinds[8], Kind::Queue { cpu: None, .. }));
        assert_eq!(trace.events[0].time_ns, 12_000_001_000);
        assert_eq!(trace.events.iter().map(|e| e.interrupt).collect::<Vec<_>>()[..3], [true, true, false]);
        assert_eq!(trace.names[0], "verity_work");
        assert_eq!((trace.pool(31), trace.comms[&57].as_str()), ("0H".into(), "x [y] ==> z"));
    }

    #[test]
    fn cut_lines_are_skipped() {
        for line in TEXT.lines() {
            for cut in 0..line.len() {
                parse(&line[..cut]);
            }
        }
    }
}
