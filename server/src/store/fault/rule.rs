//! One rule as a person writes it, such as `read:error=EIO,every=100`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use kaeru_common::error::Status;
use kaeru_common::units::{ByteRange, Size};

use super::super::engine::{Action, Job};

/// The longest delay: times are computed with, and more is of no use.
const MOST_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What happens to which jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The jobs that it meets.
    pub on: On,
    /// Only those that touch this range.
    pub range: Option<ByteRange>,
    /// They fail with this.
    pub error: Option<Status>,
    /// They are answered no sooner than this.
    pub delay: Option<Delay>,
    /// Until then the store has them, as a disk that hangs would: their lane cannot end sooner.
    pub hang: bool,
    /// The kernel moves fewer bytes than it was asked for, and is asked again for the rest.
    pub short: bool,
    /// Each is logged with its number.
    pub count: bool,
    /// Only every so-manieth.
    pub every: u64,
    /// Not the first so many.
    pub after: u64,
    /// Only the first that the rest of the rule fits.
    pub once: bool,
    /// For delays that are drawn.
    pub seed: u64,
}

/// The jobs that a rule meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Trims.
    Trim,
    /// Zeroes.
    Zero,
    /// Every job.
    All,
}

/// How long a job takes at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// Always the same.
    Fixed(Duration),
    /// Exponentially distributed, with this mean.
    Exponential(Duration),
    /// Each time between these two alike.
    Uniform(Duration, Duration),
}

/// Why a text is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is no fault: {reason}. Write WHICH:WHAT, such as read:error=EIO,every=100. WHICH is read, write, flush, \
     trim, zero or all. WHAT is one or more of error=EIO (or ENOSPC, EROFS, EOPNOTSUPP), delay=5ms (or exp:2ms, \
     uniform:1ms..3ms), hang, short, count; and which of them: every=N, after=N, once, range=1M-2M, seed=N"
)]
pub struct BadRule {
    text: String,
    reason: String,
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Trim => "trim",
            Self::Zero => "zero",
            Self::All => "job",
        })
    }
}

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        parse(text).map_err(|reason| BadRule { text: text.to_owned(), reason })
    }
}

fn parse(text: &str) -> Result<Rule, String> {
    let (which, what) = text.split_once(':').ok_or("it has no colon")?;
    let on = match which.trim() {
        "read" => On::Read,
        "write" => On::Write,
        "flush" => On::Flush,
        "trim" => On::Trim,
        "zero" => On::Zero,
        "all" => On::All,
        other => return Err(format!("\"{other}\" is none of the jobs")),
    };
    let mut rule = Rule {
        on,
        range: None,
        error: None,
        delay: None,
        hang: false,
        short: false,
        count: false,
        every: 1,
        after: 0,
        once: false,
        seed: 0,
    };
    for part in what.split(',') {
        let (key, value) = match part.trim().split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (part.trim(), None),
        };
        match (key, value) {
            ("error", Some(name)) => rule.error = Some(error(name)?),
            ("delay", Some(text)) => rule.delay = Some(delay(text)?),
            ("range", Some(text)) => rule.range = Some(range(text)?),
            ("every", Some(text)) => rule.every = number(text)?.max(1),
            ("after", Some(text)) => rule.after = number(text)?,
            ("seed", Some(text)) => rule.seed = number(text)?,
            ("hang", None) => rule.hang = true,
            ("short", None) => rule.short = true,
            ("count", None) => rule.count = true,
            ("once", None) => rule.once = true,
            _ => return Err(format!("\"{part}\" means nothing here")),
        }
    }
    check(rule)
}

fn check(rule: Rule) -> Result<Rule, String> {
    if rule.error.is_none() && rule.delay.is_none() && !rule.short && !rule.count {
        return Err("it does nothing".into());
    }
    if rule.hang && rule.delay.is_none() {
        return Err("hang wants a delay: for how long".into());
    }
    if rule.short && !matches!(rule.on, On::Read | On::Write | On::All) {
        return Err("only reads and writes can be short".into());
    }
    if rule.short && (rule.every != 1 || rule.after != 0 || rule.once || rule.range.is_some()) {
        return Err("short is for all reads or writes or for none".into());
    }
    Ok(rule)
}

fn error(name: &str) -> Result<Status, String> {
    match name {
        "EIO" => Ok(Status::Io),
        "ENOSPC" => Ok(Status::NoSpace),
        "EROFS" => Ok(Status::ReadOnly),
        "EOPNOTSUPP" => Ok(Status::NotSupported),
        other => Err(format!("\"{other}\" is none of the errors")),
    }
}

fn delay(text: &str) -> Result<Delay, String> {
    match text.split_once(':') {
        None => Ok(Delay::Fixed(duration(text)?)),
        Some(("exp", mean)) => Ok(Delay::Exponential(duration(mean)?)),
        Some(("uniform", ends)) => {
            let (least, most) = ends.split_once("..").ok_or("uniform wants two times, such as 1ms..3ms")?;
            let (least, most) = (duration(least)?, duration(most)?);
            if least > most {
                return Err(format!("{text} ends before it begins"));
            }
            Ok(Delay::Uniform(least, most))
        }
        Some((other, _)) => Err(format!("\"{other}\" is no distribution")),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(digits);
    let count = number(count)?;
    let time = match unit {
        "ns" => Duration::from_nanos(count),
        "us" | "µs" => Duration::from_micros(count),
        "ms" => Duration::from_millis(count),
        "s" => Duration::from_secs(count),
        _ => return Err(format!("\"{text}\" is no time; write 200us, 5ms or 1s")),
    };
    if time > MOST_DELAY {
        return Err(format!("\"{text}\" is longer than a day, which is the most"));
    }
    Ok(time)
}

fn range(text: &str) -> Result<ByteRange, String> {
    let (start, end) = text.split_once('-').ok_or("a range has a start and an end, such as 1M-2M")?;
    let bytes = |text: &str| text.parse::<Size>().map(|size| size.0).map_err(|error| error.to_string());
    let (start, end) = (bytes(start)?, bytes(end)?);
    match end.checked_sub(start) {
        Some(length @ 1..) => ByteRange::new(start, length).ok_or_else(|| format!("{text} is too large")),
        _ => Err(format!("{text} ends before it begins")),
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("\"{text}\" is no number"))
}

impl Rule {
    /// Whether a job is one of those that the rule is about.
    pub(super) fn meets(&self, job: &Job) -> bool {
        let kind = match job.action {
            Action::Read => On::Read,
            Action::Write { .. } => On::Write,
            Action::Flush => On::Flush,
            Action::Trim { .. } => On::Trim,
            Action::Zero { .. } => On::Zero,
        };
        let touches = |range: ByteRange| {
            job.action == Action::Flush
                || (range.offset() < job.range.end() && job.range.offset() < range.end())
        };
        (self.on == On::All || self.on == kind) && self.range.is_none_or(touches)
    }

    /// Whether it applies to the job of this number, from 1.
    pub(super) fn is_due(&self, number: u64) -> bool {
        number > self.after && (number - self.after).is_multiple_of(self.every)
    }
}

impl Delay {
    /// The delay of this number. The same seed gives the same delays.
    pub fn draw(self, seed: u64, number: u64) -> Duration {
        match self {
            Self::Fixed(delay) => delay,
            Self::Exponential(mean) => mean.mul_f64(-(1.0 - unit(seed, number)).ln()),
            Self::Uniform(least, most) => least + (most - least).mul_f64(unit(seed, number)),
        }
    }
}

/// A number in 0..1 for each seed and number (splitmix64).
fn unit(seed: u64, number: u64) -> f64 {
    let mut bits = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    fn job(action: Action, offset: u64) -> Job {
        Job { tag: 0, action, range: ByteRange::new(offset, 4096).unwrap(), slot: None }
    }

    #[test]
    fn a_rule_reads_as_people_write_it() {
        let read = rule("read:error=EIO,every=100,after=5,range=1M-2M,once");
        assert_eq!((read.on, read.error, read.every, read.after), (On::Read, Some(Status::Io), 100, 5));
        assert_eq!((read.range, read.once), (ByteRange::new(1 << 20, 1 << 20), true));
        assert_eq!(rule("write:delay=5ms").delay, Some(Delay::Fixed(Duration::from_millis(5))));
        assert_eq!(rule("all:delay=exp:200us,seed=7").seed, 7);
        let ends = (Duration::from_millis(1), Duration::from_millis(3));
        assert_eq!(rule("zero:delay=uniform:1ms..3ms").delay, Some(Delay::Uniform(ends.0, ends.1)));
        assert!(rule("read:short").short && rule("flush:count").count && rule("write:delay=1s,hang").hang);
        assert_eq!(rule("read:delay=86400s").delay, Some(Delay::Fixed(MOST_DELAY)));
        for (bad, part) in [
            ("", "no colon"),
            ("read:", "means nothing"),
            ("read:once", "does nothing"),
            ("raed:short", "raed"),
            ("flush:short", "only reads and writes"),
            ("read:short,every=2", "all reads"),
            ("read:error=5", "\"5\""),
            ("read:delay=5", "no time"),
            ("read:delay=gauss:5ms", "gauss"),
            ("read:delay=86401s", "a day"),
            ("read:delay=exp:18446744073709551615s", "a day"),
            ("read:delay=uniform:1ms..18446744073709551615s", "a day"),
            ("read:hang,error=EIO", "wants a delay"),
            ("read:delay=uniform:3ms..1ms", "ends before"),
            ("read:range=2M-1M,error=EIO", "ends before"),
            ("read:error=EIO,every=x", "no number"),
        ] {
            let text = bad.parse::<Rule>().unwrap_err().to_string();
            assert!(text.contains(part) && text.contains("such as"), "{bad}: {text}");
        }
    }

    #[test]
    fn a_rule_meets_its_jobs_only() {
        let some = rule("write:error=EIO,range=1M-2M");
        assert!(some.meets(&job(Action::Write { durable: true }, (1 << 20) - 4095)));
        assert!(!some.meets(&job(Action::Write { durable: true }, (1 << 20) - 4096)));
        assert!(!some.meets(&job(Action::Write { durable: true }, 2 << 20)));
        assert!(!some.meets(&job(Action::Read, 1 << 20)));
        assert!(rule("all:count").meets(&job(Action::Flush, 0)));
        let numbers = |text: &str| (1..=10).filter(|&number| rule(text).is_due(number)).collect::<Vec<_>>();
        assert_eq!(numbers("read:count,every=3"), [3, 6, 9]);
        assert_eq!(numbers("read:count,after=8"), [9, 10]);
        assert_eq!(numbers("read:count,every=4,after=2"), [6, 10]);
    }

    #[test]
    fn drawn_delays_have_the_distribution_that_was_asked_for_and_repeat() {
        let mean = |delay: Delay, seed| {
            (0..20_000).map(|number| delay.draw(seed, number).as_secs_f64()).sum::<f64>() / 20_000.0
        };
        let exponential = Delay::Exponential(Duration::from_millis(2));
        assert!((mean(exponential, 1) / 0.002 - 1.0).abs() < 0.03);
        let over = (0..20_000).filter(|&n| exponential.draw(1, n) > Duration::from_millis(6)).count();
        assert!((800..1200).contains(&over), "{over}: e^-3 of them, nearly 1000");
        let uniform = Delay::Uniform(Duration::from_millis(1), Duration::from_millis(3));
        assert!((mean(uniform, 1) / 0.002 - 1.0).abs() < 0.01);
        assert_eq!(uniform.draw(3, 4), uniform.draw(3, 4));
        assert_ne!(uniform.draw(3, 4), uniform.draw(4, 4));
    }
}
