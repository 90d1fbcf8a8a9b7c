//! Networks, addresses, and what a path cannot do.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::http::Method;
use serde_json::{Value, json};

use super::rig::Rig;

#[tokio::test(flavor = "multi_thread")]
async fn each_network_has_a_vlan_of_its_own_from_the_regions_range_until_it_is_used_up() {
    let rig = Rig::new().await;
    let environment = rig.environment("lab").await;
    let mut vlans = BTreeSet::new();
    for number in 1..100 {
        let spec = json!({"name": format!("n{number}"), "environment": environment});
        let made = rig.acme(Method::POST, "/v1/networks", Some(&spec)).await.expect(201);
        assert!(vlans.insert(made["vlan"].as_u64().expect("a VLAN")), "{made}");
    }
    assert!(vlans.iter().all(|vlan| (100..=199).contains(vlan)));
    let spec = json!({"name": "more", "environment": environment});
    let refused = rig.acme(Method::POST, "/v1/networks", Some(&spec)).await;
    assert_eq!(refused.status.as_u16(), 409);
    assert!(refused.detail().contains("no VLAN is free in region north"), "{}", refused.body);
    let one = rig.acme(Method::GET, "/v1/networks?name=n7", None).await.expect(200);
    let path = format!("/v1/networks/{}", one["items"][0]["id"]);
    rig.acme(Method::DELETE, &path, None).await.expect(204);
    rig.acme(Method::POST, "/v1/networks", Some(&spec)).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn roce_v1_is_refused_over_a_router_and_v2_has_routes_to_the_other_subnets() {
    let rig = Rig::new().await;
    let environment = rig.environment("lab").await;
    let spec = json!({"name": "old", "environment": environment, "roce": "v1", "routed": true});
    let refused = rig.acme(Method::POST, "/v1/networks", Some(&spec)).await;
    assert_eq!(refused.status.as_u16(), 422);
    assert_eq!(refused.body["type"], "urn:lanekeeper:problem:path-cannot");
    assert!(refused.detail().contains("use RoCE v2"), "{}", refused.body);

    rig.host("h1", 4).await;
    let flavor = json!({"name": "two", "vcpus": 1, "ram_mib": 256,
        "vfs": {"count": 2, "rate_mbps": 100}});
    rig.post("/v1/flavors", &flavor).await.expect(201);
    let spec = json!({"name": "rails", "environment": environment, "rails": 2, "routed": true,
        "cidr": "192.168.8.0/24"});
    let network = rig.acme(Method::POST, "/v1/networks", Some(&spec)).await.expect(201);
    let spec = json!({"name": "v", "environment": environment, "flavor": "two", "image": "guest",
        "networks": [{"network": network["id"]}]});
    let vm = rig.acme(Method::POST, "/v1/vms", Some(&spec)).await.expect(201);
    let id = vm["id"].as_u64().expect("an id");
    rig.until_status(&["h1"], id, "ACTIVE").await;
    let shown = rig.acme(Method::GET, &format!("/v1/vms/{id}"), None).await.expect(200);
    let address = |k: usize| shown["interfaces"][k]["address"].as_str().expect("one").to_owned();
    assert!(address(0).starts_with("192.168.8.") && address(1).starts_with("192.168.9."));
    let told =
        rig.cloud.desired(&super::rig::region(), &super::rig::host("h1")).await.expect("read");
    let route = told.vms[0].ports[0].routes[0];
    assert_eq!(
        (route.via.to_string(), route.to.address.to_string()),
        ("192.168.8.1".to_owned(), "192.168.9.0".to_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_vms_made_at_once_have_as_many_addresses_and_macs() {
    let rig = Arc::new(Rig::new().await);
    for host in ["h1", "h2", "h3", "h4"] {
        rig.host(host, 64).await;
    }
    let environment = rig.environment("lab").await;
    let mut made = tokio::task::JoinSet::new();
    for number in 0..200 {
        let rig = Arc::clone(&rig);
        made.spawn(async move { rig.vm(environment, &format!("v{number}")).await });
    }
    let vms = made.join_all().await;
    assert_eq!(vms.iter().collect::<BTreeSet<_>>().len(), 200);
    for vm in &vms {
        rig.until_status(&["h1", "h2", "h3", "h4"], *vm, "ACTIVE").await;
    }
    let ports = rig.acme(Method::GET, "/v1/ports?limit=1000", None).await.expect(200);
    let column = |name: &str| -> BTreeSet<String> {
        let items: &Vec<Value> = ports["items"].as_array().expect("a list");
        items.iter().filter_map(|port| port[name].as_str().map(str::to_owned)).collect()
    };
    assert_eq!((column("address").len(), column("mac").len()), (200, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_still_has_something_is_not_deleted_and_says_what() {
    let rig = Rig::new().await;
    rig.host("h1", 1).await;
    let environment = rig.environment("lab").await;
    let vm = rig.vm(environment, "v1").await;
    rig.until_status(&["h1"], vm, "ACTIVE").await;
    let path = format!("/v1/environments/{environment}");
    let shown = rig.acme(Method::GET, &path, None).await.expect(200);
    for (path, by) in [
        (path.clone(), format!("VM {vm} ('v1')")),
        (format!("/v1/networks/{}", shown["default_network"]), format!("of VM {vm}")),
    ] {
        let refused = rig.acme(Method::DELETE, &path, None).await;
        assert_eq!(refused.status.as_u16(), 409, "{path}");
        assert!(refused.detail().contains(&by), "{}", refused.body);
    }
    rig.acme(Method::DELETE, &format!("/v1/vms/{vm}"), None).await.expect(202);
    rig.until_status(&["h1"], vm, "").await;
    rig.acme(Method::DELETE, &path, None).await.expect(204);
    assert_eq!(rig.acme(Method::GET, &path, None).await.status.as_u16(), 404);
}
