//! `postread sign` against `fsverity sign`.

use std::fs;
use std::path::Path;

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
    let curve = "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:secp256k1 -out k1.pem";
    expect(&run(at, "openssl", &curve.split(' ').collect::<Vec<_>>()), 0);
    fails(2, &["sign", "f", "s", "--key=k1.pem"], "unsupported kind of key");
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

/// Every kind of key in every form that OpenSSL writes: what is signed with it is accepted by OpenSSL.
#[test]
fn every_form_of_a_key() {
    if !have_tool("openssl", "version", "every_form_of_a_key") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("f"), noise(10_000, 5)).unwrap();
    let openssl = |line: &str| expect(&run(at, "openssl", &line.split(' ').collect::<Vec<_>>()), 0);
    let formatted = expect(&postread(at, &["digest", "f", "--for-builtin-sig", "--compact"]), 0);
    fs::write(at.join("content"), hex::decode(formatted.trim()).unwrap()).unwrap();
    let kinds = [
        "rsa:2048",
        "ec -pkeyopt ec_paramgen_curve:P-256",
        "ec -pkeyopt ec_paramgen_curve:P-384",
        "ec -pkeyopt ec_paramgen_curve:P-521",
    ];
    for kind in kinds {
        openssl(&format!("req -x509 -nodes -subj /CN=t -days 2 -newkey {kind} -keyout p8.pem -out cert.pem"));
        openssl("x509 -in cert.pem -outform der -out cert.der");
        openssl("pkcs8 -topk8 -nocrypt -in p8.pem -outform der -out p8.der");
        openssl("pkcs8 -topk8 -in p8.pem -outform der -out locked.der -passout pass:x");
        // PKCS#1 or SEC1.
        openssl("pkey -in p8.pem -traditional -out old.pem");
        let tool = if kind.starts_with("rsa") { "rsa -traditional" } else { "ec" };
        openssl(&format!("{tool} -in p8.pem -outform der -out old.der"));
        for (key, cert) in
            [("p8.pem", "cert.pem"), ("p8.der", "cert.der"), ("old.pem", "cert.pem"), ("old.der", "cert.der")]
        {
            let (key, cert) = (format!("--key={key}"), format!("--cert={cert}"));
            expect(&postread(at, &["sign", "f", "sig", &key, &cert]), 0);
            openssl(
                "smime -verify -binary -inform der -in sig -content content -nointern -noverify -certfile cert.pem -out seen",
            );
        }
        let locked = postread(at, &["sign", "f", "sig", "--key=locked.der", "--cert=cert.pem"]);
        expect(&locked, 3);
        assert!(stderr(&locked).contains("the private key is encrypted"), "{}", stderr(&locked));
    }
}

/// A SoftHSM token of the test's own.
struct Token {
    dir: std::path::PathBuf,
    module: String,
}

impl Token {
    fn new(dir: &Path, test: &str) -> Option<Token> {
        let module = ["/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/pkcs11/libsofthsm2.so"];
        let module = module.into_iter().find(|module| Path::new(module).exists());
        let module = postread_tests::require("SoftHSM", module.ok_or("no libsofthsm2.so"))?;
        if !have_tool("softhsm2-util", "--version", test) || !have_tool("pkcs11-tool", "--help", test) {
            return None;
        }
        fs::create_dir(dir.join("tokens")).unwrap();
        let conf = format!("directories.tokendir = {}\nobjectstore.backend = file\n", dir.join("tokens").display());
        fs::write(dir.join("softhsm.conf"), conf).unwrap();
        let token = Token { dir: dir.to_owned(), module: module.to_owned() };
        token.util("--init-token --free --label tok --so-pin 4321 --pin 1234");
        Some(token)
    }

    fn run(&self, program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> std::process::Output {
        let mut command = std::process::Command::new(program);
        command.current_dir(&self.dir).env("SOFTHSM2_CONF", self.dir.join("softhsm.conf")).args(args);
        command.stdin(std::process::Stdio::null()).output().unwrap()
    }

    fn util(&self, line: &str) {
        expect(&self.run("softhsm2-util", &line.split(' ').collect::<Vec<_>>()), 0);
    }

    fn tool(&self, line: &str) {
        let args = [&["--module", &self.module, "--token-label", "tok", "--login", "--pin", "1234"][..]];
        expect(&self.run("pkcs11-tool", &[args.concat(), line.split(' ').collect()].concat()), 0);
    }

    /// As another session leader, so that nobody is asked for a PIN.
    fn postread(&self, args: &[&str]) -> std::process::Output {
        self.run("setsid", &[&["--wait", env!("CARGO_BIN_EXE_postread")], args].concat())
    }
}

/// Keys in a token, made there or brought there, with the PIN and the certificate from wherever they may be: OpenSSL and
/// `fsverity` accept the signatures.
#[test]
fn keys_of_a_pkcs11_token() {
    let test = "keys_of_a_pkcs11_token";
    if !have_tool("openssl", "version", test) || !have_tool("fsverity", "--version", test) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let Some(token) = Token::new(at, test) else { return };
    fs::write(at.join("f"), noise(10_000, 5)).unwrap();
    fs::write(at.join("pin"), "1234\n").unwrap();
    fs::write(at.join("wrong"), "9999").unwrap();
    let openssl = |line: &str| expect(&run(at, "openssl", &line.split(' ').collect::<Vec<_>>()), 0);
    let formatted = expect(&postread(at, &["digest", "f", "--for-builtin-sig", "--compact"]), 0);
    fs::write(at.join("content"), hex::decode(formatted.trim()).unwrap()).unwrap();
    let module = format!("--pkcs11-module={}", token.module);
    let kinds = [
        ("rsa:2048", "01"),
        ("ec -pkeyopt ec_paramgen_curve:P-256", "02"),
        ("ec -pkeyopt ec_paramgen_curve:P-384", "03"),
        ("ec -pkeyopt ec_paramgen_curve:P-521", "04"),
    ];
    for (kind, id) in kinds {
        openssl(&format!("req -x509 -nodes -subj /CN=t{id} -days 2 -newkey {kind} -keyout key.pem -out cert{id}.pem"));
        openssl(&format!("x509 -in cert{id}.pem -outform der -out cert.der"));
        token.util(&format!("--import key.pem --token tok --label key{id} --id {id} --pin 1234"));
        token.tool(&format!("--write-object cert.der --type cert --id {id} --label cert{id}"));
        let cert = format!("--cert=cert{id}.pem");
        for (uri, cert) in [
            (format!("pkcs11:token=tok;object=key{id}?pin-value=1234"), Some(&cert)),
            (format!("pkcs11:token=tok;id=%{id};type=private?pin-source=file:pin"), None),
        ] {
            let uri = format!("--pkcs11-uri={uri}");
            let mut args = vec!["sign", "f", "sig", &uri, &module];
            args.extend(cert.map(String::as_str));
            expect(&token.postread(&args), 0);
            openssl(&format!(
                "smime -verify -binary -inform der -in sig -content content -nointern -noverify -certfile cert{id}.pem -out seen"
            ));
        }
        // RSA with this padding has no randomness: the same bytes as with the key in a file, and as fsverity's.
        if id == "01" {
            expect(&run(at, "fsverity", &["sign", "f", "theirs", "--key=key.pem", &cert]), 0);
            assert!(fs::read(at.join("sig")).unwrap() == fs::read(at.join("theirs")).unwrap());
            let uri = "--pkcs11-uri=pkcs11:object=key01?pin-value=1234";
            let sha512 = ["--hash-alg=sha512", &cert];
            expect(&token.postread(&[&["sign", "f", "sig", uri, &module][..], &sha512].concat()), 0);
            expect(&run(at, "fsverity", &[&["sign", "f", "theirs", "--key=key.pem"][..], &sha512].concat()), 0);
            assert!(fs::read(at.join("sig")).unwrap() == fs::read(at.join("theirs")).unwrap());
        }
    }
    // A key that never was anywhere else, and wants its PIN for each signature.
    token.tool("--keypairgen --key-type rsa:2048 --id 05 --label always --always-auth");
    let fails = |status, uri: &str, more: &[&str], wanted: &str| {
        let uri = format!("--pkcs11-uri={uri}");
        let output = token.postread(&[&["sign", "f", "none", &uri], more].concat());
        expect(&output, status);
        assert!(stderr(&output).contains(wanted), "{uri}: {}", stderr(&output));
        assert!(!at.join("none").exists());
    };
    let (module, cert) = (&module[..], "--cert=cert01.pem");
    let both = &[module, cert][..];
    // It signs; the certificate is another key's.
    fails(3, "pkcs11:object=always?pin-value=1234", both, "does not belong to the certificate");
    fails(
        2,
        "pkcs11:object=always?pin-value=1234",
        &[module],
        "no certificate for this key: give one in a file with --cert",
    );
    fails(3, "pkcs11:object=key01", both, "token \"tok\" needs a PIN: add pin-source=");
    fails(3, "pkcs11:object=key01?pin-source=wrong", both, "wrong PIN of token \"tok\"");
    fails(4, "pkcs11:object=key01?pin-source=absent", both, "absent: No such file");
    fails(3, "pkcs11:token=other", both, "no such token; tokens found: \"tok\"");
    fails(3, "pkcs11:object=other?pin-value=1234", both, "token \"tok\" has no such private key");
    fails(2, "pkcs11:token=tok?pin-value=1234", both, "5 private keys of token \"tok\" match; add object= or id=");
    fails(2, "pkcs11:tokn=tok", both, "unknown attribute \"tokn\"");
    fails(4, "pkcs11:token=tok?module-path=/none.so", &[cert], "PKCS#11 module /none.so: ");
    fails(4, "pkcs11:token=tok?module-path=f", &[cert], "give the token's module with --pkcs11-module");
    token.util("--init-token --free --label tok --so-pin 4321 --pin 1234");
    fails(2, "pkcs11:token=tok?pin-value=1234", both, "several tokens match: \"tok\" (serial ");
    // One of the two.
    expect(&token.postread(&["sign", "f", "none", "--key=key.pem", "--pkcs11-uri=pkcs11:"]), 2);
    expect(&token.postread(&["sign", "f", "none"]), 2);
    expect(&token.postread(&["sign", "f", "none", "--key=key.pem", cert, module]), 2);
}

/// A token with an RSA key, `key.pem` and `cert.pem`, and the signature of `f` that `fsverity` makes with it, `theirs`.
fn token_with_rsa_key(at: &Path, test: &str) -> Option<Token> {
    if !have_tool("openssl", "version", test) || !have_tool("fsverity", "--version", test) {
        return None;
    }
    let token = Token::new(at, test)?;
    let new = "req -x509 -nodes -subj /CN=t -days 2 -newkey rsa:2048 -keyout key.pem -out cert.pem";
    expect(&run(at, "openssl", &new.split(' ').collect::<Vec<_>>()), 0);
    token.util("--import key.pem --token tok --label rsa --id 01 --pin 1234");
    fs::write(at.join("f"), noise(10_000, 5)).unwrap();
    expect(&run(at, "fsverity", &["sign", "f", "theirs", "--key=key.pem", "--cert=cert.pem"]), 0);
    Some(token)
}

/// The options that `fsverity sign` has for tokens. OpenSSL's engine is not used, and not silently ignored.
#[test]
fn options_of_fsverity_for_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let Some(token) = token_with_rsa_key(at, "options_of_fsverity_for_a_token") else { return };
    let module = format!("--pkcs11-module={}", token.module);
    let keyid = "--pkcs11-keyid=pkcs11:object=rsa?pin-value=1234";
    expect(&token.postread(&["sign", "f", "ours", &module, keyid, "--cert=cert.pem"]), 0);
    assert!(fs::read(at.join("ours")).unwrap() == fs::read(at.join("theirs")).unwrap());
    // The token's only key, which needs a PIN that nobody is there to type.
    let alone = token.postread(&["sign", "f", "none", &module, "--cert=cert.pem"]);
    expect(&alone, 3);
    assert!(stderr(&alone).contains("token \"tok\" needs a PIN"), "{}", stderr(&alone));
    let engine = ["sign", "f", "none", "--pkcs11-engine=/lib/pkcs11.so", &module, keyid, "--cert=cert.pem"];
    let engine = token.postread(&engine);
    expect(&engine, 2);
    assert!(stderr(&engine).contains("leave this option out"), "{}", stderr(&engine));
    assert!(!at.join("none").exists());
}

/// A PIN is in no message, whatever is wrong with its URI; and none is tried that can't be right.
#[test]
fn pins_are_neither_printed_nor_wasted() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let Some(token) = token_with_rsa_key(at, "pins_are_neither_printed_nor_wasted") else { return };
    fs::write(at.join("empty"), "\n").unwrap();
    let module = format!("--pkcs11-module={}", token.module);
    for (status, uri, wanted) in [
        (2, "pkcs11:tokn=tok?pin-value=SECRET", "unknown attribute \"tokn\""),
        (2, "pkcs11:object=rsa;pin-value=SECRET", "unknown attribute \"pin-value\""),
        (2, "pkcs11:object=rsa?SECRET", "attribute 1 of the query: expected NAME=VALUE"),
        (2, "pkcs11:object=rsa?pin-value=SECRET%3", "bad value of pin-value"),
        (2, "pkcs:object=rsa?pin-value=SECRET", "begins with"),
        (2, "pkcs11:object=rsa?pin-value=SECRET&pin-source=file:empty", "exclude each other"),
        (3, "pkcs11:object=rsa?pin-value=SECRET", "wrong PIN"),
        (3, "pkcs11:object=rsa?pin-value=", "needs a PIN"),
        (2, "pkcs11:object=rsa?pin-source=file:empty", "empty: expected a PIN"),
    ] {
        let output = token.postread(&["sign", "f", "none", &module, &format!("--pkcs11-uri={uri}"), "--cert=cert.pem"]);
        expect(&output, status);
        assert!(stderr(&output).contains(wanted), "{uri}: {}", stderr(&output));
        assert!(!stderr(&output).contains("SECRET"), "{uri}: {}", stderr(&output));
    }
}

/// Tokens whose plain mechanisms are switched off hash themselves; where that does not help, the message names the
/// mechanisms. One that wants its PIN before each signature gets it.
#[test]
fn tokens_that_hash_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let Some(token) = token_with_rsa_key(at, "tokens_that_hash_themselves") else { return };
    let conf = fs::read_to_string(at.join("softhsm.conf")).unwrap();
    let module = format!("--pkcs11-module={}", token.module);
    let sign = |object: &str, more: &[&str]| {
        let uri = format!("--pkcs11-uri=pkcs11:object={object}?pin-value=1234");
        token.postread(&[&["sign", "f", "ours", &module, &uri, "--cert=cert.pem"], more].concat())
    };
    let fails = |output: &std::process::Output, wanted: &str| {
        expect(output, 3);
        assert!(stderr(output).contains(wanted), "{}", stderr(output));
    };
    let same = || {
        assert!(fs::read(at.join("ours")).unwrap() == fs::read(at.join("theirs")).unwrap());
        fs::remove_file(at.join("ours")).unwrap();
    };
    let only = "slots.mechanisms = CKM_SHA256_RSA_PKCS,CKM_SHA256\n";
    fs::write(at.join("softhsm.conf"), format!("{conf}{only}")).unwrap();
    expect(&sign("rsa", &[]), 0);
    same();
    fails(&sign("rsa", &["--hash-alg=sha512"]), "it refuses CKM_RSA_PKCS and CKM_SHA512_RSA_PKCS");
    fs::write(at.join("softhsm.conf"), conf).unwrap();

    expect(&run(at, "openssl", &["rsa", "-in", "key.pem", "-traditional", "-outform", "der", "-out", "key.der"]), 0);
    token.tool("--write-object key.der --type privkey --label each --id 02 --usage-sign --always-auth");
    expect(&sign("each", &[]), 0);
    same();
    // The keys that are there, where none matches.
    fails(&sign("none", &[]), "has no such private key; keys found: \"each\" (id %02), \"rsa\" (id %01)");
}

/// The signature goes over none of the files that making it reads.
#[test]
fn what_a_token_needs_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let Some(token) = token_with_rsa_key(at, "what_a_token_needs_is_not_overwritten") else { return };
    fs::copy(&token.module, at.join("module.so")).unwrap();
    fs::write(at.join("pin"), "1234").unwrap();
    let uri = "--pkcs11-uri=pkcs11:object=rsa?pin-source=file:pin";
    let inside = format!("{uri}&module-path=./module.so");
    for (out, args) in [
        ("module.so", &[uri, "--pkcs11-module=./module.so"][..]),
        ("module.so", &[&inside]),
        ("pin", &[uri, "--pkcs11-module=./module.so"]),
    ] {
        let before = fs::read(at.join(out)).unwrap();
        let output = token.postread(&[&["sign", "f", out, "--cert=cert.pem"], args].concat());
        expect(&output, 2);
        assert!(stderr(&output).contains("are the same file"), "{}", stderr(&output));
        assert!(fs::read(at.join(out)).unwrap() == before, "{out}");
    }
}

/// Stops the program at its end and looks for the numbers of `$NEEDLES` in all memory that it can write.
const SCAN: &str = r#"
import gdb, os
process = gdb.selected_inferior()
found, scanned = 0, 0
for line in open('/proc/%d/maps' % process.pid):
    fields = line.split()
    if not fields[1].startswith('rw'): continue
    start, end = [int(at, 16) for at in fields[0].split('-')]
    try: memory = bytes(process.read_memory(start, end - start))
    except gdb.error: continue
    scanned += len(memory)
    for needle in os.environ['NEEDLES'].split():
        if bytes.fromhex(needle) in memory:
            found += 1
            print('FOUND', needle[:16], 'in', fields[-1])
print('RESULT', found, scanned)
"#;

/// Nothing of a private key is left in memory when the program ends: neither the text of its file, nor the number that
/// is computed with.
#[test]
fn no_private_key_is_left_in_memory() {
    let test = "no_private_key_is_left_in_memory";
    if !have_tool("openssl", "version", test) || !have_tool("gdb", "--version", test) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("f"), noise(10_000, 5)).unwrap();
    fs::write(at.join("scan.py"), SCAN).unwrap();
    let openssl = |line: &str| expect(&run(at, "openssl", &line.split(' ').collect::<Vec<_>>()), 0);
    let number = |text: &str, name: &str| {
        let (_, digits) = text.split_once(&format!("{name}:\n")).unwrap();
        let digits = digits.lines().take_while(|line| line.starts_with("    "));
        let bytes = hex::decode(digits.collect::<String>().replace([' ', ':'], "")).unwrap();
        bytes[usize::from(bytes[0] == 0)..].to_vec()
    };
    let kinds: [(&str, &[&str]); 3] = [
        ("rsa:2048", &["privateExponent", "prime1", "prime2", "exponent1", "exponent2", "coefficient"]),
        ("ec -pkeyopt ec_paramgen_curve:P-256", &["priv"]),
        ("ec -pkeyopt ec_paramgen_curve:P-521", &["priv"]),
    ];
    for (kind, names) in kinds {
        openssl(&format!("req -x509 -nodes -subj /CN=t -days 2 -newkey {kind} -keyout key.pem -out cert.pem"));
        let printed = openssl("pkey -in key.pem -text -noout");
        let mut needles = Vec::new();
        for name in names {
            // Half of the number, in both orders: of the other half a copy may have been overwritten.
            let mut number = number(&printed, name);
            number.truncate(number.len() / 2 / 8 * 8);
            needles.push(hex::encode(&number));
            number.reverse();
            needles.push(hex::encode(&number));
        }
        // And the text of its file.
        let text = fs::read_to_string(at.join("key.pem")).unwrap();
        needles.extend(text.lines().filter(|line| line.len() >= 64).map(hex::encode));
        for args in [&["f", "sig", "--key=key.pem", "--cert=cert.pem"][..], &["AnArgument", "sig", "--key=none"]] {
            // What is looked for is found where it is: the arguments are.
            let control = args[0] == "AnArgument";
            let needles = if control { hex::encode("AnArgument") } else { needles.join(" ") };
            let line = format!("run sign {} > /dev/null 2>&1", args.join(" "));
            let output = std::process::Command::new("gdb")
                .current_dir(at)
                .env("NEEDLES", needles)
                .args(["-q", "-batch", "-nx", "-ex", "set confirm off", "-ex", "set debuginfod enabled off"])
                .args(["-ex", "catch syscall exit_group", "-ex", &line, "-ex", "source scan.py", "-ex", "kill"])
                .args(["--args", env!("CARGO_BIN_EXE_postread")])
                .output()
                .unwrap();
            let text = crate::common::stdout(&output);
            let result = text.lines().find_map(|line| line.strip_prefix("RESULT ")?.split_once(' '));
            let Some((found, scanned)) = result else {
                postread_tests::skip(format!("gdb cannot stop the program at its end: {text}{}", stderr(&output)));
                return;
            };
            assert!(scanned.parse::<u64>().unwrap() > 100_000, "{text}");
            assert_eq!(found != "0", control, "{kind} {text}");
        }
        assert!(fs::metadata(at.join("sig")).unwrap().len() > 100);
    }
}
