//! Who may do what: every route, with every role, in one's own organization and in another's.

use axum::body::Body;
use axum::http::{Method, Request};
use lanekeeper_control::api::Permission;
use lanekeeper_control::resource::Role;
use serde_json::{Value, json};

use super::rig::Rig;

/// A path with ids that exist or might.
fn concrete(path: &str, id: u64) -> String {
    path.replace("{region}", "north")
        .replace("{host}", "h1")
        .replace("{id}", &id.to_string())
        .replace("{rule}", "1")
        .replace("{name}", "x")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_refuses_whoever_may_not_and_lets_in_whoever_may() {
    let rig = Rig::new().await;
    let roles = [Role::Reader, Role::Member, Role::Admin, Role::Operator];
    let mut seen = 0;
    for route in &rig.api.routes {
        let path = concrete(route.path, 999_999_999);
        let bare = Request::builder().method(route.method.clone()).uri(&path);
        let bare = rig.send(bare.body(Body::empty()).expect("a request")).await;
        let refused = [401, 403].contains(&bare.status.as_u16());
        match route.permission {
            Permission::Public => assert!(!refused, "{} {path} is for all", route.method),
            Permission::Agent => assert_eq!(bare.status.as_u16(), 401, "{path}"),
            Permission::Role(_) => {
                assert_eq!(bare.status.as_u16(), 401, "{} {path} without a key", route.method);
            }
        }
        let Permission::Role(least) = route.permission else { continue };
        for role in roles {
            let who = format!("acme/{role:?}");
            let answer = rig.call(&who, route.method.clone(), &path, None).await;
            let forbidden = answer.status.as_u16() == 403;
            assert_eq!(
                forbidden,
                role < least,
                "{} {path} as {who}: {}",
                route.method,
                answer.body
            );
            assert_ne!(answer.status.as_u16(), 401, "{} {path} as {who}", route.method);
            assert!(answer.status.as_u16() < 500, "{} {path}: {}", route.method, answer.body);
            seen += 1;
        }
    }
    assert!(seen > 200, "{seen} are too few");
}

/// One of each of acme's resources, by kind.
async fn possessions(rig: &Rig) -> Vec<(&'static str, u64)> {
    let id = |value: &Value| value["id"].as_u64().expect("an id");
    let environment = rig.environment("lab").await;
    let shown = rig.acme(Method::GET, &format!("/v1/environments/{environment}"), None).await;
    let network = shown.body["default_network"].as_u64().expect("an id");
    let post = async |path: &str, body: Value| {
        id(&rig.call("acme/Admin", Method::POST, path, Some(&body)).await.expect(201))
    };
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB me@there";
    let keypair = json!({"name": "k", "environment": environment, "public_key": key});
    let policy = json!({"name": "p", "policy": {"spread": "strict"}});
    let vm = rig.vm(environment, "v").await;
    rig.until_status(&["h1"], vm, "ACTIVE").await;
    let spec =
        json!({"name": "g", "environment": environment, "flavor": "small", "image": "guest"});
    let list = async |path: &str| {
        rig.call("acme/Admin", Method::GET, path, None).await.expect(200)["items"][0]["id"]
            .as_u64()
            .expect("an id")
    };
    vec![
        ("environments", environment),
        ("networks", network),
        ("keypairs", post("/v1/keypairs", keypair).await),
        ("placement-policies", post("/v1/placement-policies", policy).await),
        ("groups", post("/v1/groups", json!({"count": 1, "vm": spec})).await),
        ("api-keys", post("/v1/api-keys", json!({"name": "k", "role": "reader"})).await),
        ("verifications", post("/v1/verifications", json!({"vms": [vm]})).await),
        ("vms", vm),
        ("subnets", list("/v1/subnets").await),
        ("ports", list("/v1/ports").await),
        ("events", list("/v1/events").await),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_organization_can_be_seen_or_touched_from_another() {
    let rig = Rig::new().await;
    rig.host("h1", 4).await;
    let all = possessions(&rig).await;
    for route in &rig.api.routes {
        let Some((_, id)) =
            all.iter().find(|(kind, _)| route.path.starts_with(&format!("/v1/{kind}/{{id}}")))
        else {
            continue;
        };
        let path = concrete(route.path, *id);
        let body = (route.method != Method::GET && route.method != Method::DELETE).then(|| {
            json!({"name": "x", "labels": [], "direction": "ingress", "ethertype": "IPv4",
                "protocol": "any", "remote_ip_prefix": "0.0.0.0/0"})
        });
        for role in ["Admin", "Operator"] {
            let who = format!("globex/{role}");
            let answer = rig.call(&who, route.method.clone(), &path, body.as_ref()).await;
            let status = answer.status.as_u16();
            assert!(
                [404, 422].contains(&status),
                "{} {path} as {who}: {}",
                route.method,
                answer.body
            );
        }
    }
    for (kind, id) in &all {
        let mine = rig.call("acme/Admin", Method::GET, &format!("/v1/{kind}/{id}"), None).await;
        assert_eq!(mine.status.as_u16(), 200, "{kind}/{id}: {}", mine.body);
        let theirs = rig.call("globex/Admin", Method::GET, &format!("/v1/{kind}"), None).await;
        let listed = theirs.expect(200)["items"].to_string();
        assert!(!listed.contains("\"organization\":\"acme\""), "{kind}: {listed}");
    }
    let within = rig.within("acme", "/v1/vms").await.expect(200);
    assert_eq!(within["items"].as_array().expect("a list").len(), 2, "an operator may look");
    let key = format!("Bearer {}", rig.key("globex/Admin"));
    let request = Request::get("/v1/vms").header("authorization", key);
    let request = request.header("lanekeeper-organization", "acme").body(Body::empty());
    let answer = rig.send(request.expect("a request")).await;
    assert_eq!(answer.status.as_u16(), 404, "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_good_until_it_is_revoked_and_makes_none_that_may_do_more() {
    let rig = Rig::new().await;
    let spec = json!({"name": "ci", "role": "member"});
    let made = rig.call("acme/Admin", Method::POST, "/v1/api-keys", Some(&spec)).await.expect(201);
    let secret = made["secret"].as_str().expect("a secret").to_owned();
    let use_it = async || {
        let request = Request::get("/v1/whoami").header("api_key", &secret).body(Body::empty());
        rig.send(request.expect("a request")).await
    };
    let who = use_it().await.expect(200);
    assert_eq!(
        (who["organization"].as_str(), who["role"].as_str()),
        (Some("acme"), Some("member"))
    );
    let list = rig.call("acme/Admin", Method::GET, "/v1/api-keys", None).await.expect(200);
    assert!(!list.to_string().contains(&secret), "the secret is shown once");
    let path = format!("/v1/api-keys/{}", made["id"]);
    rig.call("acme/Admin", Method::DELETE, &path, None).await.expect(204);
    assert_eq!(use_it().await.status.as_u16(), 401);
    let spec = json!({"name": "more", "role": "operator"});
    let refused = rig.call("acme/Admin", Method::POST, "/v1/api-keys", Some(&spec)).await;
    assert_eq!(refused.status.as_u16(), 403, "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_with_the_same_idempotency_key_is_done_once() {
    let rig = Rig::new().await;
    let body = json!({"name": "lab", "region": "north"});
    let send = async |body: &Value| {
        let request = Request::post("/v1/environments")
            .header("authorization", format!("Bearer {}", rig.key("acme/Member")))
            .header("content-type", "application/json")
            .header("idempotency-key", "k1")
            .body(Body::from(body.to_string()));
        rig.send(request.expect("a request")).await
    };
    let (one, two) = tokio::join!(send(&body), send(&body));
    let (one, two) = (one.expect(201), two.expect(201));
    assert_eq!(one, two);
    assert_eq!(send(&body).await.headers["idempotent-replayed"], "true");
    let other = send(&json!({"name": "other", "region": "north"})).await;
    assert_eq!(other.status.as_u16(), 422);
    let all = rig.acme(Method::GET, "/v1/environments", None).await.expect(200);
    assert_eq!(all["items"].as_array().expect("a list").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_since_it_was_read_is_not_overwritten() {
    let rig = Rig::new().await;
    let environment = rig.environment("lab").await;
    let path = format!("/v1/environments/{environment}");
    let tag = rig.acme(Method::GET, &path, None).await.headers["etag"].clone();
    let rename = async |name: &str| {
        let request = Request::patch(&path)
            .header("authorization", format!("Bearer {}", rig.key("acme/Member")))
            .header("content-type", "application/json")
            .header("if-match", &tag)
            .body(Body::from(json!({"name": name}).to_string()));
        rig.send(request.expect("a request")).await
    };
    rename("one").await.expect(200);
    let refused = rename("two").await;
    assert_eq!(refused.status.as_u16(), 412, "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_changes_something_is_in_the_audit_trail() {
    let rig = Rig::new().await;
    rig.environment("lab").await;
    let refused = json!({"name": "lab", "region": "north"});
    let again = rig.acme(Method::POST, "/v1/environments", Some(&refused)).await;
    assert_eq!(again.status.as_u16(), 409);
    let trail = rig.call("acme/Admin", Method::GET, "/v1/audit", None).await.expect(200);
    let statuses: Vec<u64> = trail["items"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|record| record["action"] == "POST /v1/environments")
        .filter_map(|record| record["status"].as_u64())
        .collect();
    assert_eq!(statuses, [201, 409]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_told_what_is_wrong_with_it() {
    let rig = Rig::new().await;
    let environment = rig.environment("lab").await;
    for (body, status, say) in [
        (json!({"name": "v"}), 422, "missing field"),
        (json!({"name": "v", "color": "red"}), 422, "unknown field `color`"),
        (
            json!({"name": "a b", "environment": environment, "flavor": "small", "image": "guest"}),
            422,
            "it is the VM's host name",
        ),
        (
            json!({"name": "v", "environment": environment, "flavor": "huge", "image": "guest"}),
            404,
            "there is no flavor 'huge'",
        ),
        (
            json!({"name": "v", "environment": environment, "flavor": "small", "image": "guest",
            "networks": [{"network": 1, "vfs": 2}]}),
            422,
            "has 1 VFs",
        ),
    ] {
        let refused = rig.acme(Method::POST, "/v1/vms", Some(&body)).await;
        assert_eq!(refused.status.as_u16(), status, "{body}: {}", refused.body);
        assert!(refused.detail().contains(say), "{body}: {}", refused.body);
        assert_eq!(refused.headers["content-type"], "application/problem+json");
    }
    let odd = rig.acme(Method::GET, "/v1/vms?colour=red", None).await;
    assert_eq!(odd.status.as_u16(), 400, "{}", odd.body);
    let nothing = rig.acme(Method::GET, "/v1/nothing", None).await;
    assert_eq!(nothing.status.as_u16(), 404);
    let method = rig.acme(Method::PUT, "/v1/vms", None).await;
    assert_eq!(method.status.as_u16(), 405, "{}", method.body);
}
