//! record NAME COMMAND...: prints the workload of a program's start. The program `postread lab record` does the same.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (app, counts) = postread_lab::record::record(&arguments[0], &arguments[1..])?;
    eprintln!("{counts:?}");
    print!("{}", postread_lab::workload::format(&[app]));
    Ok(())
}
