//! Prints a file of an encrypted image: `encrypted_image IMAGE KEYFILE PATH`.
//!
//! It is decrypted with the key, and verified where it has fs-verity.

use std::error::Error;
use std::io::Write;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [image, key, path] = args.as_slice() else { return Err("give IMAGE KEYFILE PATH".into()) };
    let target = postread::Target::builder().key(&std::fs::read(key)?).open(image)?;
    std::io::stdout().write_all(&target.read(path)?)?;
    Ok(())
}
