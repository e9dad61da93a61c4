//! The optional features: `cargo test -p postread-workqueue --all-features --test features`.
#![cfg(any(feature = "serde", feature = "tracing"))]

use std::time::Duration;

use postread_workqueue::{Config, Pools, WqFlags};

#[cfg(feature = "serde")]
#[test]
fn statistics_serialize() {
    let pools = Pools::new(Config::new()).unwrap();
    let wq = pools.alloc("json", WqFlags::UNBOUND | WqFlags::HIGHPRI, 7).unwrap();
    for _ in 0..3 {
        wq.spawn(|| std::thread::sleep(Duration::from_millis(1)));
    }
    wq.flush().unwrap();
    let json = serde_json::to_value(wq.stats()).unwrap();
    assert_eq!((&json["name"], &json["executed"], &json["max_active"]), (&"json".into(), &3.into(), &7.into()));
    assert_eq!(json["flags"], serde_json::json!(["UNBOUND", "HIGHPRI"]));
    assert_eq!(json["attrs"]["affinity_scope"], "cache_shard");
    assert_eq!(json["run"]["count"], 3);
    assert!(json["run"]["max_ns"].as_u64().unwrap() >= 1_000_000, "{json}");
    let buckets = json["run"]["buckets"].as_array().unwrap();
    assert_eq!(buckets.iter().map(|b| b[2].as_u64().unwrap()).sum::<u64>(), 3);
    assert_eq!(json["pools"][0]["workers"][0]["name"], "pr/u0:0H");
}

#[cfg(feature = "tracing")]
#[test]
fn reports_are_events() {
    use std::sync::{Arc, Mutex, mpsc};

    use tracing::field::{Field, Visit};
    use tracing::{Event, Metadata, Subscriber, span};

    /// Keeps the messages of this crate's events.
    struct Messages(Arc<Mutex<Vec<String>>>);

    struct Message(String);

    impl Visit for Message {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            if field.name() == "message" {
                self.0 = format!("{value:?}");
            }
        }
    }

    impl Subscriber for Messages {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "postread_workqueue"
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut message = Message(String::new());
            event.record(&mut message);
            self.0.lock().unwrap().push(message.0);
            // Foreign code: a subscriber that panics costs nobody the manager.
            std::panic::resume_unwind(Box::new("intended"));
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    let messages = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::set_global_default(Messages(Arc::clone(&messages))).unwrap();
    let config = Config::new().cpu_intensive_thresh(Duration::ZERO).watchdog_thresh(Duration::from_millis(10));
    let pools = Pools::new(config.unbound_concurrency(1)).unwrap();
    let wq = pools.alloc("events", WqFlags::UNBOUND, 0).unwrap();
    let (go, may_go) = mpsc::channel::<()>();
    wq.spawn(move || {
        let _ = may_go.recv();
    });
    wq.spawn(|| ());
    while pools.reports().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    go.send(()).unwrap();
    wq.flush().unwrap();
    let messages = messages.lock().unwrap();
    assert!(messages[0].starts_with("pool u0: stalled for "), "{messages:?}");
}
