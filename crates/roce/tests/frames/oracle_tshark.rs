//! tshark, another's dissector, reads our frames field by field.

use std::fmt::Write;
use std::fs;
use std::process::{Command, Stdio};

use lanekeeper_roce::wire::{Flow, Link, Opcode, Version};

use super::packets::{Owned, ethernet, samples};

/// What it is asked for, in this order.
const FIELDS: &[&str] = &[
    "vlan.id",
    "infiniband.grh.paylen",
    "infiniband.grh.dgid",
    "ip.dst",
    "ipv6.dst",
    "ip.dsfield.dscp",
    "udp.srcport",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.invariant.crc",
];

/// What it may take a payload for, which is noise here.
const GUESSES: &[&str] = &[
    "smc",
    "smb_direct",
    "rpcordma",
    "nvme-rdma",
    "lnet",
    "iser",
    "infiniband.eoib",
    "infiniband_sdp",
    "fcoib",
];

/// A capture file (libpcap's format, microseconds, Ethernet).
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (second, frame) in (0u32..).zip(frames) {
        let length = frame.len() as u32;
        for word in [second, 0, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

/// The line that it should say of one frame.
fn expected(link: &Link, flow: &Flow, packet: &Owned, frame: &[u8]) -> String {
    let (h, bth) = (&packet.headers, &packet.headers.bth);
    let v1 = flow.version == Version::V1;
    let ipv4 = !v1 && flow.dest.is_ipv4();
    let text = |there: bool, value: String| if there { value } else { String::new() };
    let hex32 = |value: Option<u32>| value.map_or(String::new(), |v| format!("0x{v:08x}"));
    let bytes = |value: Option<u32>| value.map_or(String::new(), |v| format!("{v:08x}"));
    let number = |value: Option<u64>| value.map_or(String::new(), |v| v.to_string());
    let icrc = u32::from_be_bytes(*frame.last_chunk().expect("four bytes at least"));
    let at = if link.vlan.is_some() { 18 } else { 14 };
    let address = h.reth.map(|r| r.address).or(h.atomic.map(|a| a.address));
    let fields = [
        link.vlan.map_or(String::new(), |tag| (tag & 0xfff).to_string()),
        text(v1, (frame.len() - at - 40).to_string()),
        text(v1, flow.dest.to_string()),
        text(ipv4, flow.dest.ip().to_string()),
        text(!v1 && !ipv4, flow.dest.to_string()),
        text(ipv4, flow.dscp.to_string()),
        text(!v1, flow.source_port.to_string()),
        bth.opcode.to_byte().to_string(),
        u8::from(bth.solicited).to_string(),
        u8::from(bth.migrated).to_string(),
        bth.pad.to_string(),
        bth.pkey.to_string(),
        format!("0x{:06x}", bth.dest.get()),
        u8::from(bth.ack_request).to_string(),
        bth.psn.get().to_string(),
        h.deth.map_or(String::new(), |d| format!("0x{:016x}", d.qkey)),
        hex32(h.deth.map(|d| d.source.get())),
        address.map_or(String::new(), |v| format!("0x{v:016x}")),
        hex32(h.reth.map(|r| r.rkey).or(h.atomic.map(|a| a.rkey))),
        number(h.reth.map(|r| r.length.into())),
        number(h.atomic.map(|a| a.swap_or_add)),
        number(h.atomic.map(|a| a.compare)),
        number(h.aeth.map(|a| a.syndrome.to_byte().into())),
        number(h.aeth.map(|a| a.msn.into())),
        number(h.atomic_ack),
        bytes(h.immediate),
        bytes(h.invalidate),
        hex32(Some(icrc)),
    ];
    fields.join("|")
}

#[test]
fn tshark_reads_the_fields_that_we_write() {
    let mut probe = Command::new("tshark");
    if probe.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        eprintln!("skipped: no tshark; install the package tshark");
        return;
    }
    // It does not know CNPs.
    let samples: Vec<_> =
        samples().into_iter().filter(|(_, _, p)| p.headers.bth.opcode != Opcode::CNP).collect();
    let frames: Vec<Vec<u8>> = samples.iter().map(|(l, f, p)| ethernet(l, f, p)).collect();
    let folder = tempfile::tempdir().expect("made");
    let file = folder.path().join("frames.pcap");
    fs::write(&file, capture(&frames)).expect("written");
    let mut tshark = Command::new("tshark");
    // Whoever runs it may have preferences of their own.
    tshark.env("HOME", folder.path()).arg("-n").arg("-r").arg(&file);
    tshark.args(["-T", "fields", "-E", "separator=|", "-E", "occurrence=f"]);
    for guess in GUESSES {
        tshark.args(["--disable-protocol", guess]);
    }
    for field in FIELDS {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().expect("it ran before");
    let theirs = String::from_utf8(output.stdout).expect("text");
    let mut wrong = String::new();
    for (number, (link, flow, packet)) in samples.iter().enumerate() {
        let ours = expected(link, flow, packet, &frames[number]);
        let theirs = theirs.lines().nth(number).unwrap_or("nothing");
        if ours != theirs {
            let _ = writeln!(
                wrong,
                "{}\n  ours   {ours}\n  tshark {theirs}",
                packet.headers.bth.opcode
            );
        }
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(wrong.is_empty(), "{wrong}{errors}");
}
