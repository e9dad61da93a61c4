//! The program, run as users run it.

mod changing;
mod check;
mod common;
mod digest;
mod dm_verity;
mod inputs;
mod kernel;
mod lab;
mod luks;
mod manual;
mod outputs;
mod schemas;
mod serve;
mod sign;
mod tune;
