//! fscrypt policies, contexts, key derivation, file contents and names.
