//! The same in an asynchronous program, a megabyte at a time: `verified_read_tokio DIGEST PATH`.

use postread::VerifiedFile;
use std::io::Write;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let file = VerifiedFile::open(&args[2], &args[1].parse()?)?;
    for at in (0..file.len()).step_by(1 << 20) {
        let read = file.read_future(at, 1 << 20).await?;
        std::io::stdout().write_all(&read.to_vec())?;
        read.stopped().map_or(Ok(()), |bad| Err(bad.clone()))?;
    }
    Ok(())
}
