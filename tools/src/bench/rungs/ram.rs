//! This machine's own memory, to compare with: a copy of a block from a random place, as a RAM disk of this machine would
//! make it, without the kernel in its way.

use std::time::Instant;

use super::{Dead, Done, Io, Lane, Rung, RungError, RungName, Shape};
use crate::bench::stages::Stamp;
use crate::bench::workload::{Op, pattern};

/// Bytes that are copied from and to: more than caches hold.
const SIZE: usize = 64 << 20;

/// See the module.
#[derive(Debug, Default)]
pub struct RamRung;

impl Rung for RamRung {
    fn name(&self) -> RungName {
        RungName::Ram
    }

    fn size(&self) -> u64 {
        SIZE as u64
    }

    fn open(&mut self, shape: &Shape) -> Result<Box<dyn Lane>, RungError> {
        let done = Vec::with_capacity(shape.depth as usize);
        Ok(Box::new(Copy { memory: pattern(SIZE), block: pattern(shape.block as usize), done }))
    }
}

struct Copy {
    memory: Vec<u8>,
    block: Vec<u8>,
    done: Vec<Done>,
}

impl Lane for Copy {
    fn submit(&mut self, io: Io) -> Result<(), Dead> {
        let place = self.memory.get_mut(io.offset as usize..io.offset as usize + io.length as usize);
        let place = place.ok_or_else(|| Dead(format!("no block lies at {}", io.offset)))?;
        match io.op {
            Op::Read => self.block.copy_from_slice(place),
            Op::Write => place.copy_from_slice(&self.block),
        }
        std::hint::black_box(&mut self.block);
        self.done.push(Done { tag: io.tag, at: Instant::now(), failed: None, stamp: Stamp::default() });
        Ok(())
    }

    fn reap(&mut self, done: &mut Vec<Done>, _: Instant) -> Result<(), Dead> {
        done.append(&mut self.done);
        Ok(())
    }
}
