//! One module a command.

pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod digest;
pub(crate) mod enable;
pub(crate) mod lab;
pub(crate) mod measure;
pub(crate) mod sign;
pub(crate) mod verify;
