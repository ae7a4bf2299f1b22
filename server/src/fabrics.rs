//! Which fabrics a server offers where it listens, and why one is missing.

use std::net::SocketAddr;

#[cfg(feature = "verbs")]
use kaeru_common::fabric::verbs::{self, Verbs, VerbsListener};

use crate::config::{Config, FabricChoice};

/// RDMA as this server offers it.
pub(crate) enum VerbsOffer {
    /// It does.
    #[cfg(feature = "verbs")]
    Yes(VerbsFabric),
    /// It does not, for this reason.
    No(String),
}

/// The devices that are offered, and where their links arrive.
#[cfg(feature = "verbs")]
pub(crate) struct VerbsFabric {
    /// Takes links of all devices.
    pub(crate) listener: VerbsListener,
    /// Each device with the addresses that reach it.
    pub(crate) devices: Vec<(Verbs, Vec<SocketAddr>)>,
}

/// Whether tcp is offered.
pub(crate) fn offers_tcp(config: &Config) -> bool {
    config.fabrics != FabricChoice::Verbs
}

/// RDMA at `listen`, which has its port already.
///
/// # Errors
/// Only where RDMA was demanded and cannot be had; the text says why.
pub(crate) fn verbs(config: &Config, listen: SocketAddr) -> Result<VerbsOffer, String> {
    if config.fabrics == FabricChoice::Tcp {
        return Ok(VerbsOffer::No("--fabric tcp".into()));
    }
    match find(config, listen) {
        Err(reason) if config.fabrics == FabricChoice::Verbs => {
            Err(format!("--fabric verbs was asked for, but {reason}"))
        }
        Err(reason) => Ok(VerbsOffer::No(reason)),
        #[cfg(feature = "verbs")]
        Ok(fabric) => Ok(VerbsOffer::Yes(fabric)),
        #[cfg(not(feature = "verbs"))]
        Ok(never) => match never {},
    }
}

#[cfg(not(feature = "verbs"))]
fn find(_: &Config, _: SocketAddr) -> Result<std::convert::Infallible, String> {
    Err("this kaerud was built without RDMA (feature \"verbs\")".into())
}

#[cfg(feature = "verbs")]
fn find(config: &Config, listen: SocketAddr) -> Result<VerbsFabric, String> {
    if !config.lock {
        return Err("--no-lock: a card needs memory that stays where it is".into());
    }
    let here = verbs::addresses();
    let named = |list: &[(std::net::IpAddr, String)]| {
        let list: Vec<String> = list.iter().map(|(address, name)| format!("{address} ({name})")).collect();
        list.join(", ")
    };
    if here.is_empty() {
        return Err(match verbs::names() {
            names if names.is_empty() => "this machine has no RDMA device".into(),
            names => format!("{} has no IP address: give its network interface one", names.join(", ")),
        });
    }
    let usable: Vec<_> =
        here.iter().filter(|(ip, _)| listen.ip().is_unspecified() || *ip == listen.ip()).cloned().collect();
    if usable.is_empty() {
        let ip = listen.ip();
        let interface = verbs::interface_of(ip).unwrap_or_else(|| "no interface of this machine".into());
        return Err(format!(
            "{ip} belongs to {interface}, which has no RDMA device; listen on {}",
            named(&here)
        ));
    }
    let mut devices: Vec<(Verbs, Vec<SocketAddr>)> = Vec::new();
    for (ip, name) in usable {
        let address = SocketAddr::new(ip, listen.port());
        match devices.iter_mut().find(|(known, _)| known.device().is_some_and(|device| device.name() == name))
        {
            Some((_, addresses)) => addresses.push(address),
            None => match Verbs::at(ip) {
                Ok(device) => devices.push((device, vec![address])),
                Err(error) => tracing::warn!("{name} at {ip} cannot be used and is left out: {error}"),
            },
        }
    }
    let listener = VerbsListener::bind(listen).map_err(|error| {
        format!("RDMA cannot listen on {listen}: {error}; is rdma_ucm loaded, is the port free?")
    })?;
    Ok(VerbsFabric { listener, devices })
}
