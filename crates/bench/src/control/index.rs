//! Placement by itself: how long the index takes to answer, without store or network.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lanekeeper_control::keys::PlacementId;
use lanekeeper_control::placement::{Index, Placement};

use super::fleet::{Dice, GPUS, Mix, host, inventory};
use super::load::Latencies;
use crate::{BenchError, Stop};

/// Answers that are timed.
const ANSWERS: usize = 6000;

/// How long answers took of an index of so many hosts, so many of whose GPUs were taken.
#[derive(Clone, Debug)]
pub struct Answers {
    /// Hosts.
    pub hosts: usize,
    /// Per cent of the GPUs that are taken.
    pub full: u64,
    /// Placements.
    pub placed: Latencies,
    /// Refusals, which look at each host once to count.
    pub refused: Latencies,
    /// Adding a placement, and taking away as much as came, in the mean.
    pub update: Duration,
}

/// Fill an index with the varied mix and go on placing; what is over the mark goes, in no order.
///
/// # Errors
/// It is time to end.
pub fn measure(hosts: usize, full: u64, stop: &Stop) -> Result<Answers, BenchError> {
    let mut index = Index::new();
    for n in 0..hosts {
        index.set_inventory(&host(n)?, Some(inventory(n)?));
    }
    let (mut dice, mut next) = (Dice(7), 0);
    let mut there: VecDeque<(PlacementId, Placement, u64)> = VecDeque::new();
    let (mut gpus, goal) = (0, (hosts * GPUS) as u64 * full / 100);
    let (mut placed, mut refused) = (Vec::new(), Vec::new());
    let (mut updates, mut updated) = (0, Duration::ZERO);
    // From the mark on, or from the first refusal on, answers count.
    let mut is_full = false;
    while placed.len() + refused.len() < ANSWERS {
        if let Some(reason) = stop.reason() {
            return Err(reason);
        }
        let request = Mix::Varied.draw(&mut dice)?;
        is_full |= gpus >= goal;
        let asked = Instant::now();
        let result = index.place(&request);
        let took = asked.elapsed();
        if is_full {
            if result.is_ok() { &mut placed } else { &mut refused }.push(took);
        }
        let Ok(placement) = result else {
            is_full = true;
            continue;
        };
        let id = PlacementId::new(&format!("p{next}"));
        let id = id.map_err(|error| BenchError::InProcess {
            what: "the id of a placement",
            said: error.to_string(),
        })?;
        next += 1;
        let begun = Instant::now();
        index.add(&id, &placement);
        gpus += request.usage().gpus;
        there.push_back((id, placement, request.usage().gpus));
        while gpus > goal {
            let which = dice.below(there.len() as u64) as usize;
            let Some((id, placement, of_it)) = there.swap_remove_back(which) else { break };
            index.remove(&id, &placement);
            gpus -= of_it;
        }
        (updates, updated) = (updates + 1, updated + begun.elapsed());
    }
    let mut answers = Answers {
        hosts,
        full,
        placed: Latencies::default(),
        refused: Latencies::default(),
        update: updated / updates.max(1),
    };
    answers.placed.extend(placed);
    answers.refused.extend(refused);
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_index_answers_with_placements_and_refusals() {
        let answers = measure(20, 95, &Stop::default()).expect("measured");
        assert_eq!(answers.placed.count() + answers.refused.count(), ANSWERS);
        assert!(answers.placed.count() > 0 && answers.refused.count() > 0);
    }
}
