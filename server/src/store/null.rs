//! The store that keeps nothing: to measure a fabric without a disk behind it.

use std::io;
use std::sync::Arc;

use kaeru_common::fabric::buffer::Memory;

/// Bytes of source and sink: as long as the longest single transfer, whatever size the export claims to have.
const SCRATCH: usize = 1 << 20;

/// Zeroes to read, and a place where writes end.
#[derive(Debug)]
pub struct Null {
    size: u64,
    source: Arc<Memory>,
    sink: Arc<Memory>,
}

impl Null {
    /// A store that claims `size` bytes.
    ///
    /// # Errors
    /// Where there is no memory for source and sink, a megabyte each.
    pub fn new(size: u64) -> io::Result<Self> {
        let (source, sink) = (Memory::anonymous(SCRATCH)?, Memory::anonymous(SCRATCH)?);
        Ok(Self { size, source: Arc::new(source), sink: Arc::new(sink) })
    }

    /// Bytes that it claims to have.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Zeroes; nobody is ever given the right to write here.
    pub fn source(&self) -> &Arc<Memory> {
        &self.source
    }

    /// Where writes go.
    pub fn sink(&self) -> &Arc<Memory> {
        &self.sink
    }
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;

    #[test]
    fn a_reader_reaches_nothing_that_anybody_writes() {
        let store = Store::Null(Null::new(1 << 40).unwrap());
        let [writers, readers] = [true, false].map(|write| store.memory(write));
        assert_eq!(writers.iter().map(|piece| piece.writable).collect::<Vec<_>>(), [false, true]);
        let written = &writers[1].memory;
        assert_eq!(readers.len(), 2);
        assert!(readers.iter().all(|piece| !piece.writable && !Arc::ptr_eq(&piece.memory, written)));
    }
}
