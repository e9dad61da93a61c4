//! `postread lab`: small runs, whose reports validate. What they measure is not judged.

use std::fs;

use crate::common::postread;
use crate::schemas::{have_validator, valid};

const TINY: &str = "postread-workload 1
app tiny
compute 500
foreground 1 500
file 300000 f
file 5000 g
read 0 100 0 0 4096
read 0 100 0 8192 65536
read 1 0 1 0 5000
read 1 50 0 200000 100000
";

#[test]
fn app_start_and_tar_report_what_their_schema_says() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tiny"), TINY).unwrap();
    for extra in [&["--rounds", "1"][..], &["--rounds", "3", "--direct", "--seed", "7"]] {
        let arguments = [&["lab", "app-start", "--trace", "tiny", "--dir", ".", "--json"], extra].concat();
        let output = postread(dir.path(), &arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        if error.contains("O_DIRECT") || error.contains("file system") && error.contains("memory") {
            eprintln!("SKIP lab: {error}");
            return;
        }
        assert_eq!(output.status.code(), Some(0), "{error}");
        if have_validator("app_start") {
            valid(&output.stdout);
        }
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let report = &report["results"]["app_start"];
        let arms = report["arms"].as_array().unwrap();
        // Three ranks of both placements, inline, and the twin of bound; as root completers as threads beside interrupts.
        let whole = if report["granted"]["completers"] == "interrupt" { 10 } else { 8 };
        assert_eq!(arms.len(), whole);
        assert_eq!(arms.iter().filter(|arm| arm["twin"] == true).count(), 1);
        for arm in arms {
            let measured = &arm["measured"];
            if measured.is_null() {
                // Only the rank that needs a privilege may be missing, and it says what the system granted.
                assert_eq!(arm["rank"], "nice-20");
                assert!(!arm["granted"].as_str().unwrap().is_empty());
                continue;
            }
            let figure = |name: &str| measured["figures"][name].as_f64().unwrap();
            assert!(figure("bytes") >= 174_632.0, "{arm}");
            // Every class of threads, and their sum beside them: a wait cannot move to threads that nobody totals.
            for (unit, tolerance) in [("latency_us", 1.0), ("cpu_ms", 0.01)] {
                let classes = ["workers", "completers", "readers", "foreground"].map(|class| format!("{class}_{unit}"));
                let sum: f64 = classes.iter().map(|class| figure(class)).sum();
                // Medians of one round are its values.
                if extra[1] == "1" {
                    assert!((sum - figure(&format!("all_threads_{unit}"))).abs() < tolerance, "{arm}");
                }
            }
            assert!(figure("readers_cpu_ms") > 0.0 && figure("foreground_cpu_ms") > 0.0, "{arm}");
            // Demand and read-ahead stand apart, and every bio is in one of them.
            assert!(figure("demand_bios") > 0.0, "{arm}");
            let inline = arm["placement"] == "inline";
            assert_eq!(figure("items") == 0.0, inline, "{arm}");
            // Inline's own queue, in front of the completing threads, is a figure.
            assert!(measured["quantiles_us"]["source_queue_p50"].is_number(), "{arm}");
            if arm["twin"] == false {
                let ledger = &measured["ledger"]["stamped"];
                let ns = |name: &str| ledger[name].as_u64().unwrap();
                assert_eq!(ns("wait_ns"), ns("throttled_ns") + ns("behind_item_ns") + ns("wake_to_start_ns"), "{arm}");
                if let Some(traced) = measured["ledger"]["traced"].as_object() {
                    let parts = traced["parts"].as_object().unwrap();
                    let sum: u64 = parts.values().map(|part| part.as_u64().unwrap()).sum();
                    assert_eq!(sum, traced["wait_ns"].as_u64().unwrap());
                }
            }
        }
        // Every comparison has an answer, an interval and the twins' noise beside it.
        for verdict in report["verdicts"].as_array().unwrap() {
            assert!(!verdict["answer"].as_str().unwrap().is_empty(), "{verdict}");
            if extra[1] == "3" && verdict["answer"] != "not measured" {
                assert!(verdict["effect"]["low_percent"].is_number(), "{verdict}");
                assert!(verdict["p_holm"].as_f64() >= verdict["effect"]["p"].as_f64(), "{verdict}");
            }
        }
    }
    let arguments = ["lab", "tar", "--quick", "--rounds", "1", "--jobs", "1", "--dir", ".", "--json"];
    let output = postread(dir.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    if have_validator("tar") {
        valid(&output.stdout);
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for group in report["results"]["tar"]["groups"].as_array().unwrap() {
        for arm in group["arms"].as_array().unwrap().iter().filter(|arm| !arm["measured"].is_null()) {
            // All reads complete on one CPU.
            let busy =
                arm["measured"]["completions"].as_array().unwrap().iter().filter(|n| n.as_u64() > Some(0)).count();
            assert!(busy <= 1, "{arm}");
        }
    }
    // Nothing is left behind.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// The page is whole in a browser's eyes: it parses, draws, and asks for nothing else.
#[test]
fn the_page_opens_in_a_browser() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tiny"), TINY).unwrap();
    let arguments = ["lab", "app-start", "--trace", "tiny", "--rounds", "2", "--dir", ".", "--html", "page.html"];
    let output = postread(dir.path(), &arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("file system") && error.contains("memory") {
        eprintln!("SKIP lab: {error}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{error}");
    let Some(chromium) = postread_tests::require_tool("chromium") else { return };
    let browse = |what: &[&str]| {
        let mut command = std::process::Command::new(&chromium);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,3000"]);
        command.arg(format!("--user-data-dir={}", dir.path().join("profile").display())).args(what);
        command.arg(format!("file://{}", dir.path().join("page.html").canonicalize().unwrap().display()));
        postread_tests::run(command.current_dir(dir.path()))
    };
    let dom = String::from_utf8(browse(&["--dump-dom"]).stdout).unwrap();
    for (what, least) in
        [("class=\"verdict\"", 10), ("class=\"effect\"", 5), ("class=\"bio\"", 5), ("class=\"bar\"", 4), ("<svg", 3)]
    {
        assert!(dom.matches(what).count() >= least, "{what}: {dom}");
    }
    browse(&["--screenshot=page.png"]);
    // A blank page of this size has a few kilobytes.
    assert!(fs::metadata(dir.path().join("page.png")).unwrap().len() > 40_000);
}

/// A real kernel, one boot of each arm. What it measures is not judged; that the ledger explains it is.
#[test]
fn the_patches_run_on_a_real_kernel() {
    for tool in ["zstd", "mkfs.ext4", "mkfs.f2fs", "xfs_io"] {
        if postread_tests::require_tool(tool).is_none() {
            return;
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let output = postread(dir.path(), &["lab", "kernel", "--quick", "--rounds", "1", "--dir", ".", "--json"]);
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("no User-Mode Linux kernel") || error.contains("in memory") {
        eprintln!("SKIP lab kernel: {error}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{error}");
    if have_validator("kernel") {
        valid(&output.stdout);
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let report = &report["results"]["kernel"];
    assert_eq!(report["missing"], serde_json::json!([]));
    let groups = report["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 4);
    for group in groups {
        for arm in group["arms"].as_array().unwrap() {
            assert!(arm["items"].as_f64().unwrap() > 100.0, "{arm}");
            assert!(arm["unexplained_percent"].as_f64().unwrap() <= 2.0, "{arm}");
        }
        assert_eq!(group["arms"].as_array().unwrap().len(), 5);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "something was left behind");
}

#[test]
fn what_is_no_kernel_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("kernel"), "no kernel").unwrap();
    for (kernel, why) in [("kernel", "not a kernel"), ("none", "no such kernel")] {
        let output = postread(dir.path(), &["lab", "kernel", "--kernel", kernel, "--dir", "."]);
        let error = String::from_utf8_lossy(&output.stderr);
        if error.contains("memory") {
            return;
        }
        assert_eq!(output.status.code(), Some(4), "{error}");
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    let output = postread(dir.path(), &["lab", "guest", "nonsense"]);
    assert_eq!(output.status.code(), Some(4));
}

/// The kernel's own instance of tracefs, and the directory, are as they were however the program ends.
#[test]
fn an_interrupt_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tiny"), TINY).unwrap();
    let instances = || fs::read_dir("/sys/kernel/tracing/instances").map_or(0, Iterator::count);
    let before = instances();
    for millis in [30, 300, 900] {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_postread"))
            .current_dir(dir.path())
            .args(["lab", "app-start", "--trace", "tiny", "--rounds", "3", "--dir", "."])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(millis));
        let _ = child.kill();
        child.wait().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
    for _ in 0..100 {
        if instances() <= before {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("a trace instance was left behind");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tiny"), TINY).unwrap();
    for json in [&[][..], &["--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_postread"))
            .current_dir(dir.path())
            .args(["lab", "app-start", "--trace", "tiny", "--rounds", "1", "--dir", "."])
            .args(json)
            .stdout(writer)
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        if error.contains("file system") && error.contains("memory") {
            eprintln!("SKIP lab: {error}");
            return;
        }
        assert_eq!((output.status.code(), &*error), (Some(0), ""), "{json:?}");
    }
}

/// They would be ignored: the experiment has options of its own.
#[test]
fn options_before_an_experiment_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for options in [&["--rounds", "3"][..], &["--quick"], &["--json"], &["--dir", "."], &["--seed", "2"], &["-q"]] {
        for experiment in [&["app-start"][..], &["tar"], &["factors"], &["kernel"], &["record", "true"]] {
            let output = postread(dir.path(), &[&["lab"], options, experiment].concat());
            assert_eq!(output.status.code(), Some(2), "{options:?} {experiment:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains(experiment[0]));
        }
    }
}

#[test]
fn what_can_not_be_measured_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("bad"), "postread-workload 1\napp a\nread 0 0 0 0 1\n").unwrap();
    let code = |arguments: &[&str]| postread(dir.path(), &[&["lab", "app-start"], arguments].concat()).status.code();
    assert_eq!(code(&["--trace", "bad"]), Some(2));
    assert_eq!(code(&["--trace", "none"]), Some(4));
    assert_eq!(code(&["--trace", "/dev/zero"]), Some(2));
    assert_eq!(code(&["--rounds", "0"]), Some(2));
    assert_eq!(code(&["--dir", "none"]), Some(4));
    if std::path::Path::new("/dev/shm").is_dir() {
        // Files in memory are never cold.
        assert_eq!(code(&["--dir", "/dev/shm"]), Some(2));
    }
}
