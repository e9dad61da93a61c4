//! Signatures against OpenSSL and `fsverity sign`: ours are accepted by them, theirs by us, RSA's are the same bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use postread_verity::signature::{Certificate, KeyError, SignError, SignatureError, SigningKey, sign, verify};
use postread_verity::{Descriptor, Digest, FileDigest, HashAlg, MAX_SIGNATURE_SIZE, MerkleTreeParams, Trust};

use crate::common::have_tool;

struct Signer {
    dir: tempfile::TempDir,
    key_file: PathBuf,
    cert_file: PathBuf,
    key: SigningKey,
    cert: Certificate,
}

fn run(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

impl Signer {
    /// A new key and its self-signed certificate, made by OpenSSL. `newkey` are the options that say which kind.
    fn new(newkey: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (key_file, cert_file) = (dir.path().join("key.pem"), dir.path().join("cert.pem"));
        let mut args = vec!["req", "-x509", "-nodes", "-subj", "/CN=postread test", "-days", "2", "-newkey"];
        args.extend(newkey);
        args.extend(["-keyout", text(&key_file), "-out", text(&cert_file)]);
        run("openssl", &args);
        let key = SigningKey::from_pem(&fs::read_to_string(&key_file).unwrap()).unwrap();
        let cert = Certificate::from_pem(&fs::read_to_string(&cert_file).unwrap()).unwrap();
        Self { dir, key_file, cert_file, key, cert }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn openssl_accepts(&self, signature: &[u8], content: &[u8]) -> bool {
        let (sig_file, content_file) = (self.path("sig"), self.path("content"));
        fs::write(&sig_file, signature).unwrap();
        fs::write(&content_file, content).unwrap();
        let mut command = Command::new("openssl");
        command.args(["smime", "-verify", "-binary", "-inform", "der", "-nointern", "-noverify", "-in"]).arg(sig_file);
        command.arg("-content").arg(content_file).arg("-certfile").arg(&self.cert_file);
        command.output().unwrap().status.success()
    }

    /// Signs a digest by `openssl smime` or `cms` with other options than fs-verity's.
    fn openssl_signs(&self, digest: &FileDigest, tool: &str, options: &[&str]) -> Vec<u8> {
        let (sig_file, content_file) = (self.path("sig"), self.path("content"));
        fs::write(&content_file, digest.formatted()).unwrap();
        let mut args = vec![tool, "-sign", "-binary", "-outform", "der", "-in", text(&content_file)];
        args.extend(["-signer", text(&self.cert_file), "-inkey", text(&self.key_file), "-out", text(&sig_file)]);
        args.extend(options);
        run("openssl", &args);
        fs::read(sig_file).unwrap()
    }
}

fn digest(alg: HashAlg) -> FileDigest {
    FileDigest::new(Digest::of(alg, b"some file")).unwrap()
}

const RSA: &[&str] = &["rsa:2048"];
const P256: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
const P384: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-384"];

const P521: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-521"];

#[test]
fn openssl_accepts_ours_and_we_openssl_s() {
    if !have_tool("openssl", "version", "openssl_accepts_ours_and_we_openssl_s") {
        return;
    }
    for newkey in [RSA, P256, P384, P521] {
        let signer = Signer::new(newkey);
        for alg in [HashAlg::Sha256, HashAlg::Sha512] {
            let (digest, other) = (digest(alg), FileDigest::new(Digest::of(alg, b"another")).unwrap());
            let ours = sign(&digest, &signer.key, &signer.cert).unwrap();
            assert!(signer.openssl_accepts(&ours, &digest.formatted()), "{newkey:?} {alg}");
            assert!(!signer.openssl_accepts(&ours, &other.formatted()));
            for hash in ["sha256", "sha384", "sha512"] {
                let theirs = signer.openssl_signs(&digest, "smime", &["-noattr", "-nocerts", "-md", hash]);
                for signature in [&ours, &theirs] {
                    let by = verify(signature, &digest, std::slice::from_ref(&signer.cert)).unwrap();
                    assert_eq!(by.subject(), "CN=postread test");
                    let error = verify(signature, &other, std::slice::from_ref(&signer.cert)).unwrap_err();
                    assert!(matches!(error, SignatureError::Rejected { .. }), "{error}");
                }
            }
        }
    }
}

#[test]
fn the_same_bytes_as_fsverity_sign() {
    let test = "the_same_bytes_as_fsverity_sign";
    if !have_tool("openssl", "version", test) || !have_tool("fsverity", "--version", test) {
        return;
    }
    let signer = Signer::new(RSA);
    let (file, sig_file) = (signer.path("file"), signer.path("file.sig"));
    let data = vec![3; 100_000];
    fs::write(&file, &data).unwrap();
    for alg in [HashAlg::Sha256, HashAlg::Sha512] {
        let (key, cert) = (format!("--key={}", text(&signer.key_file)), format!("--cert={}", text(&signer.cert_file)));
        let alg_option = format!("--hash-alg={alg}");
        run("fsverity", &["sign", text(&file), text(&sig_file), &key, &cert, &alg_option]);
        let theirs = fs::read(&sig_file).unwrap();
        let params = MerkleTreeParams::new(alg, 4096, b"").unwrap();
        let descriptor = crate::common::build(params, &data).0.descriptor();
        let ours = sign(&descriptor.file_digest(), &signer.key, &signer.cert).unwrap();
        assert!(ours == theirs, "{alg}");

        // Into a descriptor and out of it again.
        let stored = descriptor.with_signature(ours).unwrap().to_bytes_with_signature();
        let read = Descriptor::parse(&stored).unwrap();
        assert_eq!(read.signature(), Some(&theirs[..]));
        verify(read.signature().unwrap(), &read.file_digest(), std::slice::from_ref(&signer.cert)).unwrap();
    }
}

#[test]
fn a_descriptor_is_trusted_by_its_signature_alone_or_not_at_all() {
    if !have_tool("openssl", "version", "a_descriptor_is_trusted_by_its_signature_alone_or_not_at_all") {
        return;
    }
    let (signer, stranger) = (Signer::new(P256), Signer::new(P256));
    let descriptor = crate::common::build(MerkleTreeParams::default(), &[3; 10_000]).0.descriptor();
    let signature = sign(&descriptor.file_digest(), &signer.key, &signer.cert).unwrap();
    let signed = descriptor.clone().with_signature(signature.clone()).unwrap();
    let (certs, strangers) = ([signer.cert.clone()], [stranger.cert.clone()]);

    let by = Trust::Signature { signer: signer.cert.subject() };
    assert_eq!(*signed.clone().trust_signature(&certs).unwrap().trust(), by);
    assert_eq!(*descriptor.clone().trust_detached_signature(&signature, &certs).unwrap().trust(), by);
    let error = signed.trust_signature(&strangers).unwrap_err();
    assert!(matches!(error, SignatureError::NoCertificate { .. } | SignatureError::Rejected { .. }), "{error}");
    assert!(descriptor.clone().trust_detached_signature(&signature, &strangers).is_err());
    assert_eq!(descriptor.clone().trust_signature(&certs), Err(SignatureError::Missing));
    // The signature of another file.
    let other = crate::common::build(MerkleTreeParams::default(), &[4; 10_000]).0.descriptor();
    let error = other.with_signature(signature).unwrap().trust_signature(&certs).unwrap_err();
    assert!(matches!(error, SignatureError::Rejected { .. }), "{error}");
}

#[test]
fn damaged_signatures() {
    if !have_tool("openssl", "version", "damaged_signatures") {
        return;
    }
    let signer = Signer::new(P256);
    let digest = digest(HashAlg::Sha256);
    let good = sign(&digest, &signer.key, &signer.cert).unwrap();
    let certs = [signer.cert.clone()];
    for len in 0..good.len() {
        let error = verify(&good[..len], &digest, &certs).unwrap_err();
        assert!(matches!(error, SignatureError::Malformed { .. }), "{len}: {error}");
    }
    let mut long = good.clone();
    long.push(0);
    assert!(matches!(verify(&long, &digest, &certs), Err(SignatureError::Malformed { .. })));
    let too_long = vec![0; MAX_SIGNATURE_SIZE + 1];
    let error = SignatureError::TooLong { len: MAX_SIGNATURE_SIZE + 1 };
    assert_eq!(verify(&too_long, &digest, &certs).unwrap_err(), error);
    // The last 64 bytes and more are the two numbers of the ECDSA signature.
    for bit in (good.len() - 60) * 8..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(verify(&bad, &digest, &certs).is_err(), "bit {bit}");
    }
}

#[test]
fn other_certificates_and_other_messages() {
    if !have_tool("openssl", "version", "other_certificates_and_other_messages") {
        return;
    }
    let (signer, stranger) = (Signer::new(RSA), Signer::new(P256));
    let digest = digest(HashAlg::Sha256);
    let good = sign(&digest, &signer.key, &signer.cert).unwrap();
    for certs in [vec![], vec![stranger.cert.clone()]] {
        let error = verify(&good, &digest, &certs).unwrap_err();
        let SignatureError::NoCertificate { signers } = error else { panic!("{error}") };
        let wanted = format!("serial {} of issuer \"CN=postread test\"", signer.cert.serial());
        assert_eq!(signers, [wanted]);
    }
    assert!(verify(&good, &digest, &[stranger.cert.clone(), signer.cert.clone()]).is_ok());
    let mismatch = SignError::KeyMismatch { subject: "CN=postread test".into() };
    assert_eq!(sign(&digest, &signer.key, &stranger.cert), Err(mismatch));

    let theirs = |tool, options: &[&str]| {
        verify(&signer.openssl_signs(&digest, tool, options), &digest, std::slice::from_ref(&signer.cert)).map(|_| ())
    };
    assert_eq!(theirs("smime", &["-nocerts"]), Err(SignatureError::SignedAttributes));
    assert_eq!(theirs("smime", &["-noattr", "-nodetach"]), Err(SignatureError::NotDetached));
    let sha1 = SignatureError::Unsupported { oid: "1.3.14.3.2.26".into() };
    assert_eq!(theirs("smime", &["-noattr", "-md", "sha1"]), Err(sha1));
    // A certificate inside the message does no harm, and no good.
    assert_eq!(theirs("smime", &["-noattr"]), Ok(()));
    let with_cert = signer.openssl_signs(&digest, "smime", &["-noattr"]);
    assert!(matches!(verify(&with_cert, &digest, &[]), Err(SignatureError::NoCertificate { .. })));
    // A signer named by its key identifier.
    assert_eq!(theirs("cms", &["-noattr", "-nocerts", "-keyid"]), Ok(()));
}

#[test]
fn forms_of_keys() {
    if !have_tool("openssl", "version", "forms_of_keys") {
        return;
    }
    let pem = |args: &[&str]| String::from_utf8(run("openssl", args).stdout).unwrap();
    let digest = digest(HashAlg::Sha256);
    for newkey in [RSA, P256, P384] {
        let signer = Signer::new(newkey);
        let file = text(&signer.key_file);
        let kind = if newkey == RSA { "rsa" } else { "ec" };
        let traditional = pem(&["pkey", "-traditional", "-in", file]);
        assert!(traditional.contains(&kind.to_uppercase()));
        // As `openssl ecparam -genkey` writes it: parameters before the key.
        let with_more =
            format!("-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n{traditional}");
        for form in [&traditional, &with_more] {
            let key = SigningKey::from_pem(form).unwrap();
            verify(&sign(&digest, &key, &signer.cert).unwrap(), &digest, std::slice::from_ref(&signer.cert)).unwrap();
        }
        let encrypted = pem(&["pkey", "-in", file, "-aes256", "-passout", "pass:x"]);
        assert_eq!(SigningKey::from_pem(&encrypted).unwrap_err(), KeyError::Encrypted);
        let encrypted = pem(&["pkey", "-in", file, "-traditional", "-aes256", "-passout", "pass:x"]);
        assert_eq!(SigningKey::from_pem(&encrypted).unwrap_err(), KeyError::Encrypted);
        let der = run("openssl", &["x509", "-in", text(&signer.cert_file), "-outform", "der"]).stdout;
        assert_eq!(Certificate::from_bytes(&der).unwrap().serial(), signer.cert.serial());
    }
    let ed25519 = pem(&["genpkey", "-algorithm", "ed25519"]);
    assert_eq!(SigningKey::from_pem(&ed25519).unwrap_err(), KeyError::Unsupported { oid: "1.3.101.112".into() });
    for (bad, wanted) in [("", "a private key"), ("-----BEGIN CERTIFICATE-----", "a private key")] {
        assert_eq!(SigningKey::from_pem(bad).unwrap_err(), KeyError::NoPem { wanted });
    }
    assert!(matches!(SigningKey::from_pem("-----BEGIN PRIVATE KEY-----\nAAAA\n"), Err(KeyError::Malformed { .. })));
    assert!(matches!(Certificate::from_bytes(b"nonsense"), Err(KeyError::Malformed { .. })));
}
