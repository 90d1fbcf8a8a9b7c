//! The public SDKs, unchanged, over HTTPS against a server whose one host is a fake agent's. That VMs
//! really boot is tested with the same scripts where there are hosts.

use std::process::Stdio;

use lanekeeper_control::api::Rates;
use lanekeeper_control::resource::Role;
use lanekeeper_testbed::guest_image;
use lanekeeper_testbed::sdk::{Sdk, Target};

use crate::served::serve;
use crate::world;

async fn a_life(sdk: Sdk) {
    let served = serve("acme", Role::Member, Rates::default()).await;
    let ended = tokio::task::spawn_blocking(move || {
        let cache = guest_image::cache_folder();
        let installed = sdk.install(&cache, &mut |what| println!("{what}")).expect("the SDK");
        let target = Target {
            url: &format!("{}/v1", served.url),
            key: &served.key,
            authority: &served.authority,
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
