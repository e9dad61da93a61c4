//! What `postread inspect` prints for people.

use std::io::{self, Write};

use super::inspect::{ImageReport, InodeReport, PolicyReport, VerityReport};
use crate::image::Layer;
use crate::text::escape_controls;

/// How many of many files alike are named.
const EXAMPLES: usize = 3;

fn shown(text: &str, terminal: bool) -> String {
    if terminal { escape_controls(text.as_bytes()) } else { text.to_owned() }
}

/// An image's report.
pub(super) fn image(out: &mut dyn Write, report: &ImageReport, terminal: bool) -> io::Result<()> {
    for layer in &report.layers {
        match layer {
            Layer::AndroidSparse { length } => writeln!(out, "Android sparse image of {length} bytes")?,
            Layer::PartitionTable { kind, sector_size, parts } => {
                writeln!(out, "partition table: {kind}, sectors of {sector_size} bytes")?;
                for part in parts {
                    let format = part.format.as_deref().unwrap_or("unknown");
                    let name = shown(&part.name, terminal);
                    let (number, offset, length) = (part.number, part.offset, part.length);
                    writeln!(out, "  part {number}: {length} bytes at {offset}, {format}, type {} {name}", part.kind)?;
                }
            }
            Layer::Range { offset, length } => writeln!(out, "read: {length} bytes at {offset}")?,
            Layer::Luks { version, uuid, cipher, keyslot } => {
                let state = keyslot.as_ref().map_or("locked".to_owned(), |slot| format!("keyslot {slot}"));
                let (uuid, state) = (shown(uuid, terminal), shown(&state, terminal));
                writeln!(out, "LUKS{version}: {cipher}, UUID {uuid}, {state}")?;
            }
            Layer::DmCrypt { cipher, sector_size } => {
                writeln!(out, "dm-crypt: {cipher}, sectors of {sector_size} bytes")?;
            }
            Layer::DmVerity { root_hash, algorithm, data_blocks, block_size } => {
                writeln!(
                    out,
                    "dm-verity: {algorithm}, {data_blocks} blocks of {block_size} bytes, root hash {root_hash}"
                )?;
            }
            Layer::VolumeGroup { kind, name, volumes } => {
                match *kind {
                    "lvm2" => writeln!(out, "LVM2 volume group {}", shown(name, terminal))?,
                    _ => writeln!(out, "Android super partition")?,
                }
                for volume in volumes {
                    let name = shown(&volume.name, terminal);
                    let what = volume.problem.as_deref().or(volume.format.as_deref()).unwrap_or("unknown");
                    writeln!(out, "  volume {name}: {} bytes, {}", volume.length, shown(what, terminal))?;
                }
            }
            Layer::LogicalVolume { name, length } => {
                writeln!(out, "read: volume {}, {length} bytes", shown(name, terminal))?;
            }
            Layer::Found { .. } => {}
        }
    }
    let Some(fs) = &report.file_system else { return Ok(()) };
    writeln!(out, "file system: {}, {} blocks of {} bytes, UUID {}", fs.kind, fs.blocks, fs.block_size, fs.uuid)?;
    if !fs.label.is_empty() {
        writeln!(out, "label: {}", shown(&fs.label, terminal))?;
    }
    writeln!(out, "features: {}", fs.features.join(" "))?;
    if fs.journal_replayed {
        writeln!(out, "journal: not unmounted cleanly; read as after its replay")?;
    }
    let ImageReport { files, directories, links, others, broken, .. } = report;
    write!(out, "holds: {files} files, {directories} directories, {links} links, {others} others")?;
    writeln!(out, "{}", if *broken > 0 { format!("; {broken} parts are broken") } else { String::new() })?;
    for policy in &report.policies {
        write_policy(out, policy)?;
        let PolicyReport { files, directories, links, .. } = policy;
        writeln!(out, "  covers: {files} files, {directories} directories, {links} links")?;
    }
    for protector in &report.protectors {
        let name = shown(&protector.name, terminal);
        let policies = protector.policies.join(", ");
        writeln!(out, "protector {} ({}) {name:?}: unlocks {policies}", protector.descriptor, protector.source)?;
    }
    for link in &report.linked_protectors {
        let (descriptor, place) = (shown(&link.descriptor, terminal), shown(&link.file_system, terminal));
        writeln!(out, "protector {descriptor}: on another file system ({place}); add it with --fscrypt-metadata")?;
    }
    for home in &report.homed {
        writeln!(out, "systemd-homed {}: {} key slots", home.name.shown(terminal), home.slots)?;
    }
    let (locked, shown): (Vec<_>, Vec<_>) = report.verity_files.iter().partition(|verity| verity.locked);
    for verity in shown {
        write_verity(out, verity, terminal)?;
    }
    // A line each would be as many as there are files, and all alike.
    if !locked.is_empty() {
        let examples = locked.iter().take(EXAMPLES).map(|verity| verity.name.shown(terminal)).collect::<Vec<_>>();
        let more = if locked.len() > EXAMPLES { ", ..." } else { "" };
        let files = if locked.len() == 1 { "file" } else { "files" };
        let why = "their digests need the keys that their policies name";
        writeln!(out, "fs-verity, locked: {} {files} ({}{more}): {why}", locked.len(), examples.join(", "))?;
    }
    Ok(())
}

/// One inode's report.
pub(super) fn inode(out: &mut dyn Write, report: &InodeReport, terminal: bool) -> io::Result<()> {
    let InodeReport { inode, kind, mode, links, uid, gid, size, modified, .. } = report;
    writeln!(out, "inode {inode}: {kind}, mode {mode}, {links} links, owner {uid}:{gid}, {size} bytes, {modified}")?;
    if let Some(extents) = report.extents {
        writeln!(out, "extents and holes: {extents}")?;
    }
    if report.casefolded {
        writeln!(out, "names fold case")?;
    }
    if !report.xattrs.is_empty() {
        writeln!(out, "extended attributes: {}", shown(&report.xattrs.join(" "), terminal))?;
    }
    match &report.policy {
        Some(policy) => write_policy(out, policy)?,
        None => writeln!(out, "not encrypted")?,
    }
    if let Some(nonce) = &report.nonce {
        writeln!(out, "  nonce: {nonce}")?;
    }
    match &report.verity {
        Some(verity) => write_verity(out, verity, terminal)?,
        None => writeln!(out, "no fs-verity")?,
    }
    Ok(())
}

fn write_policy(out: &mut dyn Write, policy: &PolicyReport) -> io::Result<()> {
    let PolicyReport { version, contents, names, padding, data_unit_size, key, .. } = policy;
    writeln!(out, "encryption policy v{version}: contents {contents}, names {names}")?;
    let flags = if policy.flags.is_empty() { String::new() } else { format!(", {}", policy.flags.join(", ")) };
    writeln!(out, "  padding {padding}, data units of {data_unit_size} bytes{flags}")?;
    let (kind, name) = match (&policy.key_identifier, &policy.key_descriptor) {
        (Some(identifier), _) => ("identifier", identifier.as_str()),
        (_, descriptor) => ("descriptor", descriptor.as_deref().unwrap_or("")),
    };
    writeln!(out, "  key {kind} {name}: {key}")
}

fn write_verity(out: &mut dyn Write, verity: &VerityReport, terminal: bool) -> io::Result<()> {
    let name = verity.name.shown(terminal);
    let Some(digest) = &verity.digest else {
        let error = verity.error.as_deref().unwrap_or("unreadable");
        return writeln!(out, "fs-verity {name}: {error}");
    };
    let block_size = verity.block_size.unwrap_or(0);
    let salt = verity.salt.as_deref().filter(|salt| !salt.is_empty());
    let salt = salt.map_or(String::new(), |salt| format!(", salt {salt}"));
    let signature = verity.signature_size.map_or(String::new(), |size| format!(", signature of {size} bytes"));
    writeln!(out, "fs-verity {name}: {digest}, {} bytes, blocks of {block_size}{salt}{signature}", verity.size)
}
