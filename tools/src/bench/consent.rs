//! Nothing is overwritten without a clear yes.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::args::Args;
use super::plan::Plan;

/// Asks the user where something would be overwritten and there was no `--yes`.
///
/// # Errors
/// Where there is nobody to ask, or the answer is not yes; exits with status 2.
pub fn obtain(plan: &Plan) -> Result<(), clap::Error> {
    let Some(what) = plan.overwrites.as_ref().filter(|_| !plan.agreed) else { return Ok(()) };
    let lost = format!("--write overwrites blocks all over {what}: files on it are destroyed");
    let wrong = |text| Args::command().error(ErrorKind::MissingRequiredArgument, text);
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(wrong(format!("{lost}; nothing was measured. Add --yes if all of it may be lost")));
    }
    let ask = || -> io::Result<String> {
        let mut answer = String::new();
        write!(io::stderr(), "{lost}.\nType yes to go on: ")?;
        io::stdin().lock().read_line(&mut answer)?;
        Ok(answer)
    };
    match ask() {
        Ok(answer) if answer.trim() == "yes" => Ok(()),
        _ => Err(wrong("that was no yes; nothing was measured".to_owned())),
    }
}
