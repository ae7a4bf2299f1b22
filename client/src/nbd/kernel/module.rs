//! Getting the kernel's NBD driver loaded.

use std::process::{Command, Stdio};

use super::error::KernelError;
use super::netlink::{self, Failure};

/// Where modprobe is. A user's PATH often lacks the second.
const MODPROBE: [&str; 3] = ["modprobe", "/usr/sbin/modprobe", "/sbin/modprobe"];

/// The number of the `nbd` netlink family, after loading the driver where that is needed and possible.
pub(super) fn family() -> Result<u16, KernelError> {
    if let Some(family) = ask()? {
        return Ok(family);
    }
    if !rustix::process::geteuid().is_root() {
        return Err(KernelError::NotPermitted { what: "attaching a device".into() });
    }
    let tried = load();
    ask()?.ok_or(KernelError::NoModule { tried })
}

fn ask() -> Result<Option<u16>, KernelError> {
    netlink::family().map_err(|failure| {
        let what = "ask for the nbd family".into();
        match failure {
            Failure::Kernel(source) => KernelError::Refused { what, source },
            Failure::Talk(reason) => KernelError::Netlink { what, reason },
        }
    })
}

/// Runs modprobe and says what came of it.
fn load() -> String {
    for program in MODPROBE {
        let run = Command::new(program).args(["nbd", "max_part=16"]).stdin(Stdio::null()).output();
        match run {
            Ok(output) if output.status.success() => return "modprobe said yes".into(),
            Ok(output) => return String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(_) => {}
        }
    }
    "modprobe was not found".into()
}
