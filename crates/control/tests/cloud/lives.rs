//! The lives of VMs and groups.

use axum::http::Method;
use lanekeeper_control::claims::Placed;
use lanekeeper_control::keys::{self, PlacementId};
use lanekeeper_control::protocol::{Traffic, VmReport, VmReports, VmState};
use serde_json::json;

use super::rig::{Rig, host, region};

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_made_stopped_started_reset_and_deleted_and_leaves_nothing() {
    let rig = Rig::new().await;
    rig.host("h1", 2).await;
    let environment = rig.environment("lab").await;
    let vm = rig.vm(environment, "v1").await;
    rig.until_status(&["h1"], vm, "ACTIVE").await;
    let path = format!("/v1/vms/{vm}");
    let shown = rig.acme(Method::GET, &path, None).await.expect(200);
    assert_eq!(shown["located"]["host"], "h1");
    assert_eq!(shown["interfaces"][0]["name"], "rail0");
    let told = rig.cloud.desired(&region(), &host("h1")).await.expect("read");
    let port = &told.vms[0].ports[0];
    assert_eq!(port.mac.to_string(), shown["interfaces"][0]["mac"].as_str().expect("a MAC"));
    assert_eq!(port.addresses[0].address.to_string(), shown["interfaces"][0]["address"]);

    for (what, status) in [("stop", "SHUTOFF"), ("start", "ACTIVE"), ("reboot", "ACTIVE")] {
        rig.acme(Method::POST, &format!("{path}/{what}"), None).await.expect(202);
        rig.until_status(&["h1"], vm, status).await;
        let again = rig.acme(Method::GET, &path, None).await.expect(200);
        assert_eq!(again["interfaces"], shown["interfaces"], "its addresses stay its own");
    }
    rig.acme(Method::DELETE, &path, None).await.expect(202);
    rig.until_status(&["h1"], vm, "").await;
    let told = rig.cloud.desired(&region(), &host("h1")).await.expect("read");
    assert!(told.vms.is_empty());
    for below in [keys::claims(&region()), keys::placements(&region()), keys::reports(&region())] {
        let (_, left) = rig.cloud.store().all(below).await.expect("read");
        for entry in left {
            let text = String::from_utf8_lossy(&entry.value).into_owned();
            assert!(text.contains("\"placements\":{}"), "{}: {text}", entry.key);
        }
    }
    let events = rig.acme(Method::GET, "/v1/events", None).await.expect(200);
    let reasons: Vec<&str> = events["items"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|e| e["reason"].as_str())
        .collect();
    assert_eq!(reasons.first(), Some(&"created"));
    assert_eq!(reasons.last(), Some(&"deleted"));
    let usage = rig.acme(Method::GET, "/v1/usage-records", None).await.expect(200);
    assert!(usage["items"][0]["to"].is_string(), "{usage}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_without_room_is_in_error_and_says_how_many_hosts_failed_what() {
    let rig = Rig::new().await;
    rig.host("h1", 1).await;
    let environment = rig.environment("lab").await;
    let first = rig.vm(environment, "v1").await;
    rig.until_status(&["h1"], first, "ACTIVE").await;
    let second = rig.vm(environment, "v2").await;
    rig.until_status(&["h1"], second, "ERROR").await;
    let shown = rig.acme(Method::GET, &format!("/v1/vms/{second}"), None).await.expect(200);
    assert_eq!(shown["fault"]["kind"], "no_room");
    assert!(shown["fault"]["message"].as_str().expect("text").contains("1 have too few VFs free"));
    rig.acme(Method::DELETE, &format!("/v1/vms/{second}"), None).await.expect(202);
    rig.until_status(&["h1"], second, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_was_deleted_before_its_host_heard_of_it_ends_all_the_same() {
    let rig = Rig::new().await;
    rig.host("h1", 1).await;
    let environment = rig.environment("lab").await;
    let vm = rig.vm(environment, "v1").await;
    rig.until(&[], "it is told", async || {
        !rig.cloud.desired(&region(), &host("h1")).await.expect("read").vms.is_empty()
    })
    .await;
    rig.acme(Method::DELETE, &format!("/v1/vms/{vm}"), None).await.expect(202);
    rig.until_status(&["h1"], vm, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_placed_whole_or_not_at_all_and_deleted_whole() {
    let rig = Rig::new().await;
    rig.host("h1", 2).await;
    rig.host("h2", 2).await;
    let environment = rig.environment("lab").await;
    let vm = json!({"name": "w", "environment": environment, "flavor": "small", "image": "guest"});
    let spec = json!({"count": 5, "vm": vm});
    let group = rig.acme(Method::POST, "/v1/groups", Some(&spec)).await.expect(201);
    for member in group["vms"].as_array().expect("a list") {
        rig.until_status(&["h1", "h2"], member.as_u64().expect("an id"), "ERROR").await;
    }
    let path = format!("/v1/groups/{}", group["id"]);
    rig.acme(Method::DELETE, &path, None).await.expect(202);
    let is_gone = async || rig.acme(Method::GET, &path, None).await.status.as_u16() == 404;
    rig.until(&["h1", "h2"], "the group is gone", is_gone).await;

    let vm = json!({"name": "w", "environment": environment, "flavor": "small", "image": "guest"});
    let spec = json!({"count": 4, "vm": vm});
    let group = rig.acme(Method::POST, "/v1/groups", Some(&spec)).await.expect(201);
    for member in group["vms"].as_array().expect("a list") {
        rig.until_status(&["h1", "h2"], member.as_u64().expect("an id"), "ACTIVE").await;
    }
    let one = format!("/v1/vms/{}", group["vms"][0]);
    let refused = rig.acme(Method::DELETE, &one, None).await;
    assert_eq!(refused.status.as_u16(), 409);
    assert!(refused.detail().contains("delete the group"), "{}", refused.body);
    let path = format!("/v1/groups/{}", group["id"]);
    rig.acme(Method::DELETE, &path, None).await.expect(202);
    let is_gone = async || rig.acme(Method::GET, &path, None).await.status.as_u16() == 404;
    rig.until(&["h1", "h2"], "the group is gone", is_gone).await;
    let quota = rig.acme(Method::GET, "/v1/quota", None).await.expect(200);
    assert_eq!(quota["used"]["vms"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_of_a_group_moves_to_the_held_place_when_its_host_is_lost_and_says_why() {
    let rig = Rig::new().await;
    rig.host("h1", 1).await;
    rig.host("h2", 1).await;
    let environment = rig.environment("lab").await;
    let vm = json!({"name": "w", "environment": environment, "flavor": "small", "image": "guest"});
    let spec = json!({"count": 1, "spares": 1, "vm": vm, "policy": {"spread": "strict"}});
    let group = rig.acme(Method::POST, "/v1/groups", Some(&spec)).await.expect(201);
    let vm = group["vms"][0].as_u64().expect("an id");
    rig.until_status(&["h1", "h2"], vm, "ACTIVE").await;
    let at = async || {
        let shown = rig.acme(Method::GET, &format!("/v1/vms/{vm}"), None).await.expect(200);
        (shown["located"]["host"].as_str().expect("a host").to_owned(), shown["interfaces"].clone())
    };
    let (old, interfaces) = at().await;
    let new = if old == "h1" { "h2" } else { "h1" };
    // Only one of them says any more that it is alive; leases last 15 s.
    let beat = async || {
        rig.cloud.heartbeat(&region(), &host(new), "test").await.expect("alive");
    };
    rig.until(&[new], "it is elsewhere", async || {
        beat().await;
        at().await.0 == new && rig.status(vm).await == "ACTIVE"
    })
    .await;
    assert_eq!(at().await.1, interfaces, "its addresses go with it");
    let events = rig.acme(Method::GET, "/v1/events", None).await.expect(200);
    assert!(events.to_string().contains(&format!("from host {old}, which is lost")), "{events}");
    let shown =
        rig.acme(Method::GET, &format!("/v1/groups/{}", group["id"]), None).await.expect(200);
    assert_eq!(shown["held"][0]["fenced"], vm, "the old place is nobody else's yet");

    // The lost host is back, ends what it still has, and its place can be used again.
    rig.cloud.heartbeat(&region(), &host(&old), "test").await.expect("alive");
    let group = format!("/v1/groups/{}", group["id"]);
    rig.until(&["h1", "h2"], "the old place is free", async || {
        beat().await;
        rig.acme(Method::GET, &group, None).await.expect(200)["held"][0]["fenced"].is_null()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_host_gets_no_more_vms_and_an_opened_one_does() {
    let rig = Rig::new().await;
    rig.host("h1", 4).await;
    let environment = rig.environment("lab").await;
    let drain = async |drain: bool| {
        let body = json!({"drain": drain});
        let path = "/v1/regions/north/hosts/h1/drain";
        rig.call("operators/Operator", Method::PUT, path, Some(&body)).await.expect(200)
    };
    assert_eq!(drain(true).await["closed"], "draining");
    let vm = rig.vm(environment, "v1").await;
    rig.until_status(&["h1"], vm, "ERROR").await;
    assert!(drain(false).await["closed"].is_null());
    let vm = rig.vm(environment, "v2").await;
    rig.until_status(&["h1"], vm, "ACTIVE").await;
    let hosts = rig.get("/v1/regions/north/hosts").await.expect(200);
    assert_eq!(hosts["items"][0]["vfs_used"], 1);
    assert_eq!(hosts["items"][0]["vms"][0], vm);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_host_says_of_a_vm_that_nobody_asks_for_is_not_kept() {
    let rig = Rig::new().await;
    rig.host("h1", 1).await;
    for state in [VmState::Running, VmState::Stopped, VmState::Gone] {
        let late =
            VmReport { vm: 424_242, generation: 1, state, resets: 0, traffic: Traffic::default() };
        let reports = VmReports { vms: vec![late] };
        rig.cloud.take_reports(&region(), &host("h1"), reports).await.expect("taken");
        let (_, kept) = rig.cloud.store().all(keys::reports(&region())).await.expect("read");
        assert!(kept.is_empty(), "{kept:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_claimed_for_a_vm_or_a_group_after_it_was_gone_is_given_back() {
    let rig = Rig::new().await;
    rig.host("h1", 4).await;
    let environment = rig.environment("lab").await;
    let vm = rig.vm(environment, "v1").await;
    rig.until_status(&["h1"], vm, "ACTIVE").await;
    let claims = rig.cloud.claims(&region()).await.expect("claims");
    let (_, placed) = rig.cloud.store().all(keys::placements(&region())).await.expect("read");
    let placed: Placed = serde_json::from_slice(&placed[0].value).expect("a placement");
    // As a server may that led until a moment ago.
    for late in ["vm-424242", "group-424243"] {
        let id = PlacementId::new(late).expect("an id");
        claims.place(id, placed.ask.clone()).await.expect("placed");
    }
    let used = async || {
        let hosts = rig.get("/v1/regions/north/hosts").await.expect(200);
        hosts["items"][0]["vfs_used"].as_u64().expect("a number")
    };
    assert_eq!(used().await, 3);
    // It is looked at its host again.
    rig.host("h1", 5).await;
    rig.until(&["h1"], "only the VM's own VF is claimed", async || used().await == 1).await;
    assert_eq!(rig.status(vm).await, "ACTIVE");
    let quota = rig.acme(Method::GET, "/v1/quota", None).await.expect(200);
    assert_eq!(quota["used"]["vms"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_a_vms_vfs_is_used_while_it_lives_and_when_it_is_gone() {
    let rig = Rig::new().await;
    rig.host("h1", 1).await;
    let environment = rig.environment("lab").await;
    let vm = rig.vm(environment, "v1").await;
    rig.until_status(&["h1"], vm, "ACTIVE").await;
    let used = async || {
        let shown =
            rig.call("acme/Admin", Method::GET, "/v1/usage-records", None).await.expect(200);
        let of = &shown["items"][0];
        (of["sent_bytes"].clone(), of["received_bytes"].clone(), of["to"].is_null())
    };
    assert_eq!(used().await, (json!(1000), json!(500), true));
    rig.acme(Method::POST, &format!("/v1/vms/{vm}/reboot"), None).await.expect(202);
    rig.until(&["h1"], "more has passed", async || used().await.0 == json!(1001)).await;
    rig.acme(Method::DELETE, &format!("/v1/vms/{vm}"), None).await.expect(202);
    rig.until_status(&["h1"], vm, "").await;
    assert_eq!(used().await, (json!(1001), json!(500), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_has_not_heard_for_long_is_told_at_once_and_any_other_when_there_is_something()
 {
    let rig = Rig::new().await;
    rig.host("h1", 1).await;
    let (region, h1) = (region(), host("h1"));
    let now = rig.cloud.desired(&region, &h1).await.expect("read").revision;
    // Longer than the test may take.
    let wait = std::time::Duration::from_secs(3600);
    let waiting = rig.cloud.desired_after(&region, &h1, now, wait);
    let environment = rig.environment("lab").await;
    let (told, _) = tokio::join!(waiting, rig.vm(environment, "v1"));
    assert_eq!(told.expect("told").vms.len(), 1);

    // Much happens that does not concern it.
    let store = rig.cloud.store();
    for _ in 0..300 {
        let other = keys::desired_vm(&region, &host("h2"), 1);
        let written = lanekeeper_control::store::Transaction::new().put(other, "{}");
        store.commit(written).await.expect("written");
    }
    let far = rig.cloud.desired_after(&region, &h1, now, wait).await.expect("told");
    assert!(far.revision >= now + 300 && far.vms.len() == 1);
}
