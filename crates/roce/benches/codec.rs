//! What the codec costs on one core: frames written and read, their ICRC computed and verified, beside
//! the CRC alone over the same bytes (crc32fast). `./x bench roce` runs this.
//!
//! All take turns within a round, and ratios are taken within a round: what disturbs one then disturbs
//! the others as well. Rounds are short and many, and a rate is that of the fastest tenth of them: what
//! the code costs when nobody else is on the core. Ratios are medians.

#![allow(missing_docs)]
#![allow(clippy::cast_precision_loss, clippy::cast_sign_loss)] // Counts far below 2^52.

use std::hint::black_box;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use lanekeeper_roce::wire::{
    Bth, Cover, Flow, Frame, Gid, Headers, Opcode, Psn, Qpn, Reth, Version,
};

const WINDOW: Duration = Duration::from_micros(1_500);
const ROUNDS: usize = 300;
/// Gigabytes of payload a second and core that the codec is to reach at 1 and 4 KiB.
const AIM: f64 = 5.0;
/// Packets between two looks at the clock.
const BURST: usize = 32;

/// A packet to work on.
struct Sample {
    flow: Flow,
    headers: Headers,
    payload: Vec<u8>,
    frame: Vec<u8>,
}

impl Sample {
    fn new(source: &str, dest: &str, length: usize) -> Self {
        let gid = |text: &str| Gid::from(text.parse::<IpAddr>().expect("an address"));
        let flow = Flow::new(Version::V2, gid(source), gid(dest));
        let bth = Bth::new(Opcode::RC_WRITE_ONLY, Qpn::truncate(0x11), Psn::ZERO);
        let reth = Reth { address: 1 << 40, rkey: 7, length: length as u32 };
        let headers = Headers { reth: Some(reth), ..Headers::new(bth) };
        let payload: Vec<u8> = (0..length).map(|i| i as u8).collect();
        let cover = Cover::ip(&flow, &headers, &[&payload]).expect("fits");
        let frame = [cover.head(), &payload, cover.tail()].concat();
        Self { flow, headers, payload, frame }
    }

    /// Headers, pad and ICRC around a payload that stays where it is.
    fn write(&self, number: u32) {
        let bth = Bth { psn: Psn::truncate(number), ..self.headers.bth };
        let headers = Headers { bth, ..self.headers };
        let payload = [black_box(self.payload.as_slice())];
        black_box(Cover::ip(&self.flow, &headers, &payload).expect("fits").tail());
    }

    /// ICRC verified, everything read.
    fn read(&self) {
        black_box(Frame::parse_ip(black_box(&self.frame)).expect("whole").packet.payload);
    }

    /// The CRC alone.
    fn crc(&self) {
        black_box(crc32fast::hash(black_box(&self.payload)));
    }
}

/// Bytes of payload a second, in units of 10^9.
fn rate(length: usize, mut work: impl FnMut(u32)) -> f64 {
    let start = Instant::now();
    let mut packets = 0u32;
    loop {
        for _ in 0..BURST {
            work(packets);
            packets += 1;
        }
        let took = start.elapsed();
        if took >= WINDOW {
            return f64::from(packets) * length as f64 / took.as_secs_f64() / 1e9;
        }
    }
}

/// The value that this share of them is below.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}

fn main() {
    println!(
        "GB/s of payload on one core, {ROUNDS} windows of {} us: fastest tenth, median of ratios",
        WINDOW.as_micros()
    );
    println!("| on | payload | write | read | crc32fast | write : crc | read : crc |");
    println!("|---|---|---|---|---|---|---|");
    let mut short = Vec::new();
    for (name, source, dest) in [("IPv4", "10.0.0.1", "10.0.0.2"), ("IPv6", "fd00::1", "fd00::2")] {
        for length in [64, 256, 1024, 4096] {
            let sample = Sample::new(source, dest, length);
            let mut columns = [const { Vec::new() }; 5];
            for _ in 0..ROUNDS {
                let write = rate(length, |number| sample.write(number));
                let read = rate(length, |_| sample.read());
                let crc = rate(length, |_| sample.crc());
                for (column, value) in
                    columns.iter_mut().zip([write, read, crc, write / crc, read / crc])
                {
                    column.push(value);
                }
            }
            let [write, read, crc, write_ratio, read_ratio] = columns;
            let [write, read, crc] = [write, read, crc].map(|mut c| quantile(&mut c, 0.9));
            let [write_ratio, read_ratio] =
                [write_ratio, read_ratio].map(|mut c| quantile(&mut c, 0.5));
            println!(
                "| {name} | {length} | {write:.2} | {read:.2} | {crc:.2} | {write_ratio:.2} | {read_ratio:.2} |"
            );
            if length >= 1024 && write.min(read) < AIM {
                short.push(format!("{name} {length}"));
            }
        }
    }
    match short.as_slice() {
        [] => println!("aim: {AIM} GB/s at 1 and 4 KiB, reached"),
        some => println!("aim: {AIM} GB/s at 1 and 4 KiB, MISSED by {}", some.join(", ")),
    }
}
