//! Prints the fs-verity digests of files, as `fsverity digest` does: `digest PATH...`.

fn main() -> postread::Result<()> {
    for (path, digest) in postread::digest_files(std::env::args_os().skip(1)) {
        println!("{} {}", digest?, path.display());
    }
    Ok(())
}
