//! RDMA by the NIC on this host: where its devices are seen, and what a claim says of it.

use lanekeeper_host::{ClaimRequest, DriverWanted, HostError, RdmaNeed, Which};
use lanekeeper_hw::SriovHardware as _;
use lanekeeper_hw::fake::{FakePf, Personality};
use lanekeeper_model::{RdmaNetns, RoceSetting};

use crate::rig::{Rig, parse, request, token};

fn on_this_host(of: &str) -> ClaimRequest {
    let (rdma, driver) = (Some(RdmaNeed::Hardware), Some(DriverWanted::Kernel));
    ClaimRequest { rdma, driver, ..request(of) }
}

fn exclusive() -> (Rig, lanekeeper_model::PfAddr) {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Mlx5).with_vf_guids());
    let mac = rig.read(pf).permanent_mac.expect("a MAC");
    rig.apply(&parse(&format!(
        "version: 1\npfs:\n- {{name: rail0, select: {{permanent_mac: '{mac}'}}, vfs: 2, roce: a}}\n\
         roce_profiles: {{a: {{netns: exclusive}}}}\n"
    )));
    (rig, pf)
}

#[test]
fn rdma_devices_that_every_namespace_sees_are_not_given_for_those_of_one() {
    let (rig, pf) = exclusive();
    rig.fake.set_roce(pf, &RoceSetting::Netns(RdmaNetns::Shared)).expect("somebody");
    let error = rig.owner().claim(&on_this_host("tenant")).expect_err("refused");
    let text = error.to_string();
    assert!(matches!(error, HostError::NotOnThisPath { field: "rdma", .. }), "{text}");
    for word in ["shared", "exclusive", "rdma system set netns exclusive"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    // A VM has a kernel, and so namespaces, of its own.
    let asked = ClaimRequest { rdma: Some(RdmaNeed::Hardware), ..request("vm") };
    rig.owner().claim(&asked).expect("claimed");
}

#[test]
fn a_claim_says_how_its_rdma_device_gets_into_a_namespace() {
    let (rig, _) = exclusive();
    let claim = rig.owner().claim(&on_this_host("tenant")).expect("claimed");
    let device = claim.hand_over.rdma_device.clone().expect("an RDMA device");
    let told = claim.notes.join("; ");
    assert!(told.contains(&format!("rdma dev set {device} netns")), "{told}");
    rig.owner().release(&Which::Claim(claim.id), &token("tenant")).expect("released");
    let (rig, _) = Rig::applied(FakePf::new(Personality::Mlx5).with_vf_guids(), 2);
    let claim = rig.owner().claim(&on_this_host("tenant")).expect("claimed");
    let told = claim.notes.join("; ");
    assert!(told.contains("is seen in every network namespace"), "{told}");
}

#[test]
fn a_guid_that_follows_from_the_mac_is_not_two_vfs_either() {
    let (rig, _) = Rig::applied(FakePf::new(Personality::Mlx5).with_vf_guids(), 2);
    let asked = |tenant: &str, vlan: &str| ClaimRequest {
        mac: Some(lanekeeper_model::MacAddr([2, 0, 0, 0, 0, 7])),
        vlan: serde_json::from_str(vlan).ok(),
        rdma: Some(RdmaNeed::Hardware),
        ..request(tenant)
    };
    rig.owner().claim(&asked("tenant-1", r#"{"id": 1}"#)).expect("claimed");
    // One MAC in two VLANs is two stations; one GUID is one.
    let error = rig.owner().claim(&asked("tenant-2", r#"{"id": 2}"#)).expect_err("the same GUID");
    assert!(matches!(error, HostError::DuplicateGuid { .. }), "{error}");
}
