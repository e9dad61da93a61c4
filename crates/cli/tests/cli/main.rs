//! The program, run as users run it.

mod check;
mod common;
mod digest;
mod inputs;
mod kernel;
mod lab;
mod manual;
mod outputs;
mod schemas;
mod sign;
mod tune;
