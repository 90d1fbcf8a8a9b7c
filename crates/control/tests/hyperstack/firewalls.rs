//! Security rules and firewalls: what a VF's path would not enforce is never taken and forgotten.

use serde_json::{Value, json};

use crate::rig::{Rig, id, vm};

fn open() -> Value {
    json!({
        "direction": "ingress", "ethertype": "IPv4", "protocol": "any",
        "remote_ip_prefix": "0.0.0.0/0"
    })
}

fn ssh() -> Value {
    json!({
        "direction": "ingress", "ethertype": "IPv4", "protocol": "tcp",
        "remote_ip_prefix": "0.0.0.0/0", "port_range_min": 22, "port_range_max": 22
    })
}

#[tokio::test]
async fn a_rule_that_a_vf_would_not_enforce_is_refused_and_says_what_to_do() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    let made = id(&rig.vms("a", "e", 1).await[0]);
    let path = format!("/core/virtual-machines/{made}/sg-rules");
    let said = rig.post(&path, ssh()).await.refused(400, "bad_request");
    assert!(said.contains("filter within the VM"), "{said}");
    let mut odd = ssh();
    odd["protocol"] = "carrier-pigeon".into();
    let said = rig.post(&path, odd).await.refused(400, "bad_request");
    assert!(said.contains("sg-rules-protocols"), "{said}");
    let mut far = ssh();
    far["port_range_max"] = 65_536.into();
    let said = rig.post(&path, far).await.refused(400, "bad_request");
    assert!(said.contains("65536"), "{said}");
    let mut body = vm("b", "e", 1);
    body["security_rules"] = json!([ssh()]);
    rig.post("/core/virtual-machines", body).await.refused(400, "bad_request");
}

#[tokio::test]
async fn a_rule_that_lets_everything_pass_is_kept_shown_and_taken_away() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    let made = id(&rig.vms("a", "e", 1).await[0]);
    let path = format!("/core/virtual-machines/{made}/sg-rules");
    let rule = rig.post(&path, open()).await.served()["security_rule"].clone();
    assert_eq!(rig.vm(made).await["security_rules"], json!([rule]));
    assert!(rule["created_at"].is_string() && rule["status"] == "SUCCESS", "{rule}");
    rig.delete(&format!("{path}/{}", id(&rule))).await.served();
    rig.delete(&format!("{path}/{}", id(&rule))).await.refused(404, "not_found");
    assert_eq!(rig.vm(made).await["security_rules"], json!([]));
    let protocols = rig.get("/core/sg-rules-protocols").await.served();
    assert_eq!(protocols["protocols"].as_array().map(Vec::len), Some(26));
}

#[tokio::test]
async fn a_firewall_is_for_vms_only_if_it_says_that_everything_comes_in() {
    let rig = Rig::new().await;
    let environment = id(&rig.environment("e").await);
    let made = id(&rig.vms("a", "e", 1).await[0]);
    let body = json!({"name": "f", "environment_id": environment, "description": "d"});
    let firewall = rig.post("/core/firewalls", body.clone()).await.served()["firewall"].clone();
    assert_eq!(firewall["environment"]["name"], "e");
    assert_eq!((&firewall["rules"], &firewall["attachments"]), (&json!([]), &json!([])));
    rig.post("/core/firewalls", body).await.refused(409, "already_exist");
    let path = format!("/core/firewalls/{}", id(&firewall));
    let attach = format!("/core/virtual-machines/{made}/attach-firewalls");
    let wanted = json!({"firewalls": [id(&firewall)]});
    let said = rig.post(&attach, wanted.clone()).await.refused(400, "bad_request");
    assert!(said.contains("nothing would be kept out"), "{said}");

    rig.post(&format!("{path}/firewall-rules"), ssh()).await.refused(400, "bad_request");
    let added = rig.post(&format!("{path}/firewall-rules"), open()).await.served();
    rig.post(&attach, wanted).await.served();
    let shown = rig.get(&path).await.served()["firewall"].clone();
    assert_eq!(shown["attachments"][0]["vm"]["name"], "a");
    assert_eq!(shown["rules"], json!([added["firewall_rule"]]));
    let query = format!("/core/virtual-machines?exclude_firewalls={}", id(&firewall));
    assert_eq!(rig.get(&query).await.served()["count"], 0);

    // Without its rule it would promise to keep everything out.
    let rule = format!("{path}/firewall-rules/{}", id(&added["firewall_rule"]));
    rig.delete(&rule).await.refused(400, "bad_request");
    let said = rig.delete(&path).await.refused(400, "bad_request");
    assert!(said.contains("detach it"), "{said}");
    rig.post(&format!("{path}/update-attachments"), json!({"vms": []})).await.served();
    assert_eq!(rig.get(&query).await.served()["count"], 1);
    rig.delete(&rule).await.served();
    rig.delete(&path).await.served();
    rig.get(&path).await.refused(404, "not_found");
    assert_eq!(rig.get("/core/firewalls").await.served()["count"], 0);
}
