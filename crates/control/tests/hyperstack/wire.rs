//! The rules of the wire that decide whether a client works.

use axum::body::Body;
use axum::http::Request;
use lanekeeper_control::placement::Quota;
use lanekeeper_control::resource::Role;
use serde_json::{Value, json};

use crate::rig::{PUBLIC_KEY, Rig, id, vm};
use crate::world;

/// `YYYY-MM-DDTHH:MM:SS` and nothing else.
#[track_caller]
fn is_time_without_zone(time: &Value) {
    let text = time.as_str().expect("a time");
    let like = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect::<String>();
    assert_eq!(like, "0000-00-00T00:00:00", "{text}");
}

#[tokio::test]
async fn what_is_created_is_answered_with_200_and_an_envelope() {
    let rig = Rig::new().await;
    // `environment` and `vms` expect both.
    let environment = rig.environment("e").await;
    assert_eq!(environment["name"], "e");
    assert_eq!(environment["region"], world::REGION);
    assert_eq!(
        environment["features"],
        json!({"network_optimised": true, "green_status": "NOT_GREEN"})
    );
    let vms = rig.vms("a", "e", 1).await;
    assert_eq!(vms[0]["status"], "CREATING");
}

#[tokio::test]
async fn times_have_no_zone_and_no_fraction() {
    let rig = Rig::new().await;
    is_time_without_zone(&rig.environment("e").await["created_at"]);
    let vm = &rig.vms("a", "e", 1).await[0];
    is_time_without_zone(&vm["created_at"]);
    let keys = rig.get("/core/keypairs").await.served();
    is_time_without_zone(&keys["keypairs"][0]["created_at"]);
    let flavors = rig.get("/core/flavors").await.served();
    is_time_without_zone(&flavors["data"][0]["flavors"][0]["created_at"]);
    let events = rig.get(&format!("/core/virtual-machines/{}/events", id(vm))).await.served();
    is_time_without_zone(&events["instance_events"][0]["time"]);
    assert_eq!(events["instance_events"][0]["reason"], "created");
}

#[tokio::test]
async fn one_vm_keeps_its_name_and_several_are_numbered_from_1() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    let names = |vms: Vec<Value>| -> Vec<String> {
        vms.iter().map(|vm| vm["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(rig.vms("alone", "e", 1).await), ["alone"]);
    assert_eq!(names(rig.vms("web", "e", 3).await), ["web-1", "web-2", "web-3"]);
    for count in [0, -1, 101] {
        let mut body = vm("x", "e", 1);
        body["count"] = count.into();
        let said = rig.post("/core/virtual-machines", body).await.refused(400, "bad_request");
        assert!(said.contains("count") && said.contains("1 to 100"), "{said}");
    }
}

#[tokio::test]
async fn of_vms_that_cannot_all_be_made_none_is() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    rig.vms("web-2", "e", 1).await;
    let said =
        rig.post("/core/virtual-machines", vm("web", "e", 3)).await.refused(409, "already_exist");
    assert!(said.contains("web-2"), "{said}");
    assert_eq!(rig.get("/core/virtual-machines").await.served()["count"], 1);
}

#[tokio::test]
async fn vms_come_in_pages_of_10_oldest_first_with_the_count_of_all() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    // More than fit on the host are still waiting to be placed.
    for n in 0..4 {
        rig.vms(&format!("v{n}"), "e", 3).await;
    }
    let first = rig.get("/core/virtual-machines").await.served();
    assert_eq!(
        (&first["page"], &first["page_size"], &first["count"]),
        (&json!(1), &json!(10), &json!(12))
    );
    let ids = |page: &Value| -> Vec<u64> {
        page["instances"].as_array().expect("VMs").iter().map(id).collect()
    };
    assert_eq!(ids(&first).len(), 10);
    assert!(ids(&first).is_sorted());
    let second = rig.get("/core/virtual-machines?page=2&pageSize=10").await.served();
    assert_eq!(ids(&second).len(), 2);
    assert!(ids(&first).last() < ids(&second).first());
    assert_eq!(second["count"], 12);
    let beyond = rig.get("/core/virtual-machines?page=9").await.served();
    assert_eq!((ids(&beyond).len(), &beyond["count"]), (0, &json!(12)));
    rig.get("/core/virtual-machines?page=0").await.refused(400, "bad_request");
    rig.get("/core/virtual-machines?pageSize=0").await.refused(400, "bad_request");
}

#[tokio::test]
async fn vms_are_found_by_name_by_id_and_by_environment() {
    let rig = Rig::new().await;
    rig.environment("train").await;
    rig.environment("train-2").await;
    let one = id(&rig.vms("apple", "train", 1).await[0]);
    rig.vms("pear", "train-2", 1).await;
    let count = async |query: &str| {
        rig.get(&format!("/core/virtual-machines?{query}")).await.served()["count"].clone()
    };
    assert_eq!(count("search=APP").await, 1);
    assert_eq!(count(&format!("search={one}")).await, 1);
    assert_eq!(count("environment=train").await, 2);
    assert_eq!(count("environment=train&exact_environment_match=true").await, 1);
    assert_eq!(count("search=kiwi").await, 0);
}

#[tokio::test]
async fn other_lists_tell_all_and_null_pages_unless_a_page_is_asked_for() {
    let rig = Rig::new().await;
    for n in 0..12 {
        rig.environment(&format!("e{n}")).await;
    }
    for (path, key) in [("environments", "environments"), ("keypairs", "keypairs")] {
        let all = rig.get(&format!("/core/{path}")).await.served();
        assert_eq!(all[key].as_array().expect("a list").len(), 12);
        assert_eq!((&all["page"], &all["page_size"]), (&Value::Null, &Value::Null));
        assert_eq!(all["count"], 12);
        let page = rig.get(&format!("/core/{path}?page=2&pageSize=5")).await.served();
        assert_eq!(page[key].as_array().expect("a list").len(), 5);
        assert_eq!((&page["page"], &page["count"]), (&json!(2), &json!(12)));
    }
}

#[tokio::test]
async fn what_clients_read_without_a_look_is_never_null() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    let made = id(&rig.vms("a", "e", 1).await[0]);
    let keys = rig.get("/core/keypairs").await.served();
    let key = id(&keys["keypairs"][0]);
    // Not even of a VM whose key pair is gone.
    rig.delete(&format!("/core/keypair/{key}")).await.served();
    let vm = rig.vm(made).await;
    for path in [
        "/id",
        "/name",
        "/status",
        "/power_state",
        "/vm_state",
        "/environment/id",
        "/environment/name",
        "/environment/org_id",
        "/environment/region",
        "/environment/features",
        "/image/name",
        "/flavor/id",
        "/flavor/name",
        "/flavor/labels",
        "/flavor/features",
        "/keypair/name",
        "/labels",
        "/security_rules",
        "/volume_attachments",
        "/features",
        "/created_at",
        "/os",
        "/locked",
    ] {
        let value = vm.pointer(path).unwrap_or(&Value::Null);
        assert!(!value.is_null(), "{path} is null in {vm}");
    }
    assert!(vm["flavor"]["ram"].is_f64(), "{vm}");
    assert_eq!(vm["flavor"]["labels"], json!([{"id": 1, "label": "tier=lab"}]));
}

#[tokio::test]
async fn ports_with_mac_address_network_rail_and_vlan_are_told_in_features() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    let vm = &rig.vms("a", "e", 1).await[0];
    let port = &vm["features"]["rdma"]["ports"][0];
    assert_eq!(port["address"], vm["fixed_ip"]);
    assert_eq!(port["network"], "e-default");
    assert_eq!(port["profile"], "roce");
    assert!(port["vlan"].as_u64().is_some_and(|vlan| (100..=199).contains(&vlan)), "{port}");
    assert_eq!(port["mac"].as_str().map(str::len), Some(17), "{port}");
    assert!(port.get("rail").is_some() && port["mtu"].is_u64(), "{port}");
    assert_eq!(vm["features"]["rdma"]["count"], 1);
    let regions = rig.get("/core/regions").await.served();
    assert_eq!(regions["regions"][0]["features"]["rdma"]["fabric"], "east");
    let flavors = rig.get("/core/flavors").await.served();
    assert_eq!(flavors["data"][0]["flavors"][0]["features"]["rdma"]["rate_mbps"], 1000);
}

#[tokio::test]
async fn fields_that_nobody_knows_are_taken_and_ignored() {
    let rig = Rig::new().await;
    let body = json!({"name": "e", "region": world::REGION, "colour": "green"});
    rig.post("/core/environments", body).await.served();
    let body = json!({"name": "k", "environment_name": "e", "public_key": PUBLIC_KEY, "x": [1]});
    rig.post("/core/keypairs", body).await.served();
    rig.get("/core/flavors?region=NORTH-1&colour=green").await.served();
}

#[tokio::test]
async fn the_key_is_taken_in_either_spelling_and_none_is_unauthorized() {
    let rig = Rig::new().await;
    for header in ["api_key", "api-key"] {
        let request = Request::get("/v1/core/regions").header(header, &rig.key);
        rig.send(request.body(Body::empty()).expect("a request")).await.served();
    }
    let request = Request::get("/v1/core/regions").body(Body::empty()).expect("a request");
    rig.send(request).await.refused(401, "unauthorized");
    rig.call_as("lk_nobody", "GET", "/core/regions", None).await.refused(401, "unauthorized");
}

#[tokio::test]
async fn a_get_that_changes_something_is_not_for_readers() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    let path = format!("/core/virtual-machines/{}", id(&rig.vms("a", "e", 1).await[0]));
    let reader = world::key(&rig.cloud, "acme", Role::Reader).await;
    rig.call_as(&reader, "GET", &path, None).await.served();
    for act in ["start", "stop", "hard-reboot", "hibernate", "hibernate-restore"] {
        let act = format!("{path}/{act}");
        rig.call_as(&reader, "GET", &act, None).await.refused(403, "forbidden");
    }
}

#[tokio::test]
async fn what_is_anothers_is_not_found() {
    let rig = Rig::new().await;
    let environment = id(&rig.environment("e").await);
    let vm = id(&rig.vms("a", "e", 1).await[0]);
    let rival = world::key(&rig.cloud, "rival", Role::Admin).await;
    for (method, path) in [
        ("GET", format!("/core/environments/{environment}")),
        ("DELETE", format!("/core/environments/{environment}")),
        ("GET", format!("/core/virtual-machines/{vm}")),
        ("GET", format!("/core/virtual-machines/{vm}/stop")),
        ("GET", format!("/core/virtual-machines/{vm}/events")),
        ("DELETE", format!("/core/virtual-machines/{vm}")),
    ] {
        rig.call_as(&rival, method, &path, None).await.refused(404, "not_found");
    }
    let listed = rig.call_as(&rival, "GET", "/core/virtual-machines", None).await.served();
    assert_eq!(listed["count"], 0);
}

#[tokio::test]
async fn each_refusal_has_the_status_and_the_word_of_the_official_api() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    let again = json!({"name": "e", "region": world::REGION});
    rig.post("/core/environments", again).await.refused(409, "already_exist");
    let nowhere = json!({"name": "f", "region": "NOWHERE-1"});
    rig.post("/core/environments", nowhere).await.refused(404, "not_found");
    let long = json!({"name": "n".repeat(51), "region": world::REGION});
    rig.post("/core/environments", long).await.refused(400, "bad_request");
    rig.post("/core/environments", json!({"name": "f"})).await.refused(400, "bad_request");
    rig.post("/core/environments", json!("text")).await.refused(400, "bad_request");
    rig.get("/core/no-such-thing").await.refused(404, "not_found");
    rig.call_as(&rig.key, "PATCH", "/core/regions", None).await.refused(405, "not_allowed");
    for (field, value) in [
        ("flavor_name", "n9"),
        ("image_name", "none"),
        ("key_name", "none"),
        ("environment_name", "none"),
    ] {
        let mut body = vm("a", "e", 1);
        body[field] = value.into();
        let said = rig.post("/core/virtual-machines", body).await.refused(404, "not_found");
        assert!(said.contains(value), "{said}");
    }
}

#[tokio::test]
async fn that_there_is_no_quota_or_no_room_is_told_at_once() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    let said = rig
        .post("/core/virtual-machines", vm("a", "e", world::VFS as u32 + 1))
        .await
        .refused(400, "bad_request");
    assert!(said.contains("no room for 9 VMs"), "{said}");
    let quota = Quota { vms: Some(1), ..Quota::default() };
    rig.cloud.set_quota(&world::organization("acme"), quota).await.expect("a quota");
    let said =
        rig.post("/core/virtual-machines", vm("a", "e", 2)).await.refused(400, "bad_request");
    assert!(said.contains("quota"), "{said}");
    assert_eq!(rig.get("/core/virtual-machines").await.served()["count"], 0);
    let environments = rig.get("/core/environments").await.served();
    let path = format!("/core/environments/{}/vm-quota", id(&environments["environments"][0]));
    let quota = rig.get(&path).await.served();
    assert_eq!((&quota["max_vms"], &quota["available_vms"]), (&json!(1), &json!(1)));
    assert_eq!((&quota["current_vms"], &quota["percentage_used"]), (&json!(0), &json!(0.0)));
}

#[tokio::test]
async fn flavors_and_images_are_grouped_as_clients_expect() {
    let rig = Rig::new().await;
    let flavors = rig.get("/core/flavors?region=NORTH-1").await.served();
    let group = |gpu: &str| {
        let all = flavors["data"].as_array().expect("groups");
        all.iter().find(|group| group["gpu"] == gpu).cloned().expect("a group")
    };
    assert_eq!(group("")["flavors"][0]["name"], world::FLAVOR);
    let gpus = group("H100");
    assert_eq!(gpus["region_name"], world::REGION);
    assert_eq!(gpus["flavors"][0]["gpu_count"], 2);
    assert_eq!(gpus["flavors"][0]["stock_available"], true);
    assert!((gpus["flavors"][0]["ram"].as_f64().expect("GiB") - 1.5).abs() < 1e-9);
    rig.get("/core/flavors?region=NOWHERE-1").await.refused(404, "not_found");
    let images = rig.get("/core/images").await.served();
    assert_eq!(images["images"][0]["type"], "Debian");
    assert_eq!(images["images"][0]["images"][0]["display_size"], "52.4 MB");
    let path = format!("/core/images/{}", id(&images["images"][0]["images"][0]));
    assert_eq!(rig.get(&path).await.served()["image"]["name"], world::IMAGE);
    rig.delete(&path).await.refused(403, "forbidden");
}

#[tokio::test]
async fn stock_counts_gpus_that_are_free() {
    let rig = Rig::new().await;
    let stocks = rig.get("/core/stocks").await.served();
    let region = &stocks["stocks"][0];
    assert_eq!((&region["region"], &region["stock-type"]), (&json!(world::REGION), &json!("GPU")));
    let model = &region["models"][0];
    assert_eq!((&model["model"], &model["available"]), (&json!("H100"), &json!("4")));
    let sizes = json!({"1x": 4, "2x": 2, "4x": 1, "8x": 0, "10x": 0});
    assert_eq!(model["configurations"], sizes);
    let gpus = rig.get("/core/gpus").await.served();
    assert_eq!(gpus["gpu_list"][0]["name"], "H100");
    assert_eq!(gpus["gpu_list"][0]["regions"][0]["name"], world::REGION);
    assert_eq!(rig.get("/pricebook").await.body, json!([]));
}

#[tokio::test]
async fn whether_a_name_is_free_is_told() {
    let rig = Rig::new().await;
    rig.environment("e").await;
    rig.vms("a", "e", 1).await;
    for (path, available) in [
        ("environments/name-availability/e", false),
        ("environments/name-availability/f", true),
        ("virtual-machines/name-availability/a", false),
        ("virtual-machines/name-availability/b", true),
        ("volume/name-availability/v", true),
    ] {
        let told = rig.get(&format!("/core/{path}")).await.served();
        assert_eq!(told["available"], available, "{path}");
    }
}
