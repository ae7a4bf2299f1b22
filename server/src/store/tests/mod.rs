//! Every engine does the same to the same file, whatever is asked of it.

mod disk;
mod exact;
mod faults;
mod life;
mod neighbours;
mod opening;
mod oracle;
mod rig;
