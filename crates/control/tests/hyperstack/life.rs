//! A VM's life, and what a VM cannot do.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::rig::{Rig, id, vm};

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_goes_by_the_published_words_and_is_404_with_a_json_body_once_it_is_deleted() {
    let rig = Rig::alive().await;
    let environment = id(&rig.environment("e").await);
    let made = id(&rig.vms("a", "e", 1).await[0]);
    let path = format!("/core/virtual-machines/{made}");
    rig.until(made, "ACTIVE").await;
    assert_eq!(rig.vm(made).await["power_state"], "RUNNING");
    let ports = rig.vm(made).await["features"]["rdma"]["ports"].clone();

    rig.get(&format!("{path}/stop")).await.served();
    rig.until(made, "SHUTOFF").await;
    assert_eq!(rig.vm(made).await["power_state"], "SHUTDOWN");
    let said = rig.get(&format!("{path}/hard-reboot")).await.refused(400, "bad_request");
    assert!(said.contains("SHUTOFF") && said.contains("ACTIVE"), "{said}");
    rig.get(&format!("{path}/start")).await.served();
    rig.until(made, "ACTIVE").await;
    rig.get(&format!("{path}/hard-reboot")).await.served();
    rig.until(made, "ACTIVE").await;
    assert_eq!(rig.vm(made).await["features"]["rdma"]["ports"], ports);

    let said = rig.delete(&format!("/core/environments/{environment}")).await;
    assert!(said.refused(400, "bad_request").contains("delete its VMs first"));
    rig.delete(&path).await.served();
    let end = Instant::now() + Duration::from_secs(30);
    while rig.get(&path).await.status == 200 {
        assert!(Instant::now() < end, "{}", rig.vm(made).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    rig.get(&path).await.refused(404, "not_found");
    rig.delete(&path).await.refused(404, "not_found");
    rig.delete(&format!("/core/environments/{environment}")).await.served();
    rig.get(&format!("/core/environments/{environment}")).await.refused(404, "not_found");
    assert_eq!(rig.get("/core/keypairs").await.served()["count"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_vms_than_one_transaction_holds_are_made_by_one_call() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    let report = crate::world::roomy_report(64);
    let (region, host) = (crate::world::region(), crate::world::host());
    rig.cloud.take_inventory(&region, &host, report).await.expect("an inventory");
    // What is free is told by a watch.
    let end = Instant::now() + Duration::from_secs(10);
    let vms = loop {
        let made = rig.post("/core/virtual-machines", vm("many", "e", 60)).await;
        if made.status == 200 {
            break made.served();
        }
        assert!(Instant::now() < end, "{made:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let vms = vms["instances"].as_array().expect("VMs");
    assert_eq!(vms.len(), 60);
    let addresses: std::collections::BTreeSet<_> =
        vms.iter().map(|vm| vm["fixed_ip"].as_str().expect("an address")).collect();
    assert_eq!(addresses.len(), 60, "no address is given twice");
}

#[tokio::test]
async fn labels_are_replaced() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    let made = id(&rig.vms("a", "e", 1).await[0]);
    let path = format!("/core/virtual-machines/{made}/label");
    let body = Some(json!({"labels": ["x", "y"]}));
    rig.call_as(&rig.key, "PUT", &path, body).await.served();
    assert_eq!(rig.vm(made).await["labels"], json!(["x", "y"]));
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_with_what_can_be_where_the_official_api_has_a_route() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    let made = id(&rig.vms("a", "e", 1).await[0]);
    for (method, act, instead) in [
        ("GET", "hibernate", "stop it"),
        ("GET", "hibernate-restore", "stop it"),
        ("POST", "resize", "make another"),
        ("POST", "attach-floatingip", "from another VM"),
        ("POST", "detach-floatingip", "from another VM"),
        ("POST", "attach-volumes", "flavor"),
        ("POST", "detach-volumes", "flavor"),
        ("POST", "snapshots", "from within"),
        ("GET", "metrics", "exporter"),
        ("GET", "request-console", "key pair"),
        ("POST", "attach-callback", "/v1/watch"),
    ] {
        let path = format!("/core/virtual-machines/{made}/{act}");
        let body = (method == "POST").then(|| json!({"volume_ids": [1]}));
        let said = rig.call_as(&rig.key, method, &path, body).await.refused(400, "bad_request");
        assert!(said.contains(instead), "{act}: {said}");
        let path = format!("/core/virtual-machines/999999/{act}");
        rig.call_as(&rig.key, method, &path, None).await.refused(404, "not_found");
    }
    rig.post("/core/volumes", json!({"name": "v"})).await.refused(400, "bad_request");
    for list in ["volumes", "snapshots", "profiles"] {
        let told = rig.get(&format!("/core/{list}")).await.served();
        assert_eq!((&told[list], &told["count"]), (&json!([]), &json!(0)));
        rig.get(&format!("/core/{list}/1")).await.refused(404, "not_found");
    }
}

#[tokio::test]
async fn what_a_new_vm_cannot_have_is_refused_and_not_forgotten() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    for (field, value) in [
        ("assign_floating_ip", json!(true)),
        ("create_bootable_volume", json!(true)),
        ("volume_name", json!("v")),
        ("callback_url", json!("https://example.com/hook")),
        ("profile", json!({"name": "p"})),
        ("flavor", json!({"cpu": 4})),
        ("enhanced_monitoring_enabled", json!(true)),
    ] {
        let mut body = vm("a", "e", 1);
        body[field] = value;
        let said = rig.post("/core/virtual-machines", body).await.refused(400, "bad_request");
        assert!(said.contains(field), "{said}");
    }
    let mut nothing = vm("a", "e", 1);
    for (field, value) in [
        ("assign_floating_ip", json!(false)),
        ("create_bootable_volume", json!(false)),
        ("volume_name", json!("")),
        ("callback_url", json!(null)),
        ("profile", json!(null)),
        ("flavor", json!({})),
        ("labels", json!(null)),
        ("security_rules", json!(null)),
        ("user_data", json!("")),
    ] {
        nothing[field] = value;
    }
    rig.post("/core/virtual-machines", nothing).await.served();
}
