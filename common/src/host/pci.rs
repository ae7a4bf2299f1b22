//! The PCI side of a card: who it is, and every link on the way from the processor to it.

use super::fact::Fact;
use super::tree::Tree;

/// The vendor number of Mellanox, now NVIDIA networking.
pub const MELLANOX: u64 = 0x15b3;

/// Which cards a PCI number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// ConnectX-3.
    ConnectX3,
    /// ConnectX-3 Pro.
    ConnectX3Pro,
    /// Connect-IB.
    ConnectIb,
    /// ConnectX-4.
    ConnectX4,
    /// ConnectX-4 Lx.
    ConnectX4Lx,
    /// ConnectX-5, ConnectX-5 Ex.
    ConnectX5,
    /// ConnectX-6 and later.
    Later,
    /// Something older, or not a ConnectX.
    Other,
}

/// PCI numbers as rdma-core has them: number, family, name. Even ones after a card are its virtual functions.
const CARDS: [(u64, Family, &str); 23] = [
    (0x1003, Family::ConnectX3, "ConnectX-3"),
    (0x1004, Family::ConnectX3, "ConnectX-3 virtual function"),
    (0x1007, Family::ConnectX3Pro, "ConnectX-3 Pro"),
    (0x1011, Family::ConnectIb, "Connect-IB"),
    (0x1012, Family::ConnectIb, "Connect-IB virtual function"),
    (0x1013, Family::ConnectX4, "ConnectX-4"),
    (0x1014, Family::ConnectX4, "ConnectX-4 virtual function"),
    (0x1015, Family::ConnectX4Lx, "ConnectX-4 Lx"),
    (0x1016, Family::ConnectX4Lx, "ConnectX-4 Lx virtual function"),
    (0x1017, Family::ConnectX5, "ConnectX-5"),
    (0x1018, Family::ConnectX5, "ConnectX-5 virtual function"),
    (0x1019, Family::ConnectX5, "ConnectX-5 Ex"),
    (0x101a, Family::ConnectX5, "ConnectX-5 Ex virtual function"),
    (0x101b, Family::Later, "ConnectX-6"),
    (0x101c, Family::Later, "ConnectX-6 virtual function"),
    (0x101d, Family::Later, "ConnectX-6 Dx"),
    (0x101e, Family::Later, "ConnectX virtual function"),
    (0x101f, Family::Later, "ConnectX-6 Lx"),
    (0x1021, Family::Later, "ConnectX-7"),
    (0x1023, Family::Later, "ConnectX-8"),
    (0x1025, Family::Later, "ConnectX-9"),
    (0xa2d2, Family::Later, "BlueField"),
    (0xa2d6, Family::Later, "BlueField-2"),
];

/// The cards before ConnectX-3 that mlx4 drives.
const OLD_MLX4: [u64; 12] =
    [0x6340, 0x634a, 0x6354, 0x6732, 0x673c, 0x6368, 0x6750, 0x6372, 0x675a, 0x6764, 0x6746, 0x676e];

/// A PCI function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciDevice {
    /// Where it hangs: the path of its folder below the root.
    pub path: String,
    /// Bus, device and function: `0000:04:00.0`.
    pub address: String,
    /// The maker.
    pub vendor: Fact,
    /// The model.
    pub device: Fact,
    /// Who sold it.
    pub subsystem_vendor: Fact,
    /// What the driver calls it: `mlx4_core`.
    pub driver: Option<String>,
    /// The node of memory and processors that it is next to.
    pub numa_node: Fact,
    /// The card, then every bridge above it up to the processor.
    pub chain: Vec<PciNode>,
    /// The temperature in thousandths of a degree, where its driver tells.
    pub temperature: Option<Fact>,
    /// The highest temperature that the card is made for, likewise.
    pub critical: Option<Fact>,
    /// `mlx4_port1`, `mlx4_port2`: what a port is set to.
    pub port_modes: Vec<Fact>,
    /// Whether it is a virtual function of a card that is seen here, too.
    pub has_physical: bool,
}

/// One end of a PCI link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciNode {
    /// Bus, device and function.
    pub address: String,
    /// How fast it runs.
    pub speed: Fact,
    /// How wide it runs.
    pub width: Fact,
    /// How fast it could.
    pub max_speed: Fact,
    /// How wide it could.
    pub max_width: Fact,
}

/// How fast and how wide a PCI link is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PciLink {
    /// Billions of transfers a second for each lane.
    pub gigatransfers: f64,
    /// Lanes.
    pub lanes: u32,
}

impl PciLink {
    /// What `8.0 GT/s PCIe` and `8` mean. `None` for what the kernel prints when it does not know: `Unknown`, 0, 255.
    pub fn parse(speed: &Fact, width: &Fact) -> Option<Self> {
        let (number, unit) = speed.get()?.split_once(' ')?;
        let gigatransfers: f64 = number.parse().ok()?;
        let lanes: u32 = width.get()?.trim_start_matches('x').parse().ok()?;
        let sound =
            unit.starts_with("GT/s") && (1.0..=256.0).contains(&gigatransfers) && (1..=32).contains(&lanes);
        sound.then_some(Self { gigatransfers, lanes })
    }

    /// The generation of PCI Express with this speed.
    pub fn generation(&self) -> Option<u32> {
        [(2.5, 1), (5.0, 2), (8.0, 3), (16.0, 4), (32.0, 5), (64.0, 6)]
            .into_iter()
            .find(|(speed, _)| (self.gigatransfers - speed).abs() < 0.1)
            .map(|(_, generation)| generation)
    }

    /// Gigabytes a second in one direction once the line code is taken off: 8 of 10 bits up to 5 GT/s, 128 of 130 from
    /// 8 GT/s on, 242 of 256 bytes from 64 GT/s on. Packet headers take some more.
    pub fn gigabytes(&self) -> f64 {
        let code = match self.gigatransfers {
            speed if speed < 6.0 => 0.8,
            speed if speed < 60.0 => 128.0 / 130.0,
            _ => 242.0 / 256.0,
        };
        self.gigatransfers * code * f64::from(self.lanes) / 8.0
    }
}

impl std::fmt::Display for PciLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.generation() {
            Some(generation) => write!(f, "Gen{generation} x{}", self.lanes),
            None => write!(f, "{} GT/s x{}", self.gigatransfers, self.lanes),
        }
    }
}

impl PciNode {
    fn read(tree: &Tree, path: &str) -> Self {
        let fact = |name: &str| tree.fact(&format!("{path}/{name}"));
        Self {
            address: path.rsplit('/').next().unwrap_or_default().to_owned(),
            speed: fact("current_link_speed"),
            width: fact("current_link_width"),
            max_speed: fact("max_link_speed"),
            max_width: fact("max_link_width"),
        }
    }

    /// As it runs.
    pub fn link(&self) -> Option<PciLink> {
        PciLink::parse(&self.speed, &self.width)
    }

    /// As it could run.
    pub fn best(&self) -> Option<PciLink> {
        PciLink::parse(&self.max_speed, &self.max_width)
    }
}

impl PciDevice {
    pub(super) fn read(tree: &Tree, path: &str) -> Self {
        let fact = |name: &str| tree.fact(&format!("{path}/{name}"));
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        let mut chain: Vec<PciNode> = ends
            .map(|end| &path[..end])
            .filter(|way| is_address(way.rsplit('/').next().unwrap_or_default()))
            .map(|way| PciNode::read(tree, way))
            .collect();
        chain.reverse();
        let hwmon = format!("{path}/hwmon");
        let sensor = tree.names(&hwmon).into_iter().next().map(|name| format!("{hwmon}/{name}"));
        let sensor = |name: &str| sensor.as_ref().map(|sensor| tree.fact(&format!("{sensor}/{name}")));
        Self {
            path: path.to_owned(),
            address: path.rsplit('/').next().unwrap_or_default().to_owned(),
            vendor: fact("vendor"),
            device: fact("device"),
            subsystem_vendor: fact("subsystem_vendor"),
            driver: tree.link_name(&format!("{path}/driver")),
            numa_node: fact("numa_node"),
            chain,
            temperature: sensor("temp1_input"),
            critical: sensor("temp1_crit"),
            port_modes: ["mlx4_port1", "mlx4_port2"]
                .into_iter()
                .map(fact)
                .filter(|fact| fact.get().is_some())
                .collect(),
            has_physical: tree.exists(&format!("{path}/physfn")),
        }
    }

    /// Whether it is a part of a card that another machine, or the host of this one, has lent: firmware, settings and
    /// sensors belong to the whole card, and cannot be reached from here.
    pub fn is_virtual(&self) -> bool {
        self.has_physical || self.known().is_some_and(|(_, _, name)| name.ends_with("virtual function"))
    }

    /// What all functions of one card share: bus and device.
    pub fn place(&self) -> &str {
        self.address.rsplit_once('.').map_or(&self.address, |(place, _)| place)
    }

    /// Whether it is a card before ConnectX-3 that mlx4 drives.
    fn is_old_mlx4(&self) -> bool {
        let number = self.device.number().filter(|_| self.vendor.number() == Some(MELLANOX));
        number.is_some_and(|number| OLD_MLX4.contains(&number))
    }

    /// Which cards it belongs to.
    pub fn family(&self) -> Family {
        self.known().map_or(Family::Other, |(_, family, _)| family)
    }

    fn known(&self) -> Option<(u64, Family, &'static str)> {
        let number = self.device.number().filter(|_| self.vendor.number() == Some(MELLANOX))?;
        CARDS.into_iter().find(|(known, ..)| *known == number)
    }

    /// What to call it: its name and numbers.
    pub fn name(&self) -> String {
        let hex = |fact: &Fact| fact.or_reason().trim_start_matches("0x").to_owned();
        let numbers = format!("{}:{}", hex(&self.vendor), hex(&self.device));
        let is_ours = self.vendor.number() == Some(MELLANOX);
        match self.known() {
            Some((_, _, name)) => format!("{name} ({numbers})"),
            None if self.is_old_mlx4() => format!("a Mellanox card older than ConnectX-3 ({numbers})"),
            None if is_ours => format!("a Mellanox/NVIDIA card ({numbers})"),
            None => format!("a card of another maker ({numbers})"),
        }
    }

    /// The kernel's RDMA driver for it.
    pub fn rdma_module(&self) -> Option<&'static str> {
        match self.family() {
            Family::ConnectX3 | Family::ConnectX3Pro => Some("mlx4_ib"),
            Family::Other => self.is_old_mlx4().then_some("mlx4_ib"),
            _ => Some("mlx5_ib"),
        }
    }

    /// The narrowest link on the way to the card, and where it is.
    pub fn narrowest(&self) -> Option<(&PciNode, PciLink)> {
        let links = self.chain.iter().filter_map(|node| Some((node, node.link()?)));
        links.min_by(|(_, a), (_, b)| a.gigabytes().total_cmp(&b.gigabytes()))
    }
}

/// Whether a part of a path is the address of a PCI function: `0000:04:00.0`.
fn is_address(part: &str) -> bool {
    let shape: Vec<usize> = part.split([':', '.']).map(str::len).collect();
    shape[1..] == [2, 2, 1]
        && shape[0] >= 4
        && part.chars().all(|c| c.is_ascii_hexdigit() || ":.".contains(c))
}

/// The network cards of Mellanox on PCI.
pub(super) fn read_cards(tree: &Tree) -> Vec<PciDevice> {
    let folder = "/sys/bus/pci/devices";
    tree.names(folder)
        .into_iter()
        .map(|name| format!("{folder}/{name}"))
        .filter(|path| tree.fact(&format!("{path}/vendor")).number() == Some(MELLANOX))
        .filter_map(|path| tree.real(&path))
        .map(|path| PciDevice::read(tree, &format!("/{path}")))
        .filter(|card| {
            card.known().is_some() || card.is_old_mlx4() || is_network(tree, &format!("{}/class", card.path))
        })
        .collect()
}

/// Whether a class is a network card's, which the bridge of a BlueField is not. Cards before ConnectX-3 say that they are
/// serial buses, of the kind InfiniBand.
fn is_network(tree: &Tree, path: &str) -> bool {
    tree.fact(path).number().is_some_and(|class| class >> 16 == 0x02 || class >> 8 == 0x0c06)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(speed: &str, width: &str) -> Option<PciLink> {
        PciLink::parse(&Fact::told("s", speed), &Fact::told("w", width))
    }

    #[test]
    fn links_read_as_every_kernel_prints_them() {
        for (speed, width, gigabytes) in [
            ("8.0 GT/s PCIe", "8", 7.877),
            ("8 GT/s", "8", 7.877),
            ("8.0 GT/s PCIe", "4", 3.938),
            ("5.0 GT/s PCIe", "8", 4.0),
            ("5 GT/s", "4", 2.0),
            ("2.5 GT/s PCIe", "8", 2.0),
            ("16.0 GT/s PCIe", "x16", 31.508),
        ] {
            let found = link(speed, width).unwrap().gigabytes();
            assert!((found - gigabytes).abs() < 0.001, "{speed} x{width}: {found}");
        }
        for (speed, width) in [
            ("Unknown", "8"),
            ("Unknown speed", "8"),
            ("8.0 GT/s PCIe", "0"),
            ("8.0 GT/s PCIe", "255"),
            ("NaN GT/s", "8"),
            ("inf GT/s", "8"),
            ("-5 GT/s", "8"),
            ("8", "8"),
            ("", ""),
        ] {
            assert_eq!(link(speed, width), None, "{speed} x{width}");
        }
        assert_eq!(link("8.0 GT/s PCIe", "8").unwrap().to_string(), "Gen3 x8");
    }

    #[test]
    fn addresses_are_told_from_other_folders() {
        for part in ["0000:04:00.0", "10000:e1:00.1"] {
            assert!(is_address(part), "{part}");
        }
        for part in ["pci0000:00", "devices", "", "0000:04:00", "0000:04:00.0:x", "wxyz:04:00.0"] {
            assert!(!is_address(part), "{part}");
        }
    }
}
