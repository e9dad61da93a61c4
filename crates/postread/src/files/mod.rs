//! The files that a front end reads and writes besides targets: small inputs with a limit, lists of names, directories
//! walked in order, and outputs that appear whole or not at all.

mod error;
mod input_file;
mod names;
mod output_file;
mod overwriting;

pub use error::{FilesError, Problem};
pub use input_file::{Opened, open, open_list, read_whole};
pub use names::{FileNames, NameError};
pub use output_file::OutputFile;
pub use overwriting::refuse_overwriting;
