//! Two sessions in memory under a virtual clock: see [`pair::Pair`].

mod pair;
mod time;
mod walk;
mod words;
