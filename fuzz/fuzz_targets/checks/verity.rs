//! What must hold of any bytes that the fs-verity parsers are given. Shared by the fuzz targets and by the ordinary tests
//! that replay their corpora.
#![allow(dead_code)] // Each target uses one of them.

use postread_verity::ddrescue::RescueMap;
use postread_verity::list;
use postread_verity::signature::{Certificate, verify};
use postread_verity::{Descriptor, Digest, FileDigest, HashAlg, Verifier};

/// A descriptor that parses comes back from its own bytes, and has a digest and (unless it is too large) a shape.
pub(crate) fn descriptor(data: &[u8]) {
    let Ok(descriptor) = Descriptor::parse(data) else { return };
    assert_eq!(Descriptor::parse(&descriptor.to_bytes_with_signature()).as_ref(), Ok(&descriptor));
    let digest = descriptor.file_digest();
    assert_eq!(FileDigest::from_formatted(&digest.formatted()), Some(digest));
    assert_eq!(digest.to_string().parse(), Ok(digest));
    if let Ok(verifier) = Verifier::from_descriptor(&descriptor.self_consistent()) {
        let geometry = verifier.geometry();
        let last = geometry.data_blocks().saturating_sub(1);
        assert_eq!(geometry.hash_at_leaf(last).is_some(), geometry.num_levels() > 0);
        assert_eq!(geometry.level_of(geometry.tree_blocks()), None);
    }
}

/// A signature is answered; what was not signed by the key is never accepted.
pub(crate) fn signature(data: &[u8]) {
    let certificate = include_bytes!("../../corpus/verity_certificate/rsa.der");
    let certificate = Certificate::from_der(certificate).expect("a good certificate");
    // The signatures in the corpus are of other digests.
    let digest = FileDigest::new(Digest::of(HashAlg::Sha256, b"not signed")).expect("an fs-verity algorithm");
    assert!(verify(data, &digest, &[certificate]).is_err());
}

/// A certificate is answered, and can be named.
pub(crate) fn certificate(data: &[u8]) {
    if let Ok(certificate) = Certificate::from_bytes(data) {
        let _ = (certificate.subject(), certificate.serial(), format!("{certificate:?}"));
    }
}

/// A line of a digest list that parses comes back from what is written of it.
pub(crate) fn digest_list(data: &[u8]) {
    for line in data.split_inclusive(|&b| b == b'\n') {
        if let Ok(Some(entry)) = list::parse_line(line) {
            let again = list::format_line(&entry.digest, &entry.name);
            assert_eq!(list::parse_line(&again), Ok(Some(entry)));
        }
    }
}

/// A map file that parses comes back from what is written of it.
pub(crate) fn rescue_map(data: &[u8]) {
    if let Ok(map) = RescueMap::parse(data) {
        assert_eq!(RescueMap::parse(map.to_text().as_bytes()), Ok(map));
    }
}
