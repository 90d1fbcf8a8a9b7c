//! A small cloud behind a port, whose one host is a fake agent's: what is tested from outside.

use std::future;
use std::path::PathBuf;
use std::sync::Arc;

use lanekeeper_control::api::Rates;
use lanekeeper_control::keys::ServerName;
use lanekeeper_control::resource::Role;
use lanekeeper_control::server::{Config, Server, StoreConfig};

use crate::{agent, world};

/// A server, for as long as the test's runtime.
pub(crate) struct Served {
    /// Its address, as `https://127.0.0.1:8443`.
    pub(crate) url: String,
    /// The certificate of its authority, as a PEM file.
    pub(crate) authority: PathBuf,
    /// The key of somebody who calls it.
    pub(crate) key: String,
    pub(crate) folder: tempfile::TempDir,
}

/// Serve, to somebody of an organization.
pub(crate) async fn serve(organization: &str, role: Role, rates: Rates) -> Served {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(Config {
        data: folder.path().to_owned(),
        listen: "127.0.0.1:0".parse().expect("an address"),
        names: vec!["127.0.0.1".to_owned()],
        certificate: None,
        store: StoreConfig::Embedded,
        name: ServerName::new("server").expect("a name"),
        rates,
    })
    .await
    .expect("a server");
    let cloud = Arc::clone(server.cloud());
    world::furnish(&cloud).await;
    let key = world::key(&cloud, organization, role).await;
    let url = format!("https://{}", server.address());
    let authority = folder.path().join("authority-to-trust.pem");
    std::fs::write(&authority, server.authority()).expect("the authority's certificate");
    tokio::spawn(server.run(future::pending()));
    tokio::spawn(agent::run(cloud, world::region(), world::host()));
    Served { url, authority, key, folder }
}
