//! Key pairs: public keys of tenants.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::access::Caller;
use super::super::route::{Call, Json, NoPath, NoQuery, Reply, Routes};
use super::fields::KeypairFields;
use super::{About, Answer, Page, Paged, Served, again, delete, get, post, put, served, show};
use crate::cloud::Cloud;
use crate::keys::OrgName;
use crate::resource::{Environment, Keypair, KeypairSpec};

/// Types of keys that OpenSSH knows and that are taken.
const KEY_TYPES: &[&str] = &[
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
];

pub(super) fn add(routes: &mut Routes) {
    routes
        .about("hyperstack-keypairs")
        .add(get("/v1/core/keypairs", "List key pairs."), list)
        .add(post("/v1/core/keypairs", "Import a public key."), import)
        .add(put("/v1/core/keypair/{id}", "Rename a key pair."), rename)
        .add(delete("/v1/core/keypair/{id}", "Delete a key pair."), delete_one)
        .add(get("/v1/core/supported-keypairs", "Types of keys that are taken."), supported);
}

#[derive(Serialize, JsonSchema)]
#[expect(clippy::struct_field_names, reason = "named as on the wire")]
struct Keypairs {
    #[serde(flatten)]
    served: Served,
    keypairs: Vec<KeypairFields>,
    count: u64,
    page: Option<u64>,
    page_size: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct OneKeypair {
    #[serde(flatten)]
    served: Served,
    keypair: KeypairFields,
}

async fn one(
    cloud: &Cloud,
    organization: &OrgName,
    keypair: &Keypair,
    message: &str,
) -> Answer<OneKeypair> {
    let environment = cloud.get(organization, keypair.environment).await?;
    let keypair = show::keypair(keypair, &environment.value);
    Ok(Reply::new(OneKeypair { served: served(message), keypair }))
}

async fn list(call: Call<Caller, NoPath, Paged>) -> Answer<Keypairs> {
    let (cloud, organization) = (&call.state.cloud, &call.who.organization);
    let mut all = cloud.all::<Keypair>(organization).await?;
    all.retain(|one| call.query.finds(one.value.id, &one.value.name));
    let Page { items, count, page, page_size } = call.query.cut(all)?;
    let environments = cloud.all::<Environment>(organization).await?;
    let of = |keypair: &Keypair| {
        let found = environments.iter().find(|one| one.value.id == keypair.environment)?;
        Some(show::keypair(keypair, &found.value))
    };
    Ok(Reply::new(Keypairs {
        served: served("Key pairs retrieved successfully"),
        keypairs: items.iter().filter_map(|one| of(&one.value)).collect(),
        count,
        page,
        page_size,
    }))
}

/// A new key pair.
#[derive(Deserialize, JsonSchema)]
struct ImportKeypair {
    /// Name, unique in the organization.
    #[schemars(length(min = 1, max = 50))]
    name: String,
    /// The environment it is to be of, by name.
    environment_name: String,
    /// The key, as a line of OpenSSH's `authorized_keys`.
    public_key: String,
}

async fn import(call: Call<Caller, NoPath, NoQuery, Json<ImportKeypair>>) -> Answer<OneKeypair> {
    let Json(ImportKeypair { name, environment_name, public_key }) = call.body;
    let (cloud, organization) = (&call.state.cloud, &call.who.organization);
    let made = again(|| async {
        let environment = cloud.named::<Environment>(organization, &environment_name).await?;
        let (name, public_key) = (name.clone(), public_key.clone());
        let spec = KeypairSpec { name, environment: environment.value.id, public_key };
        cloud.create_keypair(organization, spec, None).await
    });
    one(cloud, organization, &made.await?, "Key pair imported successfully").await
}

/// Another name.
#[derive(Deserialize, JsonSchema)]
struct UpdateKeypair {
    /// It.
    #[schemars(length(min = 1, max = 50))]
    name: String,
}

async fn rename(call: About<NoQuery, Json<UpdateKeypair>>) -> Answer<OneKeypair> {
    let Json(UpdateKeypair { name }) = call.body;
    let (cloud, organization) = (&call.state.cloud, &call.who.organization);
    let now = again(|| async {
        let was = cloud.get::<Keypair>(organization, call.path.id).await?;
        cloud.rename_keypair(&was, name.clone()).await
    });
    one(cloud, organization, &now.await?, "Key pair updated successfully").await
}

async fn delete_one(call: About) -> Answer<Served> {
    let cloud = &call.state.cloud;
    again(|| async {
        let was = cloud.get::<Keypair>(&call.who.organization, call.path.id).await?;
        cloud.delete_keypair(&was).await
    })
    .await?;
    Ok(Reply::new(served("Key pair deleted successfully")))
}

#[derive(Serialize, JsonSchema)]
struct Supported {
    #[serde(flatten)]
    served: Served,
    supported_key_types: Vec<&'static str>,
}

async fn supported(_: Call<Caller>) -> Answer<Supported> {
    let supported_key_types = KEY_TYPES.to_vec();
    Ok(Reply::new(Supported {
        served: served("Key types retrieved successfully"),
        supported_key_types,
    }))
}
