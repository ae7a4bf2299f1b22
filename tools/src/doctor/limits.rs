//! How much memory may be locked and exported, and what root would see.

use kaeru_common::host::Limit;
use kaeru_common::units::Size;

use super::Patient;
use super::finding::Finding;

/// What a lane of a client has when nothing limits it.
const LANE: u64 = 16 << 20;
/// Below this a lane is not even opened over RDMA.
const LEAST: u64 = 1 << 20;

pub(super) fn all(patient: &Patient) -> Vec<Finding> {
    let mut findings = vec![memlock(patient)];
    findings.extend(unit(patient));
    findings.extend(export(patient));
    findings.push(root(patient));
    findings
}

/// How much memory this process may lock.
fn memlock(patient: &Patient) -> Finding {
    let check = "memlock";
    let memory = &patient.host.memory;
    let has_rdma = !patient.host.rdma.is_empty();
    let wanted = patient.export.unwrap_or(LANE).max(LEAST);
    let described = |finding: Finding| finding.read(&memory.lock_line);
    let raise = |finding: Finding| {
        finding
            .todo(
                "For a user who logs in: this line in /etc/security/limits.conf, with the name of the user; then log in again:",
                &["YOURNAME - memlock unlimited"],
            )
            .todo("For a service, in its [Service] section:", &["LimitMEMLOCK=infinity"])
    };
    let Some(limit) = memory.lock_limit else {
        return described(Finding::note(check, "", "how much memory may be locked cannot be read"));
    };
    if patient.host.user.may_lock == Some(true) {
        return described(Finding::ok(
            check,
            "",
            format!("this process may lock memory without a limit (others: {limit})"),
        ))
        .saw("/proc/self/status", "CapEff has CAP_IPC_LOCK");
    }
    let means = "The card writes to memory by itself, so that memory must stay where it is: it is locked.";
    match limit {
        Limit::Unlimited => described(Finding::ok(check, "", "memory may be locked without a limit")),
        limit if !has_rdma => described(Finding::note(check, "", format!("this user may lock {limit}")))
            .means(
                "Without an RDMA device that matters for RAM exports only; kaerud --no-lock does without.",
            ),
        limit if !limit.allows(LEAST) => raise(
            described(Finding::fail(check, "", format!("this user may lock only {limit}")))
                .stops_rdma()
                .means(format!(
                    "{means} Over RDMA not even 1 MiB for a lane is possible; root has no such limit."
                )),
        ),
        limit if !limit.allows(wanted) => {
            let title = match patient.export {
                Some(export) => format!("this user may lock {limit}, and the export needs {}", Size(export)),
                None => format!("this user may lock {limit}; one lane takes 16 MiB if it can"),
            };
            raise(described(Finding::warn(check, "", title)).means(means))
        }
        limit => described(Finding::note(check, "", format!("this user may lock {limit}")))
            .means(format!("{means} RAM exports of more than that need more.")),
    }
}

/// What the unit of kaerud says.
fn unit(patient: &Patient) -> Option<Finding> {
    let limit = patient.host.memory.unit.as_ref()?;
    let check = "unit";
    Some(match limit.get() {
        Some("infinity") => Finding::ok(check, "", "the service kaerud may lock memory without a limit")
            .saw(&limit.path, "LimitMEMLOCK=infinity"),
        said => {
            let said =
                said.map_or_else(|| "no LimitMEMLOCK".to_owned(), |limit| format!("LimitMEMLOCK={limit}"));
            Finding::note(check, "", "the service kaerud may lock a limited amount of memory")
                .saw(&limit.path, said)
                .means("A drop-in file may say otherwise. Exports of RAM over RDMA are locked as a whole.")
                .todo("In the [Service] section:", &["LimitMEMLOCK=infinity"])
                .todo("Then:", &["sudo systemctl daemon-reload && sudo systemctl restart kaerud"])
        }
    })
}

/// Whether a RAM export would fit.
fn export(patient: &Patient) -> Option<Finding> {
    let (check, export) = ("export", patient.export?);
    let path = "/proc/meminfo";
    let Some(available) = patient.host.memory.available else {
        return Some(
            Finding::note(check, "", "how much memory is free cannot be read").saw(path, "no MemAvailable"),
        );
    };
    let said = format!("MemAvailable: {}", Size(available).about());
    let size = Size(export);
    Some(match available.checked_sub(export) {
        None => Finding::fail(check, "", format!("a RAM export of {size} does not fit"))
            .saw(path, said)
            .means("Locked memory cannot be swapped out, so it must be there.")
            .todo("Export less, or end programs that use memory:", &["ps -eo rss,comm --sort=-rss | head"]),
        Some(left) if left < export / 16 || left < 1 << 30 => {
            Finding::warn(check, "", format!("a RAM export of {size} would leave {}", Size(left).about()))
                .saw(path, said)
                .means("That is little for everything else on this machine.")
        }
        Some(left) => {
            Finding::ok(check, "", format!("a RAM export of {size} would leave {}", Size(left).about()))
                .saw(path, said)
        }
    })
}

/// What was not shown to this user.
fn root(patient: &Patient) -> Finding {
    let check = "root";
    let denied = &patient.host.denied;
    if patient.host.user.is_root() {
        return Finding::ok(check, "", "run by root: nothing was hidden");
    }
    if denied.is_empty() {
        return Finding::ok(check, "", "not run by root, and no file that was looked at was hidden");
    }
    let finding =
        Finding::note(check, "", format!("some files were hidden from this user ({})", denied.len()));
    denied
        .iter()
        .take(8)
        .fold(finding, |finding, path| finding.saw(path, "not readable without root"))
        .means("What they would have said is missing above.")
        .todo("To see them:", &["sudo kaeru-doctor"])
}
