//! Helpers that tests across crates share: temporary images, tools as oracles, and skips that say why.
