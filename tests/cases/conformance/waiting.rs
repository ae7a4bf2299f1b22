//! Sleeping until something happens, and never longer.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use kaeru_common::fabric::{Link, LinkConfig, Op};

use crate::harness::driven::{Driven, bytes_of};
use crate::harness::pair::{LinkOf, PATIENCE, Pair, any_readable};
use crate::harness::rig::{Duo, Rig, SMALL};

/// Polls until nothing happens and the link is armed.
fn rest<L: Link>(end: &mut Driven<L>) {
    loop {
        while end.poll() {}
        if !end.link.arm() {
            return;
        }
    }
}

pub(super) fn an_idle_link_sleeps<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let mut duo = rig.join_small();
    duo.server.recv();
    rig.write(&mut duo, 0, b"busy");
    duo.client.send(b"busy");
    rig.settle(&mut duo);
    // What is left over from before, such as a wake-up that was overtaken by a poll, may wake it a few times.
    let idle = |rig: &mut Rig<P>, end: &mut Driven<LinkOf<P>>| {
        (0..20).any(|_| {
            rest(end);
            rig.pair.pump();
            !any_readable(&[end.link.wait_fd()], Duration::from_millis(20))
        })
    };
    assert!(idle(&mut rig, &mut duo.client), "the client's end comes to rest");
    assert!(idle(&mut rig, &mut duo.server), "the server's end comes to rest");
}

pub(super) fn arming_says_that_something_arrived_before<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let mut duo = rig.join_small();
    for round in 0..20u8 {
        duo.server.recv();
        rest(&mut duo.server);
        duo.client.send(&[round]);
        // The server sleeps until it is woken, and then arms again without having polled.
        let client = &mut duo.client;
        client.link.submit();
        let deadline = rig.pair.now() + PATIENCE;
        while !any_readable(&[duo.server.link.wait_fd()], Duration::ZERO) {
            client.poll();
            rig.pair.pump();
            assert!(rig.pair.now() < deadline, "the message wakes the server");
        }
        assert!(
            duo.server.link.arm() || any_readable(&[duo.server.link.wait_fd()], Duration::from_secs(1)),
            "round {round}"
        );
        rig.until("the message", &mut [&mut duo.client, &mut duo.server], |ends| {
            ends.iter().all(|end| end.owes() == 0)
        });
        duo.client.done.clear();
        duo.server.done.clear();
    }
}

/// One side of a game of ping-pong.
struct Player<L> {
    end: Driven<L>,
    next: u32,
    last: u32,
    over: bool,
}

impl<L: Link> Player<L> {
    /// The one who begins sends even numbers, the other one odd ones.
    fn new(mut end: Driven<L>, begins: bool, last: u32) -> Self {
        end.recv();
        let mut player = Self { end, next: u32::from(begins), last, over: false };
        if begins {
            player.say(0);
        }
        player.end.link.submit();
        player
    }

    fn say(&mut self, number: u32) {
        self.end.send(&number.to_ne_bytes());
    }

    /// Answers what came.
    fn play(&mut self) {
        while self.end.poll() {
            while let Some(completion) = self.end.done.pop_front() {
                assert!(completion.result.is_ok(), "{completion:?}");
                if completion.op == Op::Recv {
                    self.hear(u32::from_ne_bytes(bytes_of(&completion).try_into().unwrap()));
                }
            }
            self.end.link.submit();
        }
    }

    fn hear(&mut self, number: u32) {
        assert_eq!(number, self.next, "no message is lost or doubled");
        self.next += 2;
        if number < self.last {
            self.end.recv();
            self.say(number + 1);
        }
        self.over = number + 1 >= self.last;
    }

    /// Plays until there is nothing to do but to sleep.
    fn turn(&mut self) {
        loop {
            self.play();
            if !self.end.link.arm() {
                return;
            }
        }
    }

    /// Plays to the end, asleep whenever nothing is to be done.
    fn play_on(mut self) -> Self {
        loop {
            self.turn();
            if self.over {
                return self;
            }
            let woken = any_readable(&[self.end.link.wait_fd()], PATIENCE);
            assert!(woken, "slept over message {}", self.next);
        }
    }
}

pub(super) fn no_wake_up_is_lost_in_ten_thousand_round_trips<P: Pair>(pair: P) {
    const LAST: u32 = 20_000;
    let mut rig = Rig::new(pair, 4096);
    let Duo { client, server } = rig.join_small();
    let mut players = [Player::new(client, true, LAST), Player::new(server, false, LAST)];
    if P::CONCURRENT {
        let [one, other] = players;
        let other = std::thread::spawn(move || other.play_on());
        let finished = (one.play_on(), other.join().unwrap());
        assert!(finished.0.over && finished.1.over);
        return;
    }
    players.iter_mut().for_each(Player::turn);
    while players.iter().any(|player| !player.over) {
        let fds: Vec<BorrowedFd<'_>> = players.iter().map(|player| player.end.link.wait_fd()).collect();
        assert!(rig.pair.sleep(&fds), "both sleep over message {}", players[0].next);
        let awake: Vec<bool> = fds.iter().map(|fd| any_readable(&[*fd], Duration::ZERO)).collect();
        for (player, _) in players.iter_mut().zip(awake).filter(|(_, awake)| *awake) {
            player.turn();
        }
    }
}

/// Lets both ends work only when their descriptors wake them, until the client's operations came back.
fn sleep_through<P: Pair>(rig: &mut Rig<P>, duo: &mut Duo<P>) {
    let deadline = rig.pair.now() + PATIENCE;
    duo.client.link.submit();
    rest(&mut duo.client);
    while duo.client.owes() > 0 {
        // A card serves without its process; software is woken by its descriptor.
        let woken = rig.pair.sleep(&[duo.client.link.wait_fd(), duo.server.link.wait_fd()]);
        assert!(woken && rig.pair.now() < deadline, "both sleep over {} operations", duo.client.owes());
        for end in [&mut duo.client, &mut duo.server] {
            if any_readable(&[end.link.wait_fd()], Duration::ZERO) {
                rest(end);
            }
        }
    }
}

pub(super) fn a_sleeping_server_wakes_to_serve<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    let mut duo = rig.join_small();
    rest(&mut duo.server);
    for round in 0..200u8 {
        let tag = duo.client.write(&[round; 64], rig.range(0, 64));
        let read = duo.client.read(rig.range(0, 64));
        sleep_through(&mut rig, &mut duo);
        assert_eq!(duo.client.result(tag), Ok(64));
        assert_eq!(duo.client.bytes(read), [round; 64]);
    }
}

pub(super) fn sleepers_move_more_than_any_socket_holds<P: Pair>(pair: P) {
    // The answers to 16 reads, which is what goes on the wire at once, fill a socket too.
    const PIECE: u32 = 1 << 20;
    let mut rig = Rig::new(pair, 16 * PIECE as usize);
    let wide = LinkConfig { slots: 32, slot_size: PIECE, depth: 32, ..SMALL };
    let mut duo = rig.join(&wide, &SMALL);
    rest(&mut duo.server);
    for round in 0..4u8 {
        for at in 0..16 {
            duo.client
                .write(&vec![round ^ at; PIECE as usize], rig.range(u64::from(at) * u64::from(PIECE), PIECE));
        }
        let reads: Vec<u64> =
            (0..16).map(|at| duo.client.read(rig.range(at * u64::from(PIECE), PIECE))).collect();
        sleep_through(&mut rig, &mut duo);
        for (at, read) in (0..).zip(reads) {
            assert!(duo.client.bytes(read).iter().all(|&byte| byte == round ^ at), "round {round}");
        }
        duo.client.done.clear();
    }
}

/// A client at rest with so many receives, whose server has just gone.
fn bereft<P: Pair>(rig: &mut Rig<P>, receives: usize) -> Driven<LinkOf<P>> {
    let Duo { mut client, server } = rig.join_small();
    for _ in 0..receives {
        client.recv();
    }
    rest(&mut client);
    drop(server);
    client
}

pub(super) fn death_wakes_a_sleeping_link<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    for receives in [0, 3] {
        let mut client = bereft(&mut rig, receives);
        let deadline = rig.pair.now() + PATIENCE;
        while client.link.down().is_none() || client.owes() > 0 {
            rest(&mut client);
            if client.link.down().is_none() {
                assert!(rig.pair.sleep(&[client.link.wait_fd()]), "it sleeps through its death");
                assert!(rig.pair.now() < deadline);
                client.poll();
            }
        }
    }
}

pub(super) fn a_poll_that_meets_the_end_says_so<P: Pair>(pair: P) {
    let mut rig = Rig::new(pair, 4096);
    // With receives, and without anything that would come back.
    for receives in [0, 1] {
        let mut client = bereft(&mut rig, receives);
        let deadline = rig.pair.now() + PATIENCE;
        loop {
            let happened = client.poll();
            if client.link.down().is_some() {
                assert!(happened, "who polls would sleep now, and nothing wakes a second time");
                break;
            }
            assert!(rig.pair.now() < deadline, "the end is never heard of");
            if !happened && !client.link.arm() {
                rig.pair.sleep(&[client.link.wait_fd()]);
            }
        }
    }
}
