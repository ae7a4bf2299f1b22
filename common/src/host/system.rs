//! The machine around the card: who asks, kernel, processors, memory and its limits, the NBD driver.

use std::collections::{BTreeMap, BTreeSet};

use super::fact::Fact;
use super::tree::Tree;

/// The bit of the capability to lock memory without a limit.
const CAP_IPC_LOCK: u32 = 14;

/// Where the unit of kaerud may lie, in the order of precedence.
const UNITS: [&str; 4] = [
    "/etc/systemd/system/kaerud.service",
    "/usr/local/lib/systemd/system/kaerud.service",
    "/usr/lib/systemd/system/kaerud.service",
    "/lib/systemd/system/kaerud.service",
];

/// Programs that not every machine has, and their packages on Debian.
const TOOLS: [(&str, &str); 12] = [
    ("cpupower", "linux-cpupower    # Ubuntu: linux-tools-$(uname -r)"),
    ("ethtool", "ethtool"),
    ("iblinkinfo", "infiniband-diags"),
    ("ibstat", "infiniband-diags"),
    ("ibv_devices", "ibverbs-utils"),
    ("ibv_devinfo", "ibverbs-utils"),
    ("lspci", "pciutils"),
    ("mstconfig", "mstflint"),
    ("mstflint", "mstflint"),
    ("numactl", "numactl"),
    ("perfquery", "infiniband-diags"),
    ("sminfo", "infiniband-diags"),
];

/// Where programs lie.
const FOLDERS: [&str; 6] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/usr/local/sbin"];

/// Who reads.
#[derive(Clone, Debug, Default)]
pub struct User {
    /// The effective user.
    pub uid: Option<u32>,
    /// Whether this process may lock memory without a limit.
    pub may_lock: Option<bool>,
}

impl User {
    pub(super) fn read(tree: &Tree) -> Self {
        let lines = tree.lines("/proc/self/status").unwrap_or_default();
        let field = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name));
        let capabilities = field("CapEff:").and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        Self {
            uid: field("Uid:").and_then(|text| text.split_whitespace().nth(1)?.parse().ok()),
            may_lock: capabilities.map(|bits| bits >> CAP_IPC_LOCK & 1 == 1),
        }
    }

    /// Whether it is root.
    pub fn is_root(&self) -> bool {
        self.uid == Some(0)
    }
}

/// Kernel, modules, packages.
#[derive(Clone, Debug, Default)]
pub struct Software {
    /// The kernel's version.
    pub kernel: Fact,
    /// The machine's name.
    pub hostname: Fact,
    /// The modules that are loaded, as far as `/sys/module` shows them.
    pub modules: Vec<String>,
    /// The files that tell libibverbs of its drivers, without their ending.
    pub providers: Vec<String>,
    /// The device file through which RDMA connections are made: whether it is there, and whether this user may use it.
    pub rdma_cm_file: Option<bool>,
    /// What `mstflint -v` said, in a copy of files: there is no program to be run there.
    pub mstflint: Fact,
    /// Whether the firewall ufw is switched on.
    pub ufw: Option<bool>,
    /// Whether the firewall firewalld starts with the machine.
    pub firewalld: bool,
    /// The modules that the running kernel has on disk or within itself; `None` where no file lists them.
    pub shipped: Option<BTreeSet<String>>,
    /// Those of the programs we name in advice that are installed, where not every machine has them.
    pub tools: Vec<&'static str>,
    /// Settings of the driver mlx4 that limit how much memory it can register.
    pub log_num_mtt: Fact,
    /// Likewise.
    pub log_mtts_per_seg: Fact,
}

impl Software {
    pub(super) fn read(tree: &Tree) -> Self {
        let providers = tree.names("/etc/libibverbs.d");
        let ufw = tree.lines("/etc/ufw/ufw.conf").ok();
        let rdma_cm = "/dev/infiniband/rdma_cm";
        let kernel = tree.fact("/proc/sys/kernel/osrelease");
        let services = tree.names("/etc/systemd/system/multi-user.target.wants");
        Self {
            shipped: kernel.get().and_then(|release| shipped(tree, release)),
            kernel,
            tools: TOOLS
                .iter()
                .map(|(tool, _)| *tool)
                .filter(|tool| FOLDERS.iter().any(|folder| tree.exists(&format!("{folder}/{tool}"))))
                .collect(),
            hostname: tree.fact("/proc/sys/kernel/hostname"),
            modules: tree.names("/sys/module"),
            providers: providers
                .iter()
                .filter_map(|name| name.strip_suffix(".driver"))
                .map(str::to_owned)
                .collect(),
            rdma_cm_file: tree.exists(rdma_cm).then(|| tree.may_use(rdma_cm)),
            mstflint: tree.fact("/mstflint-v"),
            ufw: ufw.and_then(|lines| {
                let value = lines.iter().find_map(|line| line.trim().strip_prefix("ENABLED="))?;
                Some(value.trim().eq_ignore_ascii_case("yes"))
            }),
            firewalld: services.iter().any(|name| name == "firewalld.service"),
            log_num_mtt: tree.fact("/sys/module/mlx4_core/parameters/log_num_mtt"),
            log_mtts_per_seg: tree.fact("/sys/module/mlx4_core/parameters/log_mtts_per_seg"),
        }
    }

    /// The package that is to be installed before a command can be run; `None` where it can, as far as is known.
    pub fn package_for(&self, command: &str) -> Option<&'static str> {
        let program = command.split_whitespace().find(|word| *word != "sudo")?;
        let (tool, package) = TOOLS.iter().find(|(tool, _)| *tool == program)?;
        (!self.tools.contains(tool)).then_some(package)
    }

    /// Whether a module is loaded.
    pub fn has_module(&self, name: &str) -> bool {
        self.modules.iter().any(|module| module == name)
    }

    /// Whether the running kernel has a module, loaded or not; `None` where nothing tells.
    pub fn kernel_has(&self, name: &str) -> Option<bool> {
        let shipped = self.shipped.as_ref().map(|shipped| shipped.contains(name));
        if self.has_module(name) { Some(true) } else { shipped }
    }
}

/// The names in the lists that `depmod` makes. Without the one of files there is nothing to be said: a container has none
/// of its host's.
fn shipped(tree: &Tree, release: &str) -> Option<BTreeSet<String>> {
    let folder = format!("/lib/modules/{release}");
    let mut lines = tree.list(&format!("{folder}/modules.dep")).ok()?;
    lines.extend(tree.list(&format!("{folder}/modules.builtin")).unwrap_or_default());
    // kernel/drivers/block/nbd.ko.xz: what it needs
    let name = |line: &String| {
        let file = line.split(':').next()?.rsplit('/').next()?;
        Some(file.split_once(".ko")?.0.replace('-', "_"))
    };
    Some(lines.iter().filter_map(name).collect())
}

/// Processors.
#[derive(Clone, Debug, Default)]
pub struct Cpu {
    /// What they call themselves.
    pub model: Option<String>,
    /// How many there are.
    pub count: usize,
    /// The governors of their frequencies, each with the number of processors.
    pub governors: BTreeMap<String, usize>,
    /// The deepest sleep of the first one: its name, and microseconds to wake up.
    pub deepest_sleep: Option<(Fact, u64)>,
    /// How PCI Express links save power: all choices, the one in brackets being the choice.
    pub aspm: Fact,
    /// The nodes of processors and memory: `0` or `0-1`.
    pub nodes: Fact,
}

impl Cpu {
    pub(super) fn read(tree: &Tree) -> Self {
        let folder = "/sys/devices/system/cpu";
        let cpus: Vec<String> = tree
            .names(folder)
            .into_iter()
            .filter(|name| name.strip_prefix("cpu").is_some_and(|number| number.parse::<u32>().is_ok()))
            .collect();
        let mut governors = BTreeMap::new();
        for cpu in &cpus {
            if let Ok(governor) = tree.fact(&format!("{folder}/{cpu}/cpufreq/scaling_governor")).value {
                *governors.entry(governor).or_default() += 1;
            }
        }
        let idle = format!("{folder}/cpu0/cpuidle");
        let states = tree.names(&idle).into_iter().filter(|name| name.starts_with("state"));
        let deepest_sleep = states
            .filter(|state| tree.fact(&format!("{idle}/{state}/disable")).number() != Some(1))
            .filter_map(|state| {
                let latency = tree.fact(&format!("{idle}/{state}/latency")).number()?;
                Some((tree.fact(&format!("{idle}/{state}/name")), latency))
            })
            .max_by_key(|(_, latency)| *latency);
        let model = tree.lines("/proc/cpuinfo").unwrap_or_default().into_iter().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == "model name").then(|| value.trim().to_owned())
        });
        Self {
            model,
            count: cpus.len(),
            governors,
            deepest_sleep,
            aspm: tree.fact("/sys/module/pcie_aspm/parameters/policy"),
            nodes: tree.fact("/sys/devices/system/node/online"),
        }
    }

    /// How PCI Express links save power.
    pub fn aspm_policy(&self) -> Option<&str> {
        self.aspm.get()?.split_once('[')?.1.split_once(']').map(|(policy, _)| policy)
    }
}

/// How much memory a process may lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many bytes.
    Bytes(u64),
    /// As much as there is.
    Unlimited,
}

impl Limit {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "unlimited" | "infinity" => Some(Self::Unlimited),
            text => text.parse().ok().map(Self::Bytes),
        }
    }

    /// Whether `bytes` fit.
    pub const fn allows(self, bytes: u64) -> bool {
        match self {
            Self::Bytes(limit) => bytes <= limit,
            Self::Unlimited => true,
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => crate::units::Size(*bytes).fmt(f),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

/// Memory.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Bytes of RAM.
    pub total: Option<u64>,
    /// Bytes that programs may still have.
    pub available: Option<u64>,
    /// How much this process may lock.
    pub lock_limit: Option<Limit>,
    /// The line that says so.
    pub lock_line: Fact,
    /// The last `LimitMEMLOCK` of the unit of kaerud, where there is such a unit.
    pub unit: Option<Fact>,
}

impl Memory {
    pub(super) fn read(tree: &Tree) -> Self {
        let info = tree.lines("/proc/meminfo").unwrap_or_default();
        let kibibytes = |name: &str| {
            let text = info.iter().find_map(|line| line.strip_prefix(name))?;
            text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let path = "/proc/self/limits";
        let lock_line = tree.lines(path).map(|lines| {
            let line = lines.into_iter().find(|line| line.starts_with("Max locked memory"));
            line.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).unwrap_or_default()
        });
        let lock_line = match lock_line {
            Ok(line) => Fact::told(path, &line),
            Err(reason) => Fact { path: path.to_owned(), value: Err(reason) },
        };
        Self {
            total: kibibytes("MemTotal:"),
            available: kibibytes("MemAvailable:"),
            lock_limit: lock_line.get().and_then(|line| Limit::parse(line.split_whitespace().nth(3)?)),
            lock_line,
            unit: UNITS
                .into_iter()
                .find_map(|path| Some(Fact::told(path, &unit_limit(&tree.lines(path).ok()?)))),
        }
    }
}

/// The last `LimitMEMLOCK` of a unit; empty without one.
fn unit_limit(lines: &[String]) -> String {
    let mut values = lines.iter().filter_map(|line| line.trim().strip_prefix("LimitMEMLOCK="));
    values.next_back().unwrap_or_default().trim().chars().take(64).collect()
}

/// The kernel's NBD driver.
#[derive(Clone, Debug, Default)]
pub struct Nbd {
    /// Whether it is there.
    pub loaded: bool,
    /// Devices that it makes on loading.
    pub nbds_max: Fact,
    /// Partitions that each may have.
    pub max_part: Fact,
    /// The devices that there are.
    pub devices: Vec<NbdDevice>,
}

/// One `/dev/nbdN`.
#[derive(Clone, Debug)]
pub struct NbdDevice {
    /// Its name.
    pub name: String,
    /// The process that serves it, while one does.
    pub pid: Fact,
}

impl Nbd {
    pub(super) fn read(tree: &Tree) -> Self {
        let names = tree
            .names("/sys/block")
            .into_iter()
            .filter(|name| name.strip_prefix("nbd").is_some_and(|number| number.parse::<u32>().is_ok()));
        Self {
            loaded: tree.exists("/sys/module/nbd"),
            nbds_max: tree.fact("/sys/module/nbd/parameters/nbds_max"),
            max_part: tree.fact("/sys/module/nbd/parameters/max_part"),
            devices: names
                .map(|name| NbdDevice { pid: tree.fact(&format!("/sys/block/{name}/pid")), name })
                .collect(),
        }
    }
}
