//! Journals on a device of their own: a superblock of ext4's first, then the journal.

use postread_io::ReadAt;

use crate::ext4::bytes::{array, join, le16, le32};
use crate::ext4::checksum::crc32c;
use crate::ext4::error::{Error, Result, uuid_text};
use crate::ext4::features::{Compat, Incompat, RoCompat};
use crate::ext4::filesystem::Ext4;
use crate::ext4::superblock::{SUPERBLOCK_LEN, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSET};

/// The number of blocks of a device that the journal of `fs` is on.
pub(super) fn blocks(fs: &Ext4, device: &dyn ReadAt) -> Result<u64> {
    let wrong = |why: String| Err(Error::WrongJournal(why));
    let superblock = fs.superblock();
    if !superblock.compat.contains(Compat::HAS_JOURNAL) {
        return wrong("the file system has no journal".into());
    }
    if superblock.journal_inode != 0 {
        return wrong(format!(
            "the journal of the file system is in its inode {}, not on another device",
            superblock.journal_inode
        ));
    }
    let mut bytes = [0; SUPERBLOCK_LEN];
    device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).map_err(|source| Error::Io {
        offset: SUPERBLOCK_OFFSET,
        len: SUPERBLOCK_LEN,
        source,
    })?;
    let incompat = Incompat::from_bits_retain(le32(&bytes, 0x60));
    if le16(&bytes, 0x38) != SUPERBLOCK_MAGIC || !incompat.contains(Incompat::JOURNAL_DEV) {
        return wrong("the journal given is not a journal device of ext4".into());
    }
    let summed = RoCompat::from_bits_retain(le32(&bytes, 0x64)).contains(RoCompat::METADATA_CSUM);
    if summed && fs.wants_checksums() && le32(&bytes, 0x3fc) != crc32c(!0, &bytes[..0x3fc]) {
        return wrong("the superblock of the journal device has a wrong checksum".into());
    }
    let uuid = array(&bytes, 0x68);
    if uuid != superblock.journal_uuid {
        let (wanted, found) = (uuid_text(&superblock.journal_uuid), uuid_text(&uuid));
        return wrong(format!("the journal given is of another file system: expected UUID {wanted}, found {found}"));
    }
    let high = if incompat.contains(Incompat::BIT64) { le32(&bytes, 0x150) } else { 0 };
    Ok(join(le32(&bytes, 4), high))
}
