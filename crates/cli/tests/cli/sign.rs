//! `postread sign` against `fsverity sign`.

use std::fs;

use crate::common::{expect, have_tool, noise, postread, run, stderr};

#[test]
fn as_fsverity_sign() {
    let test = "as_fsverity_sign";
    if !have_tool("openssl", "version", test) || !have_tool("fsverity", "--version", test) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let new = "req -x509 -nodes -subj /CN=t -days 2 -newkey rsa:2048 -keyout key.pem -out cert.pem";
    expect(&run(at, "openssl", &new.split(' ').collect::<Vec<_>>()), 0);
    fs::write(at.join("f"), noise(70_000, 5)).unwrap();
    for options in [&[][..], &["--hash-alg=sha512", "--block-size=1024", "--salt=beef"]] {
        let sign =
            |sig, tree, desc| [&["sign", "f", sig, "--key=key.pem", "--cert=cert.pem", tree, desc], options].concat();
        let ours = postread(at, &sign("s1", "--out-merkle-tree=t1", "--out-descriptor=d1"));
        let theirs = run(at, "fsverity", &sign("s2", "--out-merkle-tree=t2", "--out-descriptor=d2"));
        assert_eq!(expect(&ours, 0), expect(&theirs, 0));
        for (a, b) in [("s1", "s2"), ("t1", "t2"), ("d1", "d2")] {
            assert!(fs::read(at.join(a)).unwrap() == fs::read(at.join(b)).unwrap(), "{a} {options:?}");
        }
    }
    // A key and its certificate in one file.
    let both = [fs::read(at.join("key.pem")).unwrap(), fs::read(at.join("cert.pem")).unwrap()].concat();
    fs::write(at.join("both.pem"), both).unwrap();
    assert_eq!(expect(&postread(at, &["sign", "f", "s3", "--key=both.pem", "--quiet"]), 0), "");

    let fails = |status, args: &[&str], wanted: &str| {
        let output = postread(at, args);
        expect(&output, status);
        assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
    };
    fails(2, &["sign", "f", "s", "--key=cert.pem"], "no PEM block with a private key");
    fails(2, &["sign", "f", "s", "--key=key.pem"], "no PEM block with a certificate");
    fs::write(at.join("empty"), "").unwrap();
    fails(2, &["sign", "f", "s", "--key=empty"], "no PEM block with a private key");
    let curve = "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-521 -out p521.pem";
    expect(&run(at, "openssl", &curve.split(' ').collect::<Vec<_>>()), 0);
    fails(2, &["sign", "f", "s", "--key=p521.pem"], "unsupported kind of key");
    let digest = expect(&postread(at, &["digest", "f"]), 0);
    let digest = digest.split(' ').next().unwrap();
    fails(
        2,
        &["verify", "f", "--digest", digest, "--signature=s3", "--cert=key.pem"],
        "no PEM block with a certificate",
    );
    fails(4, &["sign", "f", "s", "--key=none"], "none: No such file");
    fails(4, &["sign", "none", "s", "--key=both.pem"], "none: No such file");
    fails(2, &["sign", ".", "s", "--key=both.pem"], "not a regular file");
    fails(4, &["sign", "f", "no/dir/s", "--key=both.pem"], "no/dir/s: ");
    fails(2, &["sign", "f", "s", "--key=both.pem", "--block-size=3"], "block size 3");
    let other = "req -x509 -nodes -subj /CN=t -days 2 -newkey rsa:2048 -keyout other.pem -out othercert.pem";
    expect(&run(at, "openssl", &other.split(' ').collect::<Vec<_>>()), 0);
    fails(3, &["sign", "f", "s", "--key=key.pem", "--cert=othercert.pem"], "does not belong to the certificate");
}
