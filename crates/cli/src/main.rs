//! The `postread` program.

fn main() {}
