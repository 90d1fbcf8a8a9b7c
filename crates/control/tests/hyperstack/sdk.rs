//! The public SDKs, unchanged, over HTTPS against a server whose one host is a fake agent's. That VMs
//! really boot is tested with the same scripts where there are hosts.

use std::future;
use std::process::Stdio;
use std::sync::Arc;

use lanekeeper_control::api::Rates;
use lanekeeper_control::keys::ServerName;
use lanekeeper_control::resource::Role;
use lanekeeper_control::server::{Config, Server, StoreConfig};
use lanekeeper_testbed::guest_image;
use lanekeeper_testbed::sdk::{Sdk, Target};

use crate::{agent, world};

async fn a_life(sdk: Sdk) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(Config {
        data: folder.path().to_owned(),
        listen: "127.0.0.1:0".parse().expect("an address"),
        names: vec!["127.0.0.1".to_owned()],
        certificate: None,
        store: StoreConfig::Embedded,
        name: ServerName::new("server").expect("a name"),
        rates: Rates::default(),
    })
    .await
    .expect("a server");
    let cloud = Arc::clone(server.cloud());
    world::furnish(&cloud).await;
    let key = world::key(&cloud, "acme", Role::Member).await;
    let url = format!("https://{}/v1", server.address());
    let authority = folder.path().join("authority-to-trust.pem");
    std::fs::write(&authority, server.authority()).expect("the authority's certificate");
    tokio::spawn(server.run(future::pending()));
    tokio::spawn(agent::run(cloud, world::region(), world::host()));

    let ended = tokio::task::spawn_blocking(move || {
        let cache = guest_image::cache_folder();
        let installed = sdk.install(&cache, &mut |what| println!("{what}")).expect("the SDK");
        let target = Target {
            url: &url,
            key: &key,
            authority: &authority,
            region: world::REGION,
            flavor: world::FLAVOR,
            image: world::IMAGE,
            seconds: 60,
        };
        let mut script = sdk.script(&installed, &target).expect("the script");
        script.stdin(Stdio::null()).output().expect("the script runs")
    })
    .await
    .expect("no panic");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{said}\n{}", String::from_utf8_lossy(&ended.stderr));
    assert!(said.contains("ok: the environment is gone"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_sdk_takes_two_vms_through_their_life() {
    a_life(Sdk::Python).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_javascript_sdk_takes_two_vms_through_their_life() {
    a_life(Sdk::JavaScript).await;
}
