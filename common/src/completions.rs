//! The completion script of a program for a shell.

use std::io::{self, Write};

use clap::Command;
use clap_complete::Shell;

/// Prints the script for `shell`.
///
/// # Errors
/// Where it cannot be printed.
pub fn print(shell: Shell, mut command: Command, out: &mut dyn Write) -> io::Result<()> {
    let name = command.get_name().to_owned();
    // In memory first: to generate it panics where its reader goes away.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    out.write_all(&script)
}
