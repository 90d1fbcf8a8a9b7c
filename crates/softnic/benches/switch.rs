//! What the switch costs per frame, on one core with warm caches: `cargo bench --bench switch`.
//!
//! 64 VFs, frames of 64 bytes in batches of 32 from one source to the others, everything that
//! policy asks for included. Prints nanoseconds per frame: the median of all rounds, and the
//! fastest.

use std::hint::black_box;
use std::time::Instant;

use lanekeeper_model::{MAX_VFS, MacAddr, VfIndex, VfSettings, VlanId, VlanTag};
use lanekeeper_softnic::switch::{
    HEAD, Ingress, NetHeader, OffloadSet, PortSpec, Route, Source, SwitchTable, UplinkPolicy,
    flow_hash, judge_egress, judge_ingress, judge_uplink_egress,
};

const BATCH: u32 = 32;
const ROUNDS: usize = 2_000;
const BATCHES_A_ROUND: u32 = 64;

fn mac(vf: usize) -> MacAddr {
    MacAddr([0x02, 0, 0, 0, 1, vf as u8])
}

fn ip(vf: usize) -> [u8; 4] {
    [10, 0, 0, vf as u8 + 1]
}

/// A switch with every VF in use.
fn switch(change: impl Fn(usize, &mut VfSettings)) -> SwitchTable {
    let ports: Vec<PortSpec> = VfIndex::first(MAX_VFS)
        .map(|vf| {
            let mut settings = VfSettings::for_mac(mac(vf.get())).expect("a station's address");
            change(vf.get(), &mut settings);
            PortSpec::new(vf, settings)
        })
        .collect();
    SwitchTable::build(&ports, Some(UplinkPolicy::PLAIN)).expect("addresses differ")
}

/// A UDP frame of 64 bytes.
fn frame(from: usize, to: MacAddr, to_ip: [u8; 4]) -> [u8; HEAD] {
    let mut bytes = [0; HEAD];
    bytes[..6].copy_from_slice(&to.0);
    bytes[6..12].copy_from_slice(&mac(from).0);
    bytes[12..26].copy_from_slice(&[8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17, 0, 0]);
    bytes[26..30].copy_from_slice(&ip(from));
    bytes[30..34].copy_from_slice(&to_ip);
    bytes[34..42].copy_from_slice(&[0xc0, from as u8, 0x12, 0xb7, 0, 30, 0, 0]);
    bytes
}

/// Nanoseconds per frame of `per_frame`, which is given the frame's number in the batch.
fn measure(name: &str, mut per_frame: impl FnMut(usize)) {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..BATCHES_A_ROUND {
                for index in 0..BATCH {
                    per_frame(index as usize);
                }
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(BATCHES_A_ROUND * BATCH)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{name:<44} {:6.2} ns  (fastest {:.2})", rounds[ROUNDS / 2], rounds[0]);
}

/// Judges and routes one frame from VF 0, and judges it for its receiver.
fn pass(table: &SwitchTable, head: &[u8], len: usize, header: &NetHeader, out: bool) -> u64 {
    let vf = VfIndex::new(0).expect("there is a VF 0");
    let port = table.port(vf);
    let Ok(ingress) = judge_ingress(port, head, len, header, OffloadSet::ALL) else { return 0 };
    let Ok(route) = table.route(Source::Vf(vf), &ingress) else { return 1 };
    if out { deliver(table, &ingress, len, route) } else { number(route) }
}

fn number(route: Route) -> u64 {
    match route {
        Route::Vf(vf) => vf as u64,
        Route::Group { vfs, uplink } => vfs ^ u64::from(uplink),
    }
}

fn deliver(table: &SwitchTable, ingress: &Ingress, len: usize, route: Route) -> u64 {
    let receiver = match route {
        Route::Vf(vf) => judge_egress(table.port_at(vf), OffloadSet::ALL, ingress, len),
        Route::Group { uplink: true, .. } => match table.uplink() {
            Some(uplink) => judge_uplink_egress(uplink, ingress, len),
            None => return 2,
        },
        Route::Group { vfs, .. } => {
            let first = vfs.trailing_zeros() as usize;
            judge_egress(table.port_at(first), OffloadSet::ALL, ingress, len)
        }
    };
    receiver.map_or(3, |egress| u64::from(egress.edit.remove()) + u64::from(egress.header().flags))
}

fn main() {
    let plain = NetHeader::default();
    let heads: Vec<[u8; HEAD]> = (1..=BATCH as usize).map(|vf| frame(0, mac(vf), ip(vf))).collect();
    let open = switch(|_, _| ());
    let vlan = switch(|_, settings| {
        settings.vlan = VlanTag { id: VlanId::new(7).expect("valid"), ..VlanTag::default() };
    });
    let bound = switch(|vf, settings| settings.addresses.push(ip(vf).into()));
    let away: Vec<[u8; HEAD]> =
        (0..BATCH).map(|i| frame(0, MacAddr([0x02, 9, 9, 9, 9, i as u8]), [10, 9, 9, 9])).collect();

    let run = |name: &str, table: &SwitchTable, heads: &[[u8; HEAD]], header: NetHeader, out| {
        measure(name, |index| {
            let head = black_box(&heads[index][..64]);
            black_box(pass(table, head, 64, black_box(&header), out));
        });
    };
    run("judge + look up, anti-spoof", &open, &heads, plain, false);
    run("judge + look up, anti-spoof, access VLAN", &vlan, &heads, plain, false);
    run("judge + look up, bound IP address", &bound, &heads, plain, false);
    run("judge + look up + receiver, anti-spoof", &open, &heads, plain, true);
    run("judge + look up + receiver, bound IP address", &bound, &heads, plain, true);
    run("judge + look up + receiver, to the uplink", &vlan, &away, plain, true);
    let unfinished = NetHeader {
        flags: NetHeader::NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 6,
        ..NetHeader::default()
    };
    run("judge + look up + receiver, checksum offload", &open, &heads, unfinished, true);
    measure("flow hash", |index| {
        black_box(flow_hash(black_box(&heads[index][..64])));
    });
}
