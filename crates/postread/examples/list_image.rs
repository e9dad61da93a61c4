//! Lists everything in an image or a device with one file system: `list_image IMAGE`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let image = std::env::args_os().nth(1).ok_or("give IMAGE")?;
    for entry in postread::Target::open(image)?.walk("/")? {
        let entry = entry?;
        println!("{:>12} {}", entry.metadata().len(), entry.path().display());
    }
    Ok(())
}
