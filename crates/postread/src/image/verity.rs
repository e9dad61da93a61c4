//! A file's fs-verity protection: its descriptor, and the plan for reading it verified.

use std::sync::Arc;

use postread_fsimage::ext4::{Inode, VerityLocation};
use postread_verity::{Descriptor, DigestMismatch, FileDigest, TreeGeometry, TrustedDescriptor};

use super::contents::Contents;
use super::{Image, ImageError, TreeError};
use crate::hash_blocks::HashBlocks;
use crate::plan::Plan;
use crate::step::Step;
use crate::verity_step::{LayerError, VerityLayer};

/// The fs-verity metadata of a file.
#[derive(Clone, Debug)]
pub struct Verity {
    /// The descriptor, with its signature where it has one.
    pub descriptor: Descriptor,
    /// Where the metadata is.
    pub location: VerityLocation,
    contents: Contents,
}

impl Image {
    /// The fs-verity metadata of a file that has some. It is only a claim of the image until it is
    /// [trusted](Verity::trust).
    pub fn verity(&self, file: &Inode) -> Result<Option<Verity>, ImageError> {
        if !file.is_verity() {
            return Ok(None);
        }
        let ino = file.ino;
        let contents = self.contents(file)?;
        let location =
            self.fs().verity_location(file, |buf, offset| self.read_metadata(file, &contents, buf, offset))?;
        let mut bytes = vec![0; location.descriptor_size as usize];
        self.read_metadata(file, &contents, &mut bytes, location.descriptor_offset)?;
        let descriptor = Descriptor::parse(&bytes).map_err(|error| ImageError::Descriptor { ino, error })?;
        descriptor.check_data_size(file.size).map_err(|error| ImageError::Descriptor { ino, error })?;
        Ok(Some(Verity { descriptor, location, contents }))
    }

    /// Reads a few bytes of a file, decrypted, outside the engine: metadata that the plan depends on.
    fn read_metadata(&self, file: &Inode, contents: &Contents, buf: &mut [u8], offset: u64) -> Result<(), ImageError> {
        let raw = self.fs().open_raw(file)?;
        let Some(key) = &contents.key else { return Ok(raw.read_raw_at(buf, offset)?) };
        let unit = key.data_unit_size() as u64;
        let first = offset / unit;
        let skip = (offset % unit) as usize;
        let mut units = vec![0; (skip + buf.len()).next_multiple_of(unit as usize)];
        raw.read_raw_at(&mut units, first * unit)?;
        key.decrypt(&mut units, first).map_err(|error| ImageError::Data { ino: file.ino, error })?;
        buf.copy_from_slice(&units[skip..skip + buf.len()]);
        Ok(())
    }
}

impl Verity {
    /// The descriptor's file digest, to compare with a trusted one.
    pub fn digest(&self) -> FileDigest {
        self.descriptor.file_digest()
    }

    /// The metadata as trusted, if the file digest is `expected`.
    ///
    /// # Errors
    /// If it is not.
    pub fn trust(self, expected: &FileDigest) -> Result<TrustedVerity, ImageError> {
        let Self { descriptor, location, contents } = self;
        let ino = contents.ino;
        let descriptor = descriptor
            .trust(expected)
            .map_err(|DigestMismatch { expected, found, .. }| ImageError::Digest { ino, wanted: expected, found })?;
        Ok(TrustedVerity { descriptor, location, contents })
    }

    /// Accepts the metadata as it is: a file that matches it is self-consistent, not verified.
    pub fn self_consistent(self) -> TrustedVerity {
        let Self { descriptor, location, contents } = self;
        TrustedVerity { descriptor: descriptor.self_consistent(), location, contents }
    }

    /// The plan for reading the Merkle tree as it is stored, decrypted and not verified.
    pub fn tree_plan(&self) -> Result<Plan, ImageError> {
        let geometry = TreeGeometry::new(self.descriptor.params(), self.descriptor.data_size())
            .map_err(|error| ImageError::Tree { ino: self.contents.ino, error: TreeError::Geometry(error) })?;
        Ok(self.contents.part(self.location.tree_offset, geometry.tree_size()))
    }
}

/// The fs-verity metadata of a file with the reason why it is trusted, as needed to read the file verified.
#[derive(Clone, Debug)]
pub struct TrustedVerity {
    descriptor: TrustedDescriptor,
    location: VerityLocation,
    contents: Contents,
}

impl TrustedVerity {
    /// The descriptor, and why it is trusted.
    pub fn descriptor(&self) -> &TrustedDescriptor {
        &self.descriptor
    }

    /// The plan for reading the file verified against its descriptor, and the tree's hash blocks.
    pub fn plan(&self) -> Result<(Plan, Arc<HashBlocks>), ImageError> {
        self.plan_with(|layer| layer)
    }

    /// The same, with the layer's options set by `options` (the tail's check, the cache).
    pub fn plan_with(
        &self,
        options: impl FnOnce(VerityLayer) -> VerityLayer,
    ) -> Result<(Plan, Arc<HashBlocks>), ImageError> {
        let ino = self.contents.ino;
        let layer = VerityLayer::new(self.descriptor.clone())
            .map_err(|error| ImageError::Tree { ino, error: TreeError::Geometry(error) })?;
        let layer = options(layer);
        let (wanted, found) = (layer.verifier().geometry().tree_size(), self.location.tree_room);
        if wanted > found {
            return Err(ImageError::Tree { ino, error: TreeError::Room { wanted, found } });
        }
        let tree = self.location.tree_offset;
        let before = self.contents.steps_from(tree).map(|step| Arc::new(step) as Arc<dyn Step>);
        let blocks = layer.hash_blocks(self.contents.map_from(tree), before.into_iter().collect());
        let plan = layer.protect(self.contents.plan(), blocks.clone()).map_err(|error| match error {
            LayerError::Geometry(error) => ImageError::Tree { ino, error: TreeError::Geometry(error) },
            LayerError::Size { wanted, found } => ImageError::Descriptor {
                ino,
                error: postread_verity::DescriptorError::DataSize { wanted: found, found: wanted },
            },
        })?;
        Ok((plan, blocks))
    }
}
