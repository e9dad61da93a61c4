//! Copies a file to standard output, every byte verified against its fs-verity digest: `verified_read DIGEST PATH`.

use postread::VerifiedFile;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let mut file = VerifiedFile::open(&args[2], &args[1].parse()?)?;
    std::io::copy(&mut file, &mut std::io::stdout())?;
    Ok(())
}
