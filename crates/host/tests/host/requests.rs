//! Requests that are refused whatever VFs there are.

use lanekeeper_host::{ClaimRequest, OwnerToken};
use lanekeeper_model::{MacAddr, Mbps};

use crate::rig::{Rig, request};

#[test]
fn a_request_that_no_vf_could_fulfil_is_refused_for_what_is_wrong_with_it() {
    // There is no VF at all: that would be another reason.
    let rig = Rig::new();
    let nobody = "no free VF";
    let wrong = [
        ClaimRequest { mac: Some(MacAddr::BROADCAST), ..request("tenant") },
        ClaimRequest { mac: Some(MacAddr([1, 0, 0x5e, 0, 0, 1])), ..request("tenant") },
        ClaimRequest { mac: Some(MacAddr::ZERO), spoofchk: Some(false), ..request("tenant") },
        ClaimRequest { min_rate: Some(Mbps(9)), max_rate: Some(Mbps(5)), ..request("tenant") },
    ];
    for asked in wrong {
        let error = rig.owner().claim(&asked).expect_err("refused").to_string();
        assert!(!error.contains(nobody), "{error}");
    }
    let error = rig.owner().claim(&request("tenant")).expect_err("no VF").to_string();
    assert!(error.contains(nobody) && error.contains("none at all"), "{error}");
}

#[test]
fn a_token_that_is_none_is_refused_with_what_is_wrong_and_never_shown() {
    for (text, wanted) in [
        ("", "has 0"),
        ("short", "has 5"),
        ("secret token", "has another as number 7"),
        ("secret12\nsecret34", "has another as number 9"),
        ("secrét-token", "has another as number 5"),
    ] {
        let error = text.parse::<OwnerToken>().expect_err("refused").to_string();
        assert!(error.ends_with(wanted), "{error}");
        assert!(!error.contains("secr"), "{error}");
    }
}
