//! Reports for tests.

use std::time::Duration;

use crate::bench::cpu::Cpu;
use crate::bench::engine::{Kind, Outcome};
use crate::bench::figures::{Gathered, Measured, Place};
use crate::bench::machine::{Card, Machine};
use crate::bench::report::{Report, SCHEMA};
use crate::bench::route::Way;
use crate::bench::rungs::RungName;
use crate::bench::samples::Samples;
use crate::bench::stages::{Stages, Stamp};
use crate::bench::workload::{Op, Pattern};

/// A result of several runs, each of these latencies in nanoseconds.
pub fn measured(rung: RungName, op: Op, point: (u32, u32), runs: &[&[u64]], errors: u64) -> Measured {
    let (block, depth) = point;
    let mut gathered = Gathered::new(Place {
        rung,
        mixed_reads_percent: None,
        pattern: Pattern::Random,
        block,
        depth,
        lanes: 1,
        rate: None,
    });
    for run in runs {
        let mut samples = Samples::new().unwrap();
        run.iter().for_each(|&nanos| samples.add(Duration::from_nanos(nanos)));
        let elapsed = Duration::from_nanos(run.iter().sum::<u64>() / u64::from(depth));
        let kinds = vec![Kind { op, samples, service: None, stages: None, errors, missed: 0 }];
        let first_error = (errors > 0).then(|| "the lane is dead: the peer closed the link".to_owned());
        let cpu = Cpu { client: elapsed / 2, server: (rung != RungName::Ram).then_some(elapsed / 20) };
        gathered.add(Outcome { kinds, first_error, elapsed, cpu, is_broken: false }, Some(0));
    }
    gathered.measured().remove(0)
}

/// Latencies around a middle, with a tail, in nanoseconds.
pub fn around(middle: u64, count: u64) -> Vec<u64> {
    (0..count)
        .map(|at| middle + middle * (at * 7919 % 1000) / 4000 + if at % 500 == 0 { middle * 9 } else { 0 })
        .collect()
}

/// A report that has everything, on software RDMA.
pub fn report() -> Report {
    let runs =
        |middle| [around(middle, 12_000), around(middle + middle / 50, 12_000), around(middle, 12_000)];
    let mut results = Vec::new();
    for (rung, read, write) in [
        (RungName::Ram, 130, 140),
        (RungName::Fabric, 36_800, 34_000),
        (RungName::Remote, 38_100, 35_700),
        (RungName::Socket, 61_300, 58_900),
    ] {
        for (op, middle) in [(Op::Read, read), (Op::Write, write)] {
            let runs = runs(middle);
            let runs: Vec<&[u64]> = runs.iter().map(Vec::as_slice).collect();
            results.push(measured(rung, op, (4096, 1), &runs, 0));
        }
    }
    let mut report = Report {
        schema: SCHEMA.into(),
        version: "0.1.0".into(),
        command: "kaeru-bench latency 10.9.0.1/scratch --write --yes".into(),
        preset: "latency".into(),
        began_unix_seconds: 1_796_000_000,
        target: "10.9.0.1/scratch".into(),
        target_bytes: Some(64 << 20),
        target_kind: Some("ram".into()),
        labels: vec![
            "software RDMA: no card is behind rxe0".into(),
            "loopback: client and server are one machine".into(),
        ],
        remarks: Vec::new(),
        route: Some(Way {
            server: "nas".into(),
            fabric: "verbs".into(),
            address: "10.9.0.1:17420".into(),
            device: Some("rxe0".into()),
            server_device: Some("rxe0".into()),
            why: "the server's device rxe0 is within reach".into(),
            labels: Vec::new(),
            is_loopback: true,
        }),
        spin: "lanes spin as those of kaeru do".into(),
        client: Machine {
            host: Some("desk".into()),
            kernel: Some("6.1.0-49-amd64".into()),
            processor: Some("AMD Ryzen 5 5600X 6-Core Processor".into()),
            processors: 12,
            governor: "performance".into(),
            cards: vec![Card {
                device: "rxe0".into(),
                what: "Soft-RoCE".into(),
                is_software: true,
                links: vec!["port 1: Ethernet, 2.5 Gb/sec (1X SDR), ACTIVE".into()],
                ..Card::default()
            }],
        },
        server: None,
        results,
        steps: Vec::new(),
        apart: Vec::new(),
        problem: None,
        interrupted: false,
    };
    report.derive_steps();
    report
}

/// A report with stages.
pub fn with_stages() -> Report {
    let mut report = report();
    let start = std::time::Instant::now();
    let at = |micros| Some(start + Duration::from_micros(micros));
    let spent =
        kaeru_client::remote::Spent { waited: Duration::from_micros(3), stored: Duration::from_micros(40) };
    let mut stages = Stages::new().unwrap();
    stages.add(
        start,
        &Stamp { taken: at(9), posted: at(11), completed: at(90), spent: Some(spent) },
        start + Duration::from_micros(101),
    );
    let figures = stages.known().map(|(stage, samples)| crate::bench::figures::StageFigures {
        stage,
        source: stage.source().into(),
        latency_us: crate::bench::figures::Latency::of(samples),
    });
    report.results[6].stages = figures.collect();
    report
}

/// A sweep of sizes and depths.
pub fn sweep() -> Report {
    let mut report = report();
    report.preset = "sweep".into();
    report.results.clear();
    for block in [4096u32, 16384, 65536, 262_144] {
        for depth in [1u32, 4, 16] {
            let middle = 30_000 + u64::from(block / 4) + u64::from(depth) * 9_000;
            let runs = [around(middle, 3000)];
            let runs: Vec<&[u64]> = runs.iter().map(Vec::as_slice).collect();
            report.results.push(measured(RungName::Remote, Op::Read, (block, depth), &runs, 0));
        }
    }
    report.derive_steps();
    report
}
