//! Partitions and Android sparse images: ranges of sources.
