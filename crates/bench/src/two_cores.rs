//! Switch on one core, client on another, as a host and a guest are.

use std::path::Path;
use std::time::Duration;

use crate::core_distance::Distance;
use crate::machine::AboveAll;
use crate::peers::{Lane, Load, Peer};
use crate::window::{Spread, measure};
use crate::{BenchError, Stop};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Length of one window.
    pub window: Duration,
    /// Windows that each switch must have at one distance.
    pub windows: usize,
}

/// What was measured of every switch under one load.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Under which load.
    pub load: Load,
    /// One entry a round: for each peer, in the order asked for, the windows that count.
    pub rounds: Vec<Vec<Option<(Distance, f64)>>>,
    /// Who was compared.
    pub peers: Vec<Peer>,
}

impl Comparison {
    /// Frames per second of one peer at one distance.
    pub fn rate(&self, peer: Peer, distance: Distance) -> Option<Spread> {
        let place = self.peers.iter().position(|other| *other == peer)?;
        Spread::of(
            &self.rounds.iter().filter_map(|round| at(round[place], distance)).collect::<Vec<_>>(),
        )
    }

    /// How many times as fast as `base` a peer is, over the rounds in which both count at one
    /// distance.
    pub fn ratio(&self, peer: Peer, base: Peer, distance: Distance) -> Option<Spread> {
        let place = self.peers.iter().position(|other| *other == peer)?;
        let base = self.peers.iter().position(|other| *other == base)?;
        let ratios = self
            .rounds
            .iter()
            .filter_map(|round| Some(at(round[place], distance)? / at(round[base], distance)?));
        Spread::of(&ratios.collect::<Vec<_>>())
    }

    fn enough(&self, windows: usize) -> bool {
        let full = |distance| {
            self.peers.iter().all(|peer| {
                self.rate(*peer, distance).is_some_and(|spread| spread.count >= windows)
            })
        };
        full(Distance::Near) || full(Distance::Far)
    }
}

fn at(window: Option<(Distance, f64)>, wanted: Distance) -> Option<f64> {
    window.filter(|(distance, _)| *distance == wanted).map(|(_, rate)| rate)
}

/// Compare the peers under one load: all are up at once, one at a time runs, in turn within each
/// round, until each has its windows or three times as many rounds have passed.
///
/// # Errors
/// A process did not come up or stopped passing frames, or the user asked to stop.
pub fn compare(
    peers: &[Peer],
    load: &Load,
    effort: Effort,
    folder: &Path,
    stop: &Stop,
) -> Result<Comparison, BenchError> {
    let lanes = peers
        .iter()
        .map(|peer| Lane::start(*peer, load, folder, stop))
        .collect::<Result<Vec<_>, _>>()?;
    let _above = AboveAll::raise()?;
    let mut comparison =
        Comparison { load: load.clone(), rounds: Vec::new(), peers: peers.to_vec() };
    while comparison.rounds.len() < 3 * effort.windows && !comparison.enough(effort.windows) {
        let mut round = vec![None; lanes.len()];
        for turn in 0..lanes.len() {
            // Each round begins with another one, so that none always follows the same.
            let place = (turn + comparison.rounds.len()) % lanes.len();
            let window = measure(&lanes[place], load.cores, effort.window, stop)?;
            round[place] = window.counts().map(|distance| (distance, window.rate));
        }
        comparison.rounds.push(round);
    }
    Ok(comparison)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::ClientKind;
    use crate::testpmd::Ring;

    #[test]
    fn a_ratio_pairs_windows_of_the_same_round_and_distance_only() {
        let near = |rate| Some((Distance::Near, rate));
        let far = |rate| Some((Distance::Far, rate));
        let load = Load {
            client: ClientKind::Testpmd,
            ring: Ring::Split,
            length: 64,
            ring_size: 256,
            bursts: 1,
            cores: [0, 1],
            lanekeeper: "lanekeeper".into(),
        };
        let comparison = Comparison {
            load,
            peers: vec![Peer::TestpmdIo, Peer::OvsNormal],
            rounds: vec![
                vec![near(4.0), near(2.0)],
                vec![near(9.0), far(1.0)],
                vec![near(6.0), None],
                vec![near(6.0), near(2.0)],
            ],
        };
        let ratio = comparison.ratio(Peer::TestpmdIo, Peer::OvsNormal, Distance::Near);
        assert_eq!(ratio, Spread::of(&[2.0, 3.0]));
        assert_eq!(comparison.ratio(Peer::TestpmdIo, Peer::OvsNormal, Distance::Far), None);
        assert!(comparison.enough(2));
        assert!(!comparison.enough(3));
    }
}
