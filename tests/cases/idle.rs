//! Who has nothing to do uses no CPU.

use std::thread;
use std::time::Duration;

use crate::harness::client::Nbd;
use crate::harness::nbd::Raw;
use crate::harness::server::Server;

#[test]
fn an_idle_server_and_an_idle_client_use_next_to_no_cpu() {
    let server = Server::start(&["--ram", "scratch=16M"]);
    let nbd = Nbd::unix(&server, "scratch");
    let mut clients: Vec<Raw> = (0..4).map(|_| Raw::attach(&nbd)).collect();
    for client in &mut clients {
        // Every lane has worked, and spins no more.
        client.write(0, &[1; 1 << 20]).unwrap();
    }
    thread::sleep(Duration::from_millis(200));
    let before = (server.process.ticks(), nbd.process.ticks());
    thread::sleep(Duration::from_secs(3));
    let used = (server.process.ticks() - before.0, nbd.process.ticks() - before.1);
    // A tick is a hundredth of a second, so three are one per cent.
    assert!(used.0 <= 3 && used.1 <= 3, "server and client used {used:?} ticks in 3 s");
    for client in &mut clients {
        client.read(0, 512).unwrap();
    }
}
