//! The pages that a region has in a [pool of slots](crate::slots): which slot each is in, its
//! length and its checksum, 40 bytes a page. A page's location is its row.

use std::sync::Arc;

use crate::encode::Checksum;
use crate::file::ReadBuffer;
use crate::medium::MediumError;
use crate::slots::{Slot, SlotError, SlotPool};
use crate::stats::TierStats;

/// Rows at most: what a location's 16 bits reach.
const ROWS_MAX: usize = 1 << 16;

struct Row {
    slot: Slot,
    len: u16,
    checksum: [u8; size_of::<Checksum>()],
}

/// Rows of one region and one tier.
pub(crate) struct SlotTable {
    pool: Arc<SlotPool>,
    rows: Vec<Option<Row>>,
    /// Empty rows; room for all is reserved, so that a removal needs no memory.
    empty: Vec<u16>,
    /// Round in which the table's pages were moved together last.
    round: u32,
}

impl SlotTable {
    pub fn new(pool: &Arc<SlotPool>) -> SlotTable {
        SlotTable { pool: Arc::clone(pool), rows: Vec::new(), empty: Vec::new(), round: 0 }
    }

    /// Stores a page; returns its row.
    pub fn insert(
        &mut self,
        bytes: &[u8],
        checksum: Checksum,
        stats: &TierStats,
    ) -> Result<u16, SlotError> {
        if self.empty.is_empty() {
            let row = u16::try_from(self.rows.len()).map_err(|_| SlotError::NoMemory)?;
            self.rows.try_reserve(1).map_err(|_| SlotError::NoMemory)?;
            self.empty.try_reserve(self.rows.len() + 1).map_err(|_| SlotError::NoMemory)?;
            debug_assert!(usize::from(row) < ROWS_MAX);
            self.rows.push(None);
            self.empty.push(row);
        }
        let slot = self.pool.insert(bytes, stats)?;
        let row = self.empty.pop().unwrap_or_default();
        let (len, checksum) = (bytes.len() as u16, checksum.to_ne_bytes());
        self.rows[usize::from(row)] = Some(Row { slot, len, checksum });
        Ok(row)
    }

    /// Whether a page of this length is in the row.
    pub fn holds(&self, row: u16, len: u16) -> bool {
        self.row(row).is_some_and(|row| row.len == len)
    }

    /// Reads what is in a row: checksum and bytes.
    pub fn read<'b>(
        &'b self,
        row: u16,
        buffer: &'b mut ReadBuffer,
    ) -> Option<Result<(Checksum, &'b [u8]), MediumError>> {
        let row = self.row(row)?;
        let bytes = row.slot.read(row.len.into(), buffer);
        Some(bytes.map(|bytes| (Checksum::from_ne_bytes(row.checksum), bytes)))
    }

    /// Empties a row that holds something.
    pub fn remove(&mut self, row: u16, stats: &TierStats) {
        let Some(gone) = self.rows.get_mut(usize::from(row)).and_then(Option::take) else { return };
        self.pool.remove(&gone.slot, gone.len.into(), stats);
        self.empty.push(row);
    }

    /// Number of the table's pages, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        let rows = self.rows.iter().flatten();
        (self.rows.len() - self.empty.len(), rows.map(|row| usize::from(row.len)).sum())
    }

    pub fn is_empty(&self) -> bool {
        self.rows.len() == self.empty.len()
    }

    /// Whether it is worth while to move the table's pages into fuller blocks.
    pub fn is_loose(&self) -> bool {
        self.pool.is_loose(self.round).0
    }

    /// Moves the table's pages into fuller blocks, where there are some. Rows stay.
    pub fn pack(&mut self, stats: &TierStats) {
        self.round = self.pool.is_loose(self.round).1;
        for row in self.rows.iter_mut().flatten() {
            self.pool.move_to_fuller(&mut row.slot, row.len.into(), stats);
        }
    }

    fn row(&self, row: u16) -> Option<&Row> {
        self.rows.get(usize::from(row))?.as_ref()
    }
}

impl Drop for SlotTable {
    fn drop(&mut self) {
        // Of a store that was dropped with pages in it: the tier's statistics keep counting.
        let uncounted = TierStats::new();
        for row in self.rows.iter().flatten() {
            self.pool.remove(&row.slot, row.len.into(), &uncounted);
        }
    }
}
