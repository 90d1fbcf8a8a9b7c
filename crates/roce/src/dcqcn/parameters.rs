//! Every number DCQCN has, under the name the paper gives it and the one NVIDIA's firmware uses, and
//! the presets.

use std::time::Duration;

/// Megabits in bits, for presets.
const MEGA: f64 = 1e6;
/// Gigabits in bits, for presets.
const GIGA: f64 = 1e9;

/// Both ends' parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Dcqcn {
    /// Where data arrives.
    pub notification: Notification,
    /// Where data leaves.
    pub reaction: Reaction,
}

/// The notification point: how marks become CNPs.
#[derive(Clone, Debug, PartialEq)]
pub struct Notification {
    /// At most one CNP in this time for one queue pair (`min_time_between_cnps`).
    pub interval: Duration,
    /// The DSCP that CNPs carry (`cnp_dscp`).
    pub dscp: u8,
}

/// The reaction point: how CNPs become a rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Reaction {
    /// The port's rate in bit/s; the rate limiter rests when it has been reached again.
    pub line_rate: f64,
    /// No cut goes below this, in bit/s (`rpg_min_rate`).
    pub minimum_rate: f64,
    /// g, the weight of news in alpha (`dce_tcp_g`).
    pub gain: f64,
    /// Alpha when a flow meets its first CNP (`initial_alpha_value`).
    pub initial_alpha: f64,
    /// Alpha decays once each such time without a CNP (`dce_tcp_rtt`).
    pub alpha_interval: Duration,
    /// What part of alpha a cut takes off the rate: Rc *= 1 - alpha * `cut` (`rpg_gd`).
    pub cut: f64,
    /// No cut leaves less than this part of the rate (`rpg_min_dec_fac`).
    pub minimum_left: f64,
    /// At most one cut in this time (`rate_reduce_monitor_period`).
    pub cut_interval: Duration,
    /// The rate that a first CNP sets, in bit/s, instead of a cut (`rate_to_set_on_first_cnp`).
    pub first_rate: Option<f64>,
    /// Every cut sets the target to the rate before it (`clamp_tgt_rate`); otherwise only one that
    /// follows an increase does.
    pub clamp_target: bool,
    /// An increase by the timer counts for that as one by the byte counter does
    /// (`clamp_tgt_rate_after_time_inc`).
    pub clamp_target_after_timer: bool,
    /// The increase timer's period (`rpg_time_reset`).
    pub increase_interval: Duration,
    /// The byte counter's period (`rpg_byte_reset`).
    pub increase_bytes: u64,
    /// F: so many periods of fast recovery before the target itself grows (`rpg_threshold`).
    pub recovery_periods: u32,
    /// `R_AI`, what an additive increase adds to the target, in bit/s (`rpg_ai_rate`).
    pub additive: f64,
    /// `R_HAI`, what a hyper increase adds to the target, in bit/s (`rpg_hai_rate`).
    pub hyper: f64,
}

impl Dcqcn {
    /// The paper's parameters (section 5 and table of section 4), for its 40 Gb/s links. It gives
    /// no `R_HAI`; ten times `R_AI` is what its authors' simulator uses.
    pub fn paper() -> Dcqcn {
        Dcqcn {
            notification: Notification { interval: Duration::from_micros(50), dscp: 48 },
            reaction: Reaction {
                line_rate: 40.0 * GIGA,
                minimum_rate: 40.0 * MEGA,
                gain: 1.0 / 256.0,
                initial_alpha: 1.0,
                alpha_interval: Duration::from_micros(55),
                cut: 0.5,
                minimum_left: 0.0,
                cut_interval: Duration::from_micros(50),
                first_rate: None,
                clamp_target: true,
                clamp_target_after_timer: true,
                increase_interval: Duration::from_micros(55),
                increase_bytes: 10_000_000,
                recovery_periods: 5,
                additive: 40.0 * MEGA,
                hyper: 400.0 * MEGA,
            },
        }
    }

    /// For 400 Gb/s links: the paper's control law with a byte counter ten times as long, as the
    /// rate is, and increments 25 times as large: ten times would keep unequal flows unequal for
    /// a tenth of a second. Goes with marks between 50 kB and 2 MB, up to a probability of 0.1.
    pub fn at_400g() -> Dcqcn {
        let paper = Dcqcn::paper();
        Dcqcn {
            notification: paper.notification,
            reaction: Reaction {
                line_rate: 400.0 * GIGA,
                minimum_rate: 100.0 * MEGA,
                increase_bytes: 100_000_000,
                additive: GIGA,
                hyper: 10.0 * GIGA,
                ..paper.reaction
            },
        }
    }

    /// What NVIDIA's adapters do as they come, at a line rate in bit/s (DOCA, "DCQCN congestion
    /// control parameters").
    pub fn nvidia(line_rate: f64) -> Dcqcn {
        Dcqcn {
            notification: Notification { interval: Duration::from_micros(4), dscp: 48 },
            reaction: Reaction {
                line_rate,
                minimum_rate: MEGA,
                gain: 5.0 / 1024.0,
                initial_alpha: 1023.0 / 1024.0,
                alpha_interval: Duration::from_micros(1),
                cut: 0.5,
                minimum_left: 0.5,
                cut_interval: Duration::from_micros(4),
                first_rate: None,
                clamp_target: false,
                clamp_target_after_timer: true,
                increase_interval: Duration::from_micros(300),
                increase_bytes: 32_767,
                recovery_periods: 1,
                additive: 5.0 * MEGA,
                hyper: 50.0 * MEGA,
            },
        }
    }
}
