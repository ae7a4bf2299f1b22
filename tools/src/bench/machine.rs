//! A machine as a reader of figures wants to know it: card, firmware, link, PCIe, kernel, governor.

use std::io::{self, Write};
use std::path::Path;

use kaeru_common::host::{Host, Kind, RdmaDevice};
use serde::{Deserialize, Serialize};

use super::report::text::paragraph;

/// One end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub host: Option<String>,
    /// Its kernel.
    pub kernel: Option<String>,
    /// Its processors.
    pub processor: Option<String>,
    /// How many of them.
    pub processors: usize,
    /// How their frequencies are governed.
    pub governor: String,
    /// The RDMA device that was used, or all there are where none was.
    pub cards: Vec<Card>,
}

/// An RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// The kernel's name for it.
    pub device: String,
    /// What it is.
    pub what: String,
    /// Whether it is software.
    pub is_software: bool,
    /// Its firmware.
    pub firmware: Option<String>,
    /// Its firmware image.
    pub psid: Option<String>,
    /// Its ports: link layer, rate, state.
    pub links: Vec<String>,
    /// The PCI Express way to it.
    pub pcie: Option<String>,
}

impl Machine {
    /// The machine below `root`; of its RDMA devices `device`, where that is given.
    pub fn read(root: &Path, device: Option<&str>) -> Self {
        Self::of(&Host::read(root), device)
    }

    /// The machine that `host` tells of; of its RDMA devices `device`, where that is given.
    pub fn of(host: &Host, device: Option<&str>) -> Self {
        let wanted = |card: &&RdmaDevice| device.is_none_or(|device| device == card.name);
        let governors: Vec<&str> = host.cpu.governors.keys().map(String::as_str).collect();
        Self {
            host: host.software.hostname.get().map(str::to_owned),
            kernel: host.software.kernel.get().map(str::to_owned),
            processor: host.cpu.model.clone(),
            processors: host.cpu.count,
            governor: match governors[..] {
                [] if host.is_live() => "not told by this kernel".to_owned(),
                [] => "not told by the server".to_owned(),
                _ => governors.join(", "),
            },
            cards: host.rdma.iter().filter(wanted).map(Card::of).collect(),
        }
    }

    /// Lines of a name and a text, for the block to paste and for the page.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let or = |fact: &Option<String>| fact.clone().unwrap_or_else(|| "unknown".to_owned());
        let mut lines = vec![("host", or(&self.host)), ("kernel", or(&self.kernel))];
        if self.processors > 0 {
            lines.push(("processor", format!("{} × {}", self.processors, or(&self.processor))));
        }
        lines.push(("governor", self.governor.clone()));
        if self.cards.is_empty() {
            lines.push(("card", "no RDMA device".to_owned()));
        }
        for card in &self.cards {
            let psid = card.psid.as_ref().map_or_else(String::new, |psid| format!(" ({psid})"));
            lines.push(("card", format!("{} {}", card.device, card.what)));
            lines.push(("firmware", format!("{}{psid}", or(&card.firmware))));
            lines.push(("link", card.links.join("; ")));
            let software = "none, it is software".to_owned();
            let pcie = card.pcie.clone();
            lines.push(("PCIe", pcie.unwrap_or_else(|| if card.is_software { software } else { or(&None) })));
        }
        lines
    }
}

impl Machine {
    /// Prints it, for people or as JSON.
    ///
    /// # Errors
    /// Where it cannot be printed.
    pub fn print(&self, json: bool, out: &mut dyn Write) -> io::Result<()> {
        if json {
            serde_json::to_writer_pretty(&mut *out, self)?;
            return writeln!(out);
        }
        self.lines().iter().try_for_each(|(name, text)| paragraph(out, name, 10, text))
    }
}

impl Card {
    fn of(device: &RdmaDevice) -> Self {
        let text = |fact: &kaeru_common::host::Fact| fact.get().map(str::to_owned);
        let is_software = matches!(device.kind(), Kind::SoftRoce | Kind::SoftIwarp);
        let links = device.ports.iter().map(|port| {
            let state =
                port.state.get().and_then(|state| state.split_once(": ")).map_or("unknown", |(_, word)| word);
            let rate = port.rate.or_reason();
            format!("port {}: {}, {rate}, {state}", port.number, port.link_layer.or_reason())
        });
        let narrowest = device.card().and_then(|card| card.narrowest());
        let pcie = narrowest.map(|(node, link)| {
            let generation = link.generation().map_or_else(String::new, |number| format!("Gen{number} "));
            let most = format!("{:.1} GB/s at most", link.gigabytes());
            format!("{generation}x{} ({} GT/s, {most}) at {}", link.lanes, link.gigatransfers, node.address)
        });
        Self {
            device: device.name.clone(),
            what: device.what(),
            is_software,
            firmware: text(&device.firmware),
            psid: text(&device.psid),
            links: links.collect(),
            pcie,
        }
    }
}
