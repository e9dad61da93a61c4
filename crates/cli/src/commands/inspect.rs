//! `postread inspect`: what protects an image, or one file of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use postread::Target;
use postread::image::{Image, ImageError, kind_name};
use postread_fscrypt::fscrypt_tool::ProtectorSource;
use postread_fscrypt::{Context, IvScheme, KeyError, KeySpecifier, Policy};
use postread_fsimage::ext4::{FileType, Inode};
use serde::Serialize;

use super::inspect_text;
use crate::exit::{CommandResult, Outcome};
use crate::image::{ImageArgs, Layer, bytes_of, outcome_of, resolve, time_string};
use crate::report::{Name, write_report};
use crate::text::{bytes_for_stderr, complain, output_failed};

#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// The image or block device
    #[arg(value_name = "TARGET")]
    target: PathBuf,
    /// A file or directory in it: what protects that one
    #[arg(value_name = "PATH")]
    path: Option<OsString>,
    #[command(flatten)]
    image: ImageArgs,
    /// Print a report in JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// What the report says of an image.
#[derive(Serialize)]
pub(super) struct ImageReport {
    pub(super) layers: Vec<Layer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file_system: Option<FileSystem>,
    pub(super) policies: Vec<PolicyReport>,
    pub(super) verity_files: Vec<VerityReport>,
    pub(super) protectors: Vec<ProtectorReport>,
    /// Protectors on other file systems.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) linked_protectors: Vec<LinkedReport>,
    /// Home directories of systemd-homed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) homed: Vec<HomedReport>,
    pub(super) files: u64,
    pub(super) directories: u64,
    pub(super) links: u64,
    pub(super) others: u64,
    /// Parts that could not be read.
    pub(super) broken: u64,
}

/// The file system.
#[derive(Serialize)]
pub(super) struct FileSystem {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) uuid: String,
    pub(super) label: String,
    pub(super) block_size: u32,
    pub(super) blocks: u64,
    pub(super) inodes: u32,
    pub(super) features: Vec<String>,
    /// Whether the journal was replayed in memory: the file system was not unmounted cleanly.
    pub(super) journal_replayed: bool,
}

/// A policy, and what is under it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PolicyReport {
    pub(super) version: u8,
    pub(super) contents: String,
    pub(super) names: String,
    pub(super) flags: Vec<String>,
    pub(super) padding: usize,
    pub(super) data_unit_size: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key_identifier: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key_descriptor: Option<String>,
    pub(super) files: u64,
    pub(super) directories: u64,
    pub(super) links: u64,
    /// `fits`, `missing`, or why the key given can't be used; of a v1 policy whether the key given looks right.
    pub(super) key: String,
}

/// A file's fs-verity.
#[derive(Clone, Debug, Serialize)]
pub(super) struct VerityReport {
    #[serde(flatten)]
    pub(super) name: Name,
    pub(super) size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) block_size: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) salt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signature_size: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// Whether the error is that a key is missing.
    #[serde(skip)]
    pub(super) locked: bool,
}

/// A protector in `/.fscrypt`.
#[derive(Serialize)]
pub(super) struct ProtectorReport {
    pub(super) descriptor: String,
    pub(super) name: String,
    pub(super) source: String,
    /// The policies that it unlocks, by key descriptor or identifier.
    pub(super) policies: Vec<String>,
}

/// A protector on another file system.
#[derive(Serialize)]
pub(super) struct LinkedReport {
    pub(super) descriptor: String,
    pub(super) file_system: String,
}

/// A home directory of systemd-homed.
#[derive(Serialize)]
pub(super) struct HomedReport {
    #[serde(flatten)]
    pub(super) name: Name,
    /// Slots, one for each passphrase.
    pub(super) slots: usize,
}

/// What the report says of one inode.
#[derive(Serialize)]
pub(super) struct InodeReport {
    #[serde(flatten)]
    pub(super) name: Name,
    pub(super) inode: u32,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) mode: String,
    pub(super) links: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    pub(super) modified: String,
    pub(super) extents: Option<u64>,
    pub(super) casefolded: bool,
    pub(super) xattrs: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<PolicyReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nonce: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verity: Option<VerityReport>,
}

pub(crate) fn run(args: &InspectArgs) -> CommandResult {
    let out = BufWriter::new(io::stdout().lock());
    let builder = args.image.with_keys(&args.target, false)?;
    let layers = builder.layers(&args.target)?;
    // What can't be gone into without a choice or a key: what it holds is the answer.
    if args.path.is_none() && layers.is_stopped() {
        let report = ImageReport { layers: Layer::list(&layers), ..ImageReport::empty() };
        write(args, out, &report, inspect_text::image)?;
        return Ok(Outcome::Good);
    }
    let target = builder.open_layers(&args.target, layers)?;
    let image = target.image();
    if let Some(path) = &args.path {
        let found = resolve(image, bytes_of(path), args.image.follow())?;
        let (inode, path) = (found.inode, found.path);
        let mut outcome = Outcome::Good;
        let report = inode_report(image, &inode, &path, &mut outcome);
        write(args, out, &report, inspect_text::inode)?;
        return Ok(outcome);
    }
    let mut outcome = Outcome::Good;
    let mut report = ImageReport { layers: Layer::list(target.opened_layers()), ..ImageReport::empty() };
    report.file_system = Some(file_system(image));
    report.walk(image, &mut outcome);
    report.protectors(&target, &mut outcome);
    write(args, out, &report, inspect_text::image)?;
    Ok(outcome)
}

fn write<T: Serialize>(
    args: &InspectArgs,
    mut out: impl Write,
    report: &T,
    text: impl Fn(&mut dyn Write, &T, bool) -> io::Result<()>,
) -> Result<(), crate::exit::Failure> {
    match args.json {
        true => write_report(out, "postread-inspect-1", report),
        false => text(&mut out, report, io::stdout().is_terminal()).and_then(|()| out.flush()),
    }
    .map_err(output_failed)
}

fn file_system(image: &Image) -> FileSystem {
    let superblock = image.fs().superblock();
    let label = superblock.volume_name;
    let label = &label[..label.iter().position(|&b| b == 0).unwrap_or(label.len())];
    let mut features = superblock.compat.names();
    features.extend(superblock.incompat.names());
    features.extend(superblock.ro_compat.names());
    FileSystem {
        kind: "ext4",
        uuid: uuid_text(&superblock.uuid),
        label: String::from_utf8_lossy(label).into_owned(),
        block_size: superblock.block_size,
        blocks: superblock.blocks_count,
        inodes: superblock.inodes_count,
        features,
        journal_replayed: image.fs().replay().is_some(),
    }
}

/// A UUID as `blkid` shows it.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex = hex::encode(uuid);
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// What one policy covers while the tree is walked.
#[derive(Default)]
struct Covered {
    files: u64,
    directories: u64,
    links: u64,
    trouble: Option<KeyError>,
    asked: [bool; 2],
}

impl ImageReport {
    fn empty() -> Self {
        Self {
            layers: Vec::new(),
            file_system: None,
            policies: Vec::new(),
            verity_files: Vec::new(),
            protectors: Vec::new(),
            linked_protectors: Vec::new(),
            homed: Vec::new(),
            files: 0,
            directories: 0,
            links: 0,
            others: 0,
            broken: 0,
        }
    }

    fn walk(&mut self, image: &Image, outcome: &mut Outcome) {
        let mut covered: BTreeMap<Vec<u8>, (Policy, Covered)> = BTreeMap::new();
        let mut broken = 0;
        let mut trouble = |path: &[u8], error: &ImageError, outcome: &mut Outcome| {
            broken += 1;
            *outcome = outcome.worst(outcome_of(error));
            complain(format_args!("{}: {error}", bytes_for_stderr(path)));
        };
        for visit in image.walk(postread_fsimage::ext4::ROOT_INO) {
            let path = [b"/", &visit.path[..]].concat();
            let inode = match visit.inode {
                Ok(inode) => inode,
                Err(error) => {
                    trouble(&path, &error, outcome);
                    continue;
                }
            };
            match inode.file_type {
                FileType::Regular => self.files += 1,
                FileType::Directory => self.directories += 1,
                FileType::Symlink => self.links += 1,
                _ => self.others += 1,
            }
            match image.context(&inode) {
                Ok(Some(context)) => {
                    let key = policy_bytes(&context);
                    let (_, covered) = covered.entry(key).or_insert_with(|| (context.policy, Covered::default()));
                    covered.count(image, &inode, &context);
                }
                Ok(None) => {}
                Err(error) => trouble(&path, &error, outcome),
            }
            if inode.is_verity() {
                let report = verity_report(image, &inode, &path);
                if let Err(error) = &report.1 {
                    // A missing key is no defect of the image: it is reported with the file.
                    if outcome_of(error) != Outcome::Key {
                        trouble(&path, error, outcome);
                    }
                }
                self.verity_files.push(report.0);
            }
        }
        self.broken = broken;
        for (policy, covered) in covered.into_values() {
            note_unfit(image, &policy, outcome);
            self.policies.push(policy_report(image, &policy, &covered));
        }
    }

    fn protectors(&mut self, target: &Target, outcome: &mut Outcome) {
        let metadata = target.fscrypt_metadata();
        for broken in &metadata.broken {
            *outcome = outcome.worst(Outcome::Usage);
            complain(broken);
        }
        for protector in &metadata.protectors {
            let unlocks = metadata.policies.iter().filter(|p| p.protectors().any(|d| d == protector.descriptor));
            self.protectors.push(ProtectorReport {
                descriptor: protector.descriptor.clone(),
                name: protector.name.clone(),
                source: source_name(protector.source).to_owned(),
                policies: unlocks.map(|policy| policy.key_descriptor.clone()).collect(),
            });
        }
        let linked = metadata.linked.iter();
        self.linked_protectors.extend(
            linked.map(|link| LinkedReport {
                descriptor: link.descriptor.clone(),
                file_system: link.file_system.clone(),
            }),
        );
        let homed = metadata.homed.iter();
        self.homed.extend(
            homed
                .map(|home| HomedReport { name: Name::new(std::path::Path::new(&home.path)), slots: home.slots.len() }),
        );
    }
}

impl Covered {
    fn count(&mut self, image: &Image, inode: &Inode, context: &Context) {
        match inode.file_type {
            FileType::Directory => self.directories += 1,
            FileType::Symlink => self.links += 1,
            _ => self.files += 1,
        }
        // Once for contents and once for names: all else of a policy derives alike.
        let asked = &mut self.asked[usize::from(inode.file_type == FileType::Regular)];
        if !std::mem::replace(asked, true) {
            self.trouble = self.trouble.take().or_else(|| image.key_trouble(inode, context));
        }
    }
}

/// A policy as bytes that sort and compare: its context without the nonce.
fn policy_bytes(context: &Context) -> Vec<u8> {
    let mut bytes = context.to_bytes();
    bytes.truncate(bytes.len() - postread_fscrypt::NONCE_SIZE);
    bytes
}

/// A key that was given and does not fit is a wrong key.
fn note_unfit(image: &Image, policy: &Policy, outcome: &mut Outcome) {
    if image.keys().find(policy).is_ok() && image.key_verdict(policy) == Some(false) {
        *outcome = outcome.worst(Outcome::Key);
    }
}

fn policy_report(image: &Image, policy: &Policy, covered: &Covered) -> PolicyReport {
    let named = |wanted: bool| {
        (matches!(policy.key, KeySpecifier::Identifier(_)) == wanted).then(|| hex::encode(policy.key.as_bytes()))
    };
    let key = match (image.keys().find(policy), &covered.trouble) {
        (_, Some(error)) => error.to_string(),
        (Ok(_), None) => match (policy.version, image.key_verdict(policy)) {
            // Such a policy's key can have any name: the names and targets that it decrypts are the judges.
            (1, Some(true)) => "given; looks right".to_owned(),
            (1, Some(false)) => "does not fit (names decrypt to garbage)".to_owned(),
            (1, None) => "given; no name or link to judge it by".to_owned(),
            _ => "fits".to_owned(),
        },
        (Err(_), None) => "missing".to_owned(),
    };
    let mut flags = policy.flag_names();
    flags.retain(|flag| !flag.starts_with("PAD_"));
    debug_assert!(flags.is_empty() == (policy.iv_scheme() == IvScheme::PerFileKey));
    PolicyReport {
        version: policy.version,
        contents: policy.contents.to_string(),
        names: policy.names.to_string(),
        flags,
        padding: policy.padding(),
        data_unit_size: policy.data_unit_size(image.fs().superblock().block_size as usize),
        key_identifier: named(true),
        key_descriptor: named(false),
        files: covered.files,
        directories: covered.directories,
        links: covered.links,
        key,
    }
}

fn verity_report(image: &Image, inode: &Inode, path: &[u8]) -> (VerityReport, Result<(), ImageError>) {
    let mut report = VerityReport {
        name: Name::of_bytes(path),
        size: inode.size,
        digest: None,
        block_size: None,
        salt: None,
        signature_size: None,
        error: None,
        locked: false,
    };
    match image.verity(inode) {
        Ok(Some(verity)) => {
            let params = verity.descriptor.params();
            report.digest = Some(verity.digest().to_string());
            report.block_size = Some(params.block_size());
            report.salt = Some(hex::encode(params.salt()));
            report.signature_size = verity.descriptor.signature().map(<[u8]>::len);
            (report, Ok(()))
        }
        Ok(None) => (report, Ok(())),
        Err(error) => {
            report.error = Some(error.to_string());
            report.locked = outcome_of(&error) == Outcome::Key;
            (report, Err(error))
        }
    }
}

fn inode_report(image: &Image, inode: &Inode, path: &[u8], outcome: &mut Outcome) -> InodeReport {
    let mut note = |error: ImageError| {
        *outcome = outcome.worst(outcome_of(&error));
        complain(format_args!("{}: {error}", bytes_for_stderr(path)));
    };
    let context = image.context(inode).unwrap_or_else(|error| {
        note(error);
        None
    });
    let mut judged = Outcome::Good;
    let policy = context.map(|context| {
        let mut covered = Covered::default();
        covered.count(image, inode, &context);
        // Reading a directory's names is what judges a v1 policy's key; what is wrong there is reported elsewhere.
        let _ = inode.is_dir().then(|| image.names(inode));
        note_unfit(image, &context.policy, &mut judged);
        policy_report(image, &context.policy, &covered)
    });
    let mapped = matches!(inode.file_type, FileType::Regular | FileType::Directory);
    let extents = mapped.then(|| image.fs().extents_from(inode, 0).filter(Result::is_ok).count() as u64);
    let mut xattrs = Vec::new();
    for xattr in image.fs().xattrs(inode) {
        match xattr {
            Ok(xattr) => xattrs.extend(xattr.full_name().map(|name| String::from_utf8_lossy(&name).into_owned())),
            Err(error) => note(error.into()),
        }
    }
    let verity = inode.is_verity().then(|| {
        let (report, result) = verity_report(image, inode, path);
        if let Err(error) = result {
            note(error);
        }
        report
    });
    *outcome = outcome.worst(judged);
    InodeReport {
        name: Name::of_bytes(if path.is_empty() { b"/" } else { path }),
        inode: inode.ino,
        kind: kind_name(inode.file_type),
        mode: format!("{:04o}", inode.mode & 0o7777),
        links: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        size: inode.size,
        modified: time_string(inode.mtime),
        extents,
        casefolded: inode.is_casefolded(),
        xattrs,
        policy,
        nonce: context.map(|context| hex::encode(context.nonce)),
        verity,
    }
}

/// A protector's source, as the tool names it.
fn source_name(source: ProtectorSource) -> &'static str {
    match source {
        ProtectorSource::PamPassphrase => "pam_passphrase",
        ProtectorSource::CustomPassphrase => "custom_passphrase",
        ProtectorSource::RawKey => "raw_key",
    }
}
