//! Experiments: the kernel patches' measurements of queue policies, reproduced in user space.
//!
//! [`app_start`] is the fs-verity patch's (unbound to bound, 553,800 us to 18,962 us of scheduler latency over Android
//! app start-ups), [`tar`] the fscrypt patch's (bound to unbound, +25 to 35 % without AES instructions). A [`workload`] is
//! frozen as text before policies are compared; [`record`](record::record) makes one from a real program's start. Figures
//! are what was measured, whichever way they point, and an arm that the system refuses is not measured by another's name.

pub mod app_start;
mod archive;
mod arm;
mod cipher;
mod error;
pub mod factors;
pub mod filemap;
pub mod html;
pub mod kernel;
mod ledger_pass;
mod meanwhile;
mod measured;
mod own_fscrypt;
mod protect;
pub mod record;
mod replay;
mod scratch;
mod statistics;
pub mod table;
pub mod tar;
pub mod verdict;
pub mod workload;

pub use arm::{Arm, ArmReport, Completers, Granted, Placement, Rank};
pub use cipher::Cipher;
pub use error::LabError;
pub use ledger_pass::{ArmLedger, OneBio};
pub use meanwhile::Disturbances;
pub use measured::Measured;
pub use own_fscrypt::{OwnFscrypt, OwnGroup};
pub use protect::Cold;
pub use statistics::{Change, Effect, Random, effect, interaction, median, paired_change};
