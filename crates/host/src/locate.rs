//! Where a PF of the ledger is now. Its last address is asked first and alone: a PF that hangs must
//! not delay another's claim. Only if it moved are the others read, side by side.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use lanekeeper_hw::HardwareError;
use lanekeeper_hw::inventory::PfReading;
use lanekeeper_model::PfAddr;

use crate::error::HostError;
use crate::ledger::{Identity, PfRecord};
use crate::owner::Owner;

impl Owner {
    pub(crate) fn locate(&self, record: &PfRecord) -> Result<PfReading, HostError> {
        let is_it =
            |pf: &PfReading| Identity::of(pf).is_some_and(|identity| identity.is(&record.identity));
        match self.patiently(|hw| hw.read(record.last_address)) {
            Ok(pf) if is_it(&pf) => return Ok(pf),
            Ok(_) | Err(HardwareError::NoPf(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let mut found: Vec<PfReading> = Vec::new();
        let others = self.hw.list()?.into_iter().filter(|pf| *pf != record.last_address);
        self.read_each(others, self.patience.read, |_, reading| {
            found.extend(reading.ok().filter(is_it));
            None
        });
        match found.len() {
            0 => Err(HostError::PfGone {
                pf: record.name.clone(),
                identity: record.identity.to_string(),
            }),
            1 => Ok(found.remove(0)),
            _ => Err(HostError::Ambiguous {
                identity: record.identity.to_string(),
                found: found.iter().map(|pf| pf.addr).collect(),
            }),
        }
    }

    /// Read PFs side by side and hand each over as it comes, until all have come or time is up.
    /// `each` may say that from now on it will wait only so long. One that hangs is left to its
    /// thread.
    pub(crate) fn read_each(
        &self,
        pfs: impl IntoIterator<Item = PfAddr>,
        within: Duration,
        mut each: impl FnMut(PfAddr, Result<PfReading, HardwareError>) -> Option<Duration>,
    ) {
        let pfs: Vec<PfAddr> = pfs.into_iter().collect();
        if let [pf] = pfs.as_slice() {
            each(*pf, self.hw.read(*pf));
            return;
        }
        let (answers, readings) = mpsc::channel();
        for pf in pfs {
            let (hw, answers) = (Arc::clone(&self.hw), answers.clone());
            std::thread::spawn(move || {
                let reading = hw.read(pf);
                // Whoever asked may have seen enough.
                let _ = answers.send((pf, reading));
            });
        }
        drop(answers);
        let mut until = Instant::now() + within;
        loop {
            match readings.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((pf, reading)) => {
                    if let Some(patience) = each(pf, reading) {
                        until = until.min(Instant::now() + patience);
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
