//! `postread verify` and `postread cat`, with trees that `fsverity` makes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A file with the tree, descriptor and digest that `fsverity` has for it; none where there is no `fsverity`.
struct Made {
    dir: tempfile::TempDir,
    bytes: Vec<u8>,
    digest: String,
}

fn made(len: usize, options: &[&str]) -> Option<Made> {
    let tool = postread_tests::require_tool("fsverity")?;
    let dir = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..len as u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).take(len).collect();
    fs::write(dir.path().join("f"), &bytes).unwrap();
    let mut command = Command::new(tool);
    command.current_dir(&dir).args(["digest", "--compact", "f", "--out-merkle-tree=tree", "--out-descriptor=desc"]);
    let output = postread_tests::run(command.args(options));
    let alg = options.iter().find_map(|o| o.strip_prefix("--hash-alg=")).unwrap_or("sha256");
    let digest = format!("{alg}:{}", String::from_utf8(output.stdout).unwrap().trim());
    Some(Made { dir, bytes, digest })
}

impl Made {
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn damage(&self, name: &str, at: usize) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        bytes[at] ^= 0x40;
        fs::write(self.path(name), bytes).unwrap();
    }

    fn postread(&self, command: &str, rest: &[&str]) -> Output {
        postread(self.dir.path(), &[&[command, "f", "--digest", &self.digest], rest].concat())
    }
}

fn postread(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_postread")).current_dir(dir).args(args).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const TREE: [&str; 2] = ["--merkle-tree", "tree"];

#[test]
fn good_files_of_every_shape() {
    for options in [&[][..], &["--hash-alg=sha512"], &["--block-size=1024"], &["--salt=0102ff"]] {
        for len in [0, 1, 4096, 4097, 1_500_000] {
            let Some(m) = made(len, options) else { return };
            let with_params: Vec<String> = TREE.iter().chain(options).map(|&o| o.to_owned()).collect();
            let with_params: Vec<&str> = with_params.iter().map(String::as_str).collect();
            for rest in [&with_params[..], &["--merkle-tree", "tree", "--descriptor", "desc"], options] {
                for queue in ["inline", "bound", "unbound", "auto"] {
                    let rest = [rest, &["--queue", queue]].concat();
                    let output = m.postread("verify", &rest);
                    assert_eq!(code(&output), 0, "{len} {rest:?}: {output:?}");
                    assert!(text(&output.stdout).contains("verified"));
                    let output = m.postread("cat", &rest);
                    assert!(code(&output) == 0 && output.stdout == m.bytes, "{len} {rest:?}: {}", text(&output.stderr));
                }
            }
        }
    }
}

#[test]
fn every_bad_block_is_told_and_mapped() {
    let Some(m) = made(3_000_001, &[]) else { return };
    m.damage("f", 9_000);
    m.damage("f", 2_000_000);
    m.damage("tree", 8_200);
    let output =
        m.postread("verify", &["--merkle-tree", "tree", "--json", "--stats", "--map", "map", "--queue", "unbound"]);
    assert_eq!(code(&output), 1, "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let results = report["results"].as_array().unwrap();
    let of = |kind: &str| results.iter().filter(|r| r["type"] == kind).collect::<Vec<_>>();
    let data: Vec<_> =
        of("data").iter().map(|r| (r["offset"].as_u64(), r["length"].as_u64(), r["error"].as_str())).collect();
    assert_eq!(
        data,
        [
            (Some(8_192), Some(4_096), Some("corrupt")),
            (Some(524_288), Some(524_288), Some("unverifiable")),
            (Some(1_998_848), Some(4_096), Some("corrupt"))
        ]
    );
    assert_eq!(of("tree").len(), 1);
    assert_eq!((of("tree")[0]["position"].as_u64(), of("tree")[0]["level"].as_u64()), (Some(8_192), Some(0)));
    let summary = results.last().unwrap();
    assert_eq!((summary["type"].as_str(), summary["trust"].as_str()), (Some("summary"), Some("digest")));
    assert_eq!(summary["good_bytes"].as_u64(), Some(3_000_001 - 2 * 4_096 - 524_288));
    let map = fs::read(m.path("map")).unwrap();
    let map = postread_verity::ddrescue::RescueMap::parse(&map).unwrap();
    let map: Vec<_> = map.ranges().iter().map(|r| (r.pos, r.size, r.status.to_char())).collect();
    assert_eq!(
        map,
        [
            (0, 8_192, '+'),
            (8_192, 4_096, '-'),
            (12_288, 512_000, '+'),
            (524_288, 524_288, '?'),
            (1_048_576, 950_272, '+'),
            (1_998_848, 4_096, '-'),
            (2_002_944, 997_057, '+')
        ]
    );
    // A range that is good is good, whatever lies outside.
    assert_eq!(code(&m.postread("verify", &["--merkle-tree", "tree", "--range", "1100000..1900000"])), 0);
    assert_eq!(code(&m.postread("verify", &["--merkle-tree", "tree", "--range", "..8193"])), 1);
}

#[test]
fn cat_stops_before_the_first_bad_byte() {
    let Some(m) = made(1_000_000, &[]) else { return };
    m.damage("f", 700_000);
    for queue in ["inline", "bound", "unbound", "auto"] {
        let output = m.postread("cat", &["--merkle-tree", "tree", "--queue", queue]);
        assert_eq!(code(&output), 1);
        assert!(output.stdout == m.bytes[..700_000 / 4096 * 4096], "{}", output.stdout.len());
        assert!(text(&output.stderr).contains("at byte 696320"), "{}", text(&output.stderr));
        let output = m.postread("cat", &["--merkle-tree", "tree", "--queue", queue, "--range", "700416..700500"]);
        assert!(code(&output) == 0 && output.stdout == m.bytes[700_416..700_500]);
    }
}

#[test]
fn exit_statuses() {
    let Some(m) = made(1_000_000, &[]) else { return };
    let wrong = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
    let dir = m.dir.path();
    fs::write(m.path("short"), &fs::read(m.path("tree")).unwrap()[..9_000]).unwrap();
    fs::write(m.path("cut"), &m.bytes[..500_000]).unwrap();
    postread_tests::run(Command::new("mkfifo").current_dir(dir).arg("pipe"));
    let d = m.digest.as_str();
    for command in ["verify", "cat"] {
        for (wanted, args) in [
            (1, vec!["f", "--digest", wrong]),
            (1, vec!["f", "--digest", wrong, "--merkle-tree", "tree", "--descriptor", "desc"]),
            // Of other parameters.
            (2, vec!["f", "--digest", d, "--merkle-tree", "tree", "--hash-alg", "sha512"]),
            (1, vec!["f", "--digest", d, "--merkle-tree", "tree", "--block-size", "1024"]),
            (1, vec!["f", "--digest", d, "--merkle-tree", "tree", "--salt", "aa"]),
            // Short tree, truncated file, descriptor that is none.
            (2, vec!["f", "--digest", d, "--merkle-tree", "short"]),
            (1, vec!["cut", "--digest", d, "--merkle-tree", "tree", "--descriptor", "desc"]),
            (2, vec!["f", "--digest", d, "--descriptor", "tree"]),
            // Not files, or not there.
            (2, vec![".", "--digest", d]),
            (2, vec!["pipe", "--digest", d]),
            (4, vec!["nothing", "--digest", d]),
            (4, vec!["f", "--digest", d, "--merkle-tree", "nothing"]),
            // No meaning.
            (2, vec!["f"]),
            (2, vec!["f", "--digest", "sha256:12"]),
            (2, vec!["f", "--digest", d, "--max-active", "2"]),
            (2, vec!["f", "--digest", d, "--high-priority"]),
            (2, vec!["f", "--digest", d, "--queue", "bound", "--max-active", "0"]),
            (2, vec!["f", "--digest", d, "--queue", "auto", "--max-active", "2"]),
            (2, vec!["f", "--digest", d, "--queue", "auto", "--high-priority"]),
            (2, vec!["f", "--digest", d, "--memory", "10"]),
            (2, vec!["f", "--digest", d, "--range", "9..5"]),
            (2, vec!["f", "--digest", d, "--descriptor", "desc", "--salt", "aa"]),
            (2, vec!["f", "--digest", d, "--signature", "desc"]),
        ] {
            let output = postread(dir, &[&[command][..], &args].concat());
            assert_eq!(code(&output), wanted, "{command} {args:?}: {}", text(&output.stderr));
            assert!(!output.stderr.is_empty() || !output.stdout.is_empty());
        }
    }
}

#[test]
fn a_signature_in_place_of_a_digest() {
    let Some(m) = made(100_000, &[]) else { return };
    let Some(openssl) = postread_tests::require_tool("openssl") else { return };
    for who in ["ours", "theirs"] {
        postread_tests::run(Command::new(&openssl).current_dir(m.dir.path()).args([
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            &format!("{who}.key"),
            "-x509",
            "-out",
            &format!("{who}.pem"),
            "-subj",
            &format!("/CN={who}"),
        ]));
    }
    let dir = m.dir.path();
    let sign = Command::new("fsverity")
        .current_dir(dir)
        .args(["sign", "f", "sig", "--key=ours.key", "--cert=ours.pem"])
        .output()
        .unwrap();
    assert!(sign.status.success(), "{sign:?}");
    let verify = |rest: &[&str]| postread(dir, &[&["verify", "f", "--merkle-tree", "tree"][..], rest].concat());
    let good = verify(&["--signature", "sig", "--cert", "ours.pem"]);
    assert_eq!(code(&good), 0, "{good:?}");
    assert!(text(&good.stdout).contains("signed by CN=ours"), "{}", text(&good.stdout));
    assert_eq!(code(&verify(&["--signature", "sig", "--cert", "theirs.pem"])), 3);
    assert_eq!(code(&verify(&["--cert", "ours.pem"])), 2, "no signature");
    assert_eq!(code(&verify(&["--signature", "tree", "--cert", "ours.pem"])), 2, "no signature in it");
    m.damage("tree", 5);
    assert_eq!(code(&verify(&["--signature", "sig", "--cert", "ours.pem"])), 1, "another digest");
}

/// Metadata that was picked up because it lies beside the file is named when it does not fit: it may be yesterday's.
#[test]
fn a_stale_sidecar_is_named() {
    let Some(made) = made(20_000, &[]) else { return };
    fs::copy(made.path("tree"), made.path("f.verity-tree")).unwrap();
    fs::copy(made.path("desc"), made.path("f.verity-desc")).unwrap();
    assert_eq!(code(&made.postread("verify", &[])), 0);
    made.damage("f", 5000);
    let digest = postread(made.dir.path(), &["digest", "--compact", "f"]);
    let now = format!("sha256:{}", text(&digest.stdout).trim());
    let output = postread(made.dir.path(), &["verify", "f", "--digest", &now]);
    assert_eq!(code(&output), 1);
    let said = text(&output.stderr);
    assert!(said.contains("found next to the file and used: f.verity-tree, f.verity-desc"), "{said}");
    let given =
        postread(made.dir.path(), &["verify", "f", "--digest", &now, "--merkle-tree=tree", "--descriptor=desc"]);
    assert!(!text(&given.stderr).contains("beside"), "{given:?}");
    // With parameters given the descriptor is not read, and not blamed.
    let output = postread(made.dir.path(), &["verify", "f", "--digest", &now, "--hash-alg=sha256"]);
    assert!(text(&output.stderr).contains("used: f.verity-tree;"), "{output:?}");
    fs::remove_file(made.path("f.verity-tree")).unwrap();
    fs::remove_file(made.path("f.verity-desc")).unwrap();
    assert_eq!(code(&postread(made.dir.path(), &["verify", "f", "--digest", &now])), 0);
}

/// What the tools print with `--compact`, and sizes as people write them.
#[test]
fn digits_alone_and_block_sizes_with_a_letter() {
    for (options, digits) in [(&[][..], 64), (&["--hash-alg=sha512"], 128)] {
        let Some(made) = made(9000, options) else { return };
        let digest = made.digest.split_once(':').unwrap().1;
        assert_eq!(digest.len(), digits);
        assert_eq!(code(&postread(made.dir.path(), &["verify", "f", "--digest", digest])), 0);
        assert_eq!(code(&postread(made.dir.path(), &["verify", "f", "--digest", &digest[1..]])), 2);
    }
    let Some(made) = made(9000, &["--block-size=1024"]) else { return };
    assert_eq!(code(&made.postread("verify", &["--block-size=1K"])), 0);
    assert_eq!(code(&made.postread("verify", &["--block-size=5G"])), 2);
}

/// A file that grows or is replaced while it is read: the verdict says which bytes it is about.
#[test]
fn a_file_that_changes_while_it_is_verified() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::Stdio;

    for (grow, json) in [(true, false), (false, false), (true, true)] {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        let data: Vec<u8> = (0..3000u32).flat_map(|i| [i as u8; 512]).collect();
        fs::write(at.join("f"), &data).unwrap();
        let digest = |args: &[&str]| {
            let args = [&["digest", "f", "--block-size=512"], args].concat();
            let output = Command::new(env!("CARGO_BIN_EXE_postread")).current_dir(at).args(&args).output().unwrap();
            String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
        };
        let digest = digest(&["--out-merkle-tree=f.verity-tree"]);
        // Every block is bad: more lines than a pipe holds, so that the program waits for us in the middle.
        fs::write(at.join("f"), data.iter().map(|b| !b).collect::<Vec<_>>()).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_postread"))
            .current_dir(at)
            .args(["verify", "f", "--block-size=512", "--digest", &digest])
            .args(json.then_some("--json"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        out.read_line(&mut text).unwrap();
        let said = if grow {
            fs::OpenOptions::new().append(true).open(at.join("f")).unwrap().write_all(b"more").unwrap();
            format!("the file changed from {} to {} bytes while it was read", data.len(), data.len() + 4)
        } else {
            fs::write(at.join("new"), &data).unwrap();
            fs::rename(at.join("new"), at.join("f")).unwrap();
            "the name leads to another file than the one that was opened and read".to_owned()
        };
        out.read_to_string(&mut text).unwrap();
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1));
        let verified = format!("what was verified is the file that was opened, with {} bytes", data.len());
        assert!(errors.contains(&format!("f: {said}; {verified}")), "{errors}");
        assert_eq!(text.contains(&format!("\"changed\":\"{said}\"")), json);
    }
}
