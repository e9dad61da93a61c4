//! One module per command.

pub(crate) mod cat;
pub(crate) mod cat_image;
pub(crate) mod check;
pub(crate) mod digest;
pub(crate) mod dm_verity;
pub(crate) mod enable;
pub(crate) mod extract;
mod extract_report;
pub(crate) mod inspect;
mod inspect_text;
pub(crate) mod key;
pub(crate) mod lab;
pub(crate) mod ls;
mod ls_tree;
pub(crate) mod luks;
pub(crate) mod measure;
pub(crate) mod serve;
pub(crate) mod sign;
mod sign_key;
pub(crate) mod tune;
pub(crate) mod verify;
mod verify_image;
