//! What a network may do to a packet, and the draw that decides it.

use std::time::Duration;

use super::Random;

/// How often what goes wrong. Probabilities are per packet, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// It never arrives.
    pub loss: f64,
    /// It arrives with a flipped bit, which is to say that the ICRC throws it away.
    pub corruption: f64,
    /// It arrives twice.
    pub duplication: f64,
    /// It is held back by up to `reorder_by`, so that later ones overtake it.
    pub reorder: f64,
    /// The most that a reordered packet, or the second of a duplicate, is held back.
    pub reorder_by: Duration,
    /// Each packet is late by up to this much, in order or not.
    pub jitter: Duration,
}

/// What happens to one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives, late by that much.
    Arrives(Duration),
    /// It arrives twice.
    Twice(Duration, Duration),
    /// It is gone.
    Lost,
    /// It is thrown away at the other end.
    Corrupted,
}

impl Faults {
    /// Nothing goes wrong.
    pub const NONE: Faults = Faults {
        loss: 0.0,
        corruption: 0.0,
        duplication: 0.0,
        reorder: 0.0,
        reorder_by: Duration::ZERO,
        jitter: Duration::ZERO,
    };

    /// Draws what happens to the next packet.
    pub fn draw(&self, random: &mut Random) -> Fate {
        if random.chance(self.loss) {
            return Fate::Lost;
        }
        if random.chance(self.corruption) {
            return Fate::Corrupted;
        }
        let mut late = up_to(self.jitter, random);
        if random.chance(self.reorder) {
            late += up_to(self.reorder_by, random);
        }
        if random.chance(self.duplication) {
            return Fate::Twice(late, late + up_to(self.reorder_by, random));
        }
        Fate::Arrives(late)
    }
}

fn up_to(span: Duration, random: &mut Random) -> Duration {
    if span.is_zero() {
        return span;
    }
    Duration::from_nanos(random.below(span.as_nanos() as u64 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_faults_each_packet_arrives_at_once() {
        let mut random = Random::new(1);
        assert!((0..100).all(|_| Faults::NONE.draw(&mut random) == Fate::Arrives(Duration::ZERO)));
    }

    #[test]
    fn each_fault_comes_as_often_as_said() {
        let faults = Faults {
            loss: 0.1,
            corruption: 0.1,
            duplication: 0.1,
            reorder: 0.1,
            reorder_by: Duration::from_micros(10),
            jitter: Duration::ZERO,
        };
        let mut random = Random::new(3);
        let fates: Vec<Fate> = (0..100_000).map(|_| faults.draw(&mut random)).collect();
        let share = |kind: fn(&Fate) -> bool| fates.iter().filter(|fate| kind(fate)).count();
        assert!((9_500..10_500).contains(&share(|fate| *fate == Fate::Lost)));
        assert!((8_500..9_500).contains(&share(|fate| *fate == Fate::Corrupted)));
        assert!((7_600..8_600).contains(&share(|fate| matches!(fate, Fate::Twice(..)))));
        let late = share(|fate| matches!(fate, Fate::Arrives(by) if !by.is_zero()));
        assert!((6_700..7_900).contains(&late), "{late}");
    }
}
