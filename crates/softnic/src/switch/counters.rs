//! Counters with one writer each. A worker has a cell for every VF and one for the uplink, alone in
//! its cache lines; it adds up a batch in a plain [`PortTally`] and writes the cell once. A reader
//! adds the cells of all workers.

use std::sync::atomic::{AtomicU64, Ordering};

use lanekeeper_model::{DropReason, MAX_VFS, VfCounters};

const REASONS: usize = DropReason::ALL.len();

/// Dropped frames by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Drops([u32; REASONS]);

impl Drops {
    /// Counts one frame.
    #[inline]
    pub fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    /// Frames dropped for `reason`.
    pub fn get(&self, reason: DropReason) -> u32 {
        self.0[reason as usize]
    }
}

/// What happened at one port during one batch. Directions are the VM's; for the uplink `tx` is
/// what was sent to it and `rx` what came from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortTally {
    /// Frames from the VM.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames to the VM.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames from the VM that went nowhere.
    pub tx_drops: Drops,
    /// Frames for the VM that it did not get.
    pub rx_drops: Drops,
    any_drop: bool,
}

impl PortTally {
    /// Counts a frame from the VM.
    #[inline]
    pub fn tx(&mut self, bytes: usize) {
        self.tx_frames += 1;
        self.tx_bytes += bytes as u64;
    }

    /// Takes back the count of a frame from the VM that then went nowhere.
    #[cold]
    pub fn take_back_tx(&mut self, bytes: usize) {
        self.tx_frames -= 1;
        self.tx_bytes -= bytes as u64;
    }

    /// Counts a frame to the VM.
    #[inline]
    pub fn rx(&mut self, bytes: usize) {
        self.rx_frames += 1;
        self.rx_bytes += bytes as u64;
    }

    /// Counts a frame from the VM that was dropped.
    #[inline]
    pub fn tx_drop(&mut self, reason: DropReason) {
        self.tx_drops.count(reason);
        self.any_drop = true;
    }

    /// Counts frames for the VM that somebody else dropped.
    pub fn rx_drops_elsewhere(&mut self, reason: DropReason, frames: u64) {
        let count = &mut self.rx_drops.0[reason as usize];
        *count = count.saturating_add(u32::try_from(frames).unwrap_or(u32::MAX));
        self.any_drop = true;
    }

    /// Counts a frame for the VM that was dropped.
    #[inline]
    pub fn rx_drop(&mut self, reason: DropReason) {
        self.rx_drops.count(reason);
        self.any_drop = true;
    }
}

/// One port's counters in one worker. 128 bytes, because x86 prefetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell {
    tx_frames: AtomicU64,
    tx_bytes: AtomicU64,
    rx_frames: AtomicU64,
    rx_bytes: AtomicU64,
    ring_faults: AtomicU64,
    tx_drops: [AtomicU64; REASONS],
    rx_drops: [AtomicU64; REASONS],
}

/// Adds with a load and a store: the cell has one writer, and a locked instruction would cost more
/// than a frame.
#[inline]
fn add(cell: &AtomicU64, value: u64) {
    if value != 0 {
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
    }
}

impl Cell {
    fn add(&self, tally: &PortTally) {
        add(&self.tx_frames, tally.tx_frames);
        add(&self.tx_bytes, tally.tx_bytes);
        add(&self.rx_frames, tally.rx_frames);
        add(&self.rx_bytes, tally.rx_bytes);
        if tally.any_drop {
            for (cells, drops) in
                [(&self.tx_drops, &tally.tx_drops), (&self.rx_drops, &tally.rx_drops)]
            {
                for (cell, count) in cells.iter().zip(drops.0) {
                    add(cell, count.into());
                }
            }
        }
    }

    fn add_to(&self, sum: &mut VfCounters) {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        sum.tx.frames += read(&self.tx_frames);
        sum.tx.bytes += read(&self.tx_bytes);
        sum.rx.frames += read(&self.rx_frames);
        sum.rx.bytes += read(&self.rx_bytes);
        sum.ring_faults += read(&self.ring_faults);
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            for (cells, drops) in
                [(&self.tx_drops, &mut sum.tx_drops), (&self.rx_drops, &mut sum.rx_drops)]
            {
                let count = read(&cells[index]);
                if count != 0 {
                    *drops.entry(*reason).or_default() += count;
                }
            }
        }
    }
}

/// All counters that one worker writes. Nobody else may: two writers would lose counts.
#[derive(Debug)]
pub struct WorkerCounters {
    ports: Box<[Cell]>,
    uplink: Cell,
}

impl Default for WorkerCounters {
    fn default() -> Self {
        let ports = (0..MAX_VFS).map(|_| Cell::default()).collect();
        Self { ports, uplink: Cell::default() }
    }
}

impl WorkerCounters {
    /// Writes a batch of the VF with this number (below [`MAX_VFS`]).
    #[inline]
    pub fn add(&self, vf: usize, tally: &PortTally) {
        self.ports[vf % MAX_VFS].add(tally);
    }

    /// Writes a batch of the uplink.
    #[inline]
    pub fn add_uplink(&self, tally: &PortTally) {
        self.uplink.add(tally);
    }

    /// Counts that the VF with this number was stopped.
    pub fn ring_fault(&self, vf: usize) {
        add(&self.ports[vf % MAX_VFS].ring_faults, 1);
    }

    /// A VF's counters, over all workers.
    pub fn sum<'a>(workers: impl IntoIterator<Item = &'a Self>, vf: usize) -> VfCounters {
        let mut sum = VfCounters::default();
        for worker in workers {
            worker.ports[vf % MAX_VFS].add_to(&mut sum);
        }
        sum
    }

    /// The uplink's counters, over all workers: `tx` to it, `rx` from it.
    pub fn sum_uplink<'a>(workers: impl IntoIterator<Item = &'a Self>) -> VfCounters {
        let mut sum = VfCounters::default();
        for worker in workers {
            worker.uplink.add_to(&mut sum);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_workers_are_added() {
        let workers = [WorkerCounters::default(), WorkerCounters::default()];
        for (index, worker) in workers.iter().enumerate() {
            let mut tally = PortTally::default();
            tally.tx(100);
            tally.rx(60);
            tally.rx(61);
            tally.tx_drop(DropReason::SpoofedMac);
            tally.rx_drop(DropReason::NoBuffer);
            worker.add(5, &tally);
            worker.add(5 + index, &tally);
        }
        workers[1].ring_fault(5);
        let sum = WorkerCounters::sum(&workers, 5);
        assert_eq!((sum.tx.frames, sum.tx.bytes), (3, 300));
        assert_eq!((sum.rx.frames, sum.rx.bytes), (6, 363));
        assert_eq!(sum.tx_dropped(DropReason::SpoofedMac), 3);
        assert_eq!(sum.rx_dropped(DropReason::NoBuffer), 3);
        assert_eq!(sum.tx_drops.len(), 1, "reasons with no frame are absent");
        assert_eq!(sum.ring_faults, 1);
        assert_eq!(WorkerCounters::sum(&workers, 7), VfCounters::default());
    }

    #[test]
    fn the_uplink_has_counters_of_its_own() {
        let worker = WorkerCounters::default();
        let mut tally = PortTally::default();
        tally.rx_drop(DropReason::NoDestination);
        worker.add_uplink(&tally);
        let sum = WorkerCounters::sum_uplink([&worker]);
        assert_eq!(sum.rx_dropped(DropReason::NoDestination), 1);
        assert_eq!(WorkerCounters::sum([&worker], 0), VfCounters::default());
    }

    #[test]
    fn two_ports_never_share_a_cache_line() {
        assert_eq!(align_of::<Cell>(), 128);
        assert_eq!(size_of::<Cell>() % 128, 0);
    }
}
