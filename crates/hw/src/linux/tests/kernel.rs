//! The back end against kernels: one that never answers, ones that refuse, and this machine's own.

use std::time::Duration;

use lanekeeper_model::{MacAddr, Mtu, RoceSetting};
use lanekeeper_testbed::netns::Lab;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

use super::super::netlink::attribute::Builder;
use super::super::netlink::message::{ERROR, Message, Messages};
use super::super::{Linux, Protocol};
use super::fixture::{Host, PF, device, pf, vf};
use crate::message::VfMessage;
use crate::{HardwareError, SriovHardware};

const GETLINK: u16 = 18;
const NEWLINK: u16 = 16;

/// What a kernel says to a request of this type: an answer, and the acknowledgement's number.
type Answer = fn(kind: u16) -> (Option<Vec<u8>>, i32);

/// A host behind which a kernel answers so.
fn linux(host: &Host, answer: Answer) -> Linux {
    host.linux().with_kernel(move |_| {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        std::thread::spawn(move || {
            let mut bytes = vec![0; 65_536];
            while let Ok((_, size)) = recv(&theirs, &mut bytes[..], RecvFlags::empty()) {
                let Some(request) = Messages(&bytes[..size]).next() else { return };
                let (told, code) = answer(request.kind);
                let reply = |kind, payload: &[u8]| {
                    Message { kind, flags: 0, sequence: request.sequence, payload }.encode()
                };
                let mut verdict = code.to_ne_bytes().to_vec();
                verdict.extend([0; 16]);
                let told = told.map(|payload| reply(request.kind, &payload));
                for datagram in told.into_iter().chain([reply(ERROR, &verdict)]) {
                    let _ = send(&theirs, &datagram, SendFlags::NOSIGNAL);
                }
            }
        });
        Ok(ours)
    })
}

fn host_with_vf() -> Host {
    let host = Host::with_pf("mlx5_core");
    host.vf(0, "0000:3b:00.2");
    host
}

/// VF 0 as a driver without a trust knob tells of it: with this MAC's last byte, spoofchk on.
fn told_of_vf(mac: u8) -> Vec<u8> {
    let mut answer = Builder::after(&[0; 16]);
    answer.u32(21, 1).unmarked_nest(22, |list| {
        list.unmarked_nest(1, |info| {
            let mut address = [0; 36];
            address[4] = 2;
            address[9] = mac;
            info.bytes(1, &address);
            info.bytes(4, &[0, 0, 0, 0, 1, 0, 0, 0]);
            info.bytes(9, &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        });
    });
    answer.finish().to_vec()
}

#[test]
fn a_kernel_that_never_answers_is_a_deadline() {
    let host = host_with_vf();
    let (ours, _theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a pair");
    let patience = Duration::from_millis(50);
    let linux = host.linux().with_patience(patience).with_kernel(move |_| ours.try_clone());
    let error = linux.read(pf()).expect_err("silence");
    assert!(matches!(error, HardwareError::Deadline { after, .. } if after == patience), "{error}");
}

#[test]
fn attributes_come_with_the_knobs_that_a_driver_lacks_as_none() {
    let host = host_with_vf();
    let reading = linux(&host, |kind| match kind {
        GETLINK => (Some(told_of_vf(7)), 0),
        _ => (None, -95),
    })
    .read(pf())
    .expect("read");
    let attributes = reading.vfs[0].attributes.expect("told");
    assert_eq!(attributes.mac, MacAddr([2, 0, 0, 0, 0, 7]));
    assert_eq!((attributes.spoofchk, attributes.trust), (Some(true), None));
    assert_eq!((reading.eswitch, reading.firmware), (None, None));
}

#[test]
fn what_could_not_be_read_though_it_is_there_is_a_warning() {
    let host = host_with_vf();
    let reading = linux(&host, |kind| (None, if kind == GETLINK { -5 } else { -95 }))
        .read(pf())
        .expect("read");
    assert_eq!(reading.vfs[0].attributes, None);
    let warned = |text: &String| text.contains("cannot read the VFs' settings");
    assert!(reading.warnings.iter().any(warned), "{:?}", reading.warnings);
}

#[test]
fn the_knob_that_was_refused_is_named_by_what_holds_afterwards() {
    let host = host_with_vf();
    let linux = linux(&host, |kind| match kind {
        NEWLINK => (None, -95),
        _ => (Some(told_of_vf(1)), 0),
    });
    let message = VfMessage {
        mac: Some(MacAddr([2, 0, 0, 0, 0, 1])),
        spoofchk: Some(true),
        trust: Some(true),
        ..VfMessage::default()
    };
    let error = linux.send_vf(pf(), vf(0), &message).expect_err("refused").to_string();
    assert!(error.starts_with("mlx5_core cannot set trust=on on VF 0; "), "{error}");
}

#[test]
fn an_empty_message_is_never_sent() {
    let host = host_with_vf();
    let linux = linux(&host, |_| (None, -22));
    linux.send_vf(pf(), vf(0), &VfMessage::default()).expect("nothing to do");
}

#[test]
fn what_a_driver_makes_of_dcb_is_read_from_the_answer_and_not_from_the_acknowledgement() {
    const SETDCB: u16 = 79;
    let host = host_with_vf();
    let linux = linux(&host, |kind| {
        let mut answer = Builder::after(&[0; 4]);
        if kind == SETDCB {
            // The negative errno in a byte, and then "done".
            answer.u8(13, (-16_i8).cast_unsigned());
        } else {
            answer.unmarked_nest(13, |ieee| {
                ieee.bytes(2, &[0; 136]);
            });
        }
        (Some(answer.finish().to_vec()), 0)
    });
    let setting = RoceSetting::Pfc(std::collections::BTreeSet::new());
    let error = linux.set_roce(pf(), &setting).expect_err("refused");
    assert_eq!(error.errno(), Some(16));
    assert!(error.to_string().contains("lldpad"), "{error}");
}

#[test]
fn counters_that_the_driver_does_not_tell_are_unsupported() {
    let host = host_with_vf();
    let linux = linux(&host, |_| (Some(told_of_vf(1)), 0));
    let error = linux.vf_counters(pf(), vf(0)).expect_err("none");
    assert!(matches!(error, HardwareError::Unsupported { .. }), "{error}");
}

/// The real kernel has a veth where the files say the PF's interface is.
#[test]
fn this_machines_kernel_sets_an_interface_and_refuses_vfs_where_there_are_none() {
    let mut lab = Lab::new("hw");
    let here = lab.namespace("a").expect("made");
    here.ip(&["link", "add", "ens1f0np0", "type", "veth", "peer", "name", "peer"]).expect("made");
    let show = |file: &str| {
        let path = format!("/sys/class/net/ens1f0np0/{file}");
        let output = here.command("cat").arg(path).output().expect("runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let host = host_with_vf();
    host.drive("0000:3b:00.2", "mlx5_core");
    host.file(&device(PF, "net/ens1f0np0/ifindex"), &show("ifindex"));
    // The VF's interface is that same one, for its MTU to be seen.
    host.interface("0000:3b:00.2", "ens1f0np0", 0, "02:00:00:00:00:02");
    host.file(&device("0000:3b:00.2", "net/ens1f0np0/ifindex"), &show("ifindex"));
    let linux = host.linux().with_kernel(Protocol::open);
    here.run(|| {
        linux.set_up(pf(), true).expect("set");
        linux.set_vf_mtu(pf(), vf(0), Mtu::new(4200).expect("valid")).expect("set");
        let message = VfMessage { trust: Some(true), ..VfMessage::default() };
        let error = linux.send_vf(pf(), vf(0), &message).expect_err("veth has no VFs");
        assert!(matches!(error, HardwareError::Unsupported { .. }), "{error}");
        // veth has no DCB and no global pause, and this kernel says so each time.
        let reading = linux.read(pf()).expect("read");
        assert_eq!(reading.vfs[0].attributes, None);
        assert_eq!(reading.roce.len(), 1, "{:?}", reading.roce);
    })
    .expect("entered");
    assert_eq!(show("mtu"), "4200");
    let flags = u32::from_str_radix(show("flags").trim_start_matches("0x"), 16).expect("flags");
    assert_eq!(flags & 1, 1);
    here.run(|| linux.set_up(pf(), false).expect("set")).expect("entered");
    let flags = u32::from_str_radix(show("flags").trim_start_matches("0x"), 16).expect("flags");
    assert_eq!(flags & 1, 0);
}

#[test]
fn this_machines_own_bus_is_read() {
    let linux = Linux::new();
    let has_bus = std::path::Path::new("/sys/bus/pci/devices").is_dir();
    assert_eq!(linux.pci_tree().is_ok(), has_bus);
    let listed = linux.list();
    assert_eq!(listed.is_ok(), has_bus);
    for pf in listed.unwrap_or_default() {
        assert_eq!(linux.read(pf).expect("read").addr, pf);
    }
}
