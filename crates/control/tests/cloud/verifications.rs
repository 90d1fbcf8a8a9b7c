//! Verification runs, with agents that are played.

use axum::http::Method;
use lanekeeper_control::protocol::{CheckVerdict, ProofCheck, ProofReport, ProofReports};
use serde_json::{Value, json};

use super::rig::{Rig, host, region};

/// Two VMs of a group, each on a host of its own.
async fn group(rig: &Rig) -> (u64, Vec<u64>) {
    rig.host("h1", 1).await;
    rig.host("h2", 1).await;
    let environment = rig.environment("lab").await;
    let vm = json!({"name": "w", "environment": environment, "flavor": "small", "image": "guest"});
    let spec = json!({"count": 2, "vm": vm});
    let group = rig.acme(Method::POST, "/v1/groups", Some(&spec)).await.expect(201);
    let vms: Vec<u64> = serde_json::from_value(group["vms"].clone()).expect("ids");
    for vm in &vms {
        rig.until_status(&["h1", "h2"], *vm, "ACTIVE").await;
    }
    (group["id"].as_u64().expect("an id"), vms)
}

fn check(verdict: CheckVerdict, found: &str) -> ProofCheck {
    ProofCheck {
        port: "rail0".to_owned(),
        check: "MTU to w-1/rail0".to_owned(),
        verdict,
        found: found.to_owned(),
        remedy: None,
        round_trip_ns: Some(12_000),
    }
}

/// What the agent of a host was asked, answered with one check each.
async fn answer(rig: &Rig, name: &str, found: &ProofCheck) {
    let desired = rig.cloud.desired(&region(), &host(name)).await.expect("read");
    let report = |proof: &lanekeeper_control::protocol::DesiredProof| ProofReport {
        run: proof.run,
        vm: proof.vm,
        checks: vec![found.clone()],
    };
    let reports = ProofReports { proofs: desired.proofs.iter().map(report).collect() };
    rig.cloud.take_proofs(&region(), &host(name), reports).await.expect("taken");
}

async fn start(rig: &Rig, spec: &Value) -> (Value, String) {
    let run = rig.acme(Method::POST, "/v1/verifications", Some(spec)).await.expect(201);
    let path = format!("/v1/verifications/{}", run["id"]);
    (run, path)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_host_is_asked_for_its_vms_and_the_run_passes_once_all_have_answered() {
    let rig = Rig::new().await;
    let (group, vms) = group(&rig).await;
    let (run, path) = start(&rig, &json!({"group": group})).await;
    assert_eq!(run["state"], "RUNNING");
    let asked = rig.cloud.desired(&region(), &host("h1")).await.expect("read");
    assert_eq!(asked.vms.len(), 1);
    let [proof] = asked.proofs.as_slice() else { panic!("{:?}", asked.proofs) };
    assert_eq!(proof.vm, asked.vms[0].vm);
    let [port] = proof.ports.as_slice() else { panic!("{proof:?}") };
    assert_eq!(port.port, asked.vms[0].ports[0].port);
    let other = vms.iter().find(|vm| **vm != proof.vm).expect("the other VM");
    let shown = rig.acme(Method::GET, &format!("/v1/vms/{other}"), None).await.expect(200);
    let [peer] = port.peers.as_slice() else { panic!("{port:?}") };
    assert_eq!(peer.address.to_string(), shown["interfaces"][0]["address"].as_str().expect("text"));
    assert_eq!(peer.name, format!("{}/rail0", shown["name"].as_str().expect("a name")));

    answer(&rig, "h1", &check(CheckVerdict::Held, "9000 bytes pass")).await;
    let shown = rig.acme(Method::GET, &path, None).await.expect(200);
    assert_eq!(
        (&shown["state"], shown["parts"].as_array().map(Vec::len)),
        (&json!("RUNNING"), Some(1))
    );
    answer(&rig, "h2", &check(CheckVerdict::Held, "9000 bytes pass")).await;
    let shown = rig.acme(Method::GET, &path, None).await.expect(200);
    assert_eq!(shown["state"], "PASSED");
    assert_eq!(shown["parts"][1]["checks"][0]["round_trip_ns"], 12_000);
    let listed = rig.acme(Method::GET, "/v1/verifications", None).await.expect(200);
    assert_eq!(listed["items"][0]["state"], "PASSED");
    let asked = rig.cloud.desired(&region(), &host("h1")).await.expect("read");
    assert_eq!(asked.proofs, [], "it is asked once");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_an_event_of_its_vm_and_what_a_host_tells_is_held_to_its_size() {
    let rig = Rig::new().await;
    let (group, _) = group(&rig).await;
    let (_, path) = start(&rig, &json!({"group": group})).await;
    answer(&rig, "h1", &check(CheckVerdict::Failed, &"ä".repeat(5000))).await;
    let shown = rig.acme(Method::GET, &path, None).await.expect(200);
    assert_eq!(shown["state"], "FAILED");
    let found = shown["parts"][0]["checks"][0]["found"].as_str().expect("text");
    assert!(found.len() < 500 && found.ends_with('…'), "{found}");
    let events = rig.acme(Method::GET, "/v1/events", None).await.expect(200);
    assert!(events.to_string().contains("verification-failed"), "{events}");
    let many = vec![check(CheckVerdict::Held, ""); 5000];
    let proofs = vec![ProofReport { run: 1, vm: 1, checks: many }];
    let refused = rig.cloud.take_proofs(&region(), &host("h2"), ProofReports { proofs }).await;
    assert!(refused.expect_err("too many").to_string().contains("4096"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_or_foreign_answer_changes_nothing() {
    let rig = Rig::new().await;
    let (group, vms) = group(&rig).await;
    let (run, path) = start(&rig, &json!({"group": group})).await;
    // Another host's VM, and a run that never was.
    let run = run["id"].as_u64().expect("an id");
    for (run, vm) in [(run, vms[0]), (run, vms[1]), (run + 7, vms[0])] {
        let checks = vec![check(CheckVerdict::Failed, "a lie")];
        let proofs = vec![ProofReport { run, vm, checks }];
        let nobody = host("h3");
        rig.cloud.take_proofs(&region(), &nobody, ProofReports { proofs }).await.expect("let go");
    }
    let shown = rig.acme(Method::GET, &path, None).await.expect(200);
    assert_eq!(shown["parts"], json!([]));
    rig.acme(Method::DELETE, &path, None).await.expect(204);
    let asked = rig.cloud.desired(&region(), &host("h1")).await.expect("read");
    assert_eq!(asked.proofs, [], "nobody asks for it any more");
    rig.acme(Method::GET, &path, None).await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_vms_that_run_are_looked_at_and_a_run_names_either_a_group_or_vms() {
    let rig = Rig::new().await;
    let (group, vms) = group(&rig).await;
    let post = async |spec: Value| rig.acme(Method::POST, "/v1/verifications", Some(&spec)).await;
    let both = post(json!({"group": group, "vms": vms})).await;
    assert_eq!(both.status.as_u16(), 422, "{}", both.body);
    assert_eq!(post(json!({})).await.status.as_u16(), 422);
    assert_eq!(post(json!({"vms": [999_999]})).await.status.as_u16(), 404);
    rig.acme(Method::POST, &format!("/v1/vms/{}/stop", vms[0]), None).await.expect(202);
    rig.until_status(&["h1", "h2"], vms[0], "SHUTOFF").await;
    let off = post(json!({"vms": [vms[0]]})).await;
    assert_eq!(off.status.as_u16(), 409, "{}", off.body);
    assert!(off.detail().contains("SHUTOFF"), "{}", off.body);
    let on = post(json!({"vms": [vms[1], vms[1]]})).await.expect(201);
    assert_eq!(on["vms"].as_array().map(Vec::len), Some(1), "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_run_goes_when_there_would_be_too_many() {
    let rig = Rig::new().await;
    let (_, vms) = group(&rig).await;
    let mut paths = Vec::new();
    for _ in 0..51 {
        paths.push(start(&rig, &json!({"vms": [vms[0]]})).await.1);
    }
    rig.acme(Method::GET, &paths[0], None).await.expect(404);
    rig.acme(Method::GET, &paths[1], None).await.expect(200);
    let refused = rig.acme(Method::POST, "/v1/verifications", Some(&json!({}))).await;
    assert_eq!(refused.status.as_u16(), 422);
    rig.acme(Method::GET, &paths[1], None).await.expect(200);
    let mut asked = 0;
    for name in ["h1", "h2"] {
        asked += rig.cloud.desired(&region(), &host(name)).await.expect("read").proofs.len();
    }
    assert_eq!(asked, 50);
}
