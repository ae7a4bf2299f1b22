//! stub
use super::args::Compare;
/// stub
pub fn run(_: &Compare, _: &mut dyn std::io::Write) -> Result<(), Box<dyn std::error::Error>> { Ok(()) }
