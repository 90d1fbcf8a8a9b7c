//! Environments.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::access::Caller;
use super::super::route::{Call, Json, NoPath, NoQuery, Reply, Routes};
use super::fields::EnvironmentFields;
use super::{About, Answer, Availability, ByName, Page, Paged, Served, again, availability};
use super::{delete, get, post, put, served, show};
use crate::cloud::CloudError;
use crate::keys::RegionName;
use crate::resource::{Environment, EnvironmentSpec, Port, Vm};

/// Longest name, in characters.
const LONGEST_NAME: usize = 50;

pub(super) fn add(routes: &mut Routes) {
    routes
        .about("hyperstack-environments")
        .add(get("/v1/core/environments", "List environments."), list)
        .add(post("/v1/core/environments", "Create an environment."), create)
        .add(get("/v1/core/environments/{id}", "Get an environment."), get_one)
        .add(put("/v1/core/environments/{id}", "Rename an environment."), rename)
        .add(delete("/v1/core/environments/{id}", "Delete an environment without VMs."), delete_one)
        .add(get("/v1/core/environments/{id}/vm-quota", "How many more VMs there can be."), quota)
        .add(
            get("/v1/core/environments/name-availability/{name}", "Whether a name is free."),
            name_availability,
        );
}

#[derive(Serialize, JsonSchema)]
#[expect(clippy::struct_field_names, reason = "named as on the wire")]
struct Environments {
    #[serde(flatten)]
    served: Served,
    environments: Vec<EnvironmentFields>,
    count: u64,
    page: Option<u64>,
    page_size: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct OneEnvironment {
    #[serde(flatten)]
    served: Served,
    environment: EnvironmentFields,
}

fn one(environment: &Environment, message: &str) -> Reply<OneEnvironment> {
    let environment = show::environment(environment);
    Reply::new(OneEnvironment { served: served(message), environment })
}

async fn list(call: Call<Caller, NoPath, Paged>) -> Answer<Environments> {
    let mut all = call.state.cloud.all::<Environment>(&call.who.organization).await?;
    all.retain(|one| call.query.finds(one.value.id, &one.value.name));
    let Page { items, count, page, page_size } = call.query.cut(all)?;
    Ok(Reply::new(Environments {
        served: served("Environments retrieved successfully"),
        environments: items.iter().map(|one| show::environment(&one.value)).collect(),
        count,
        page,
        page_size,
    }))
}

/// A new environment.
#[derive(Deserialize, JsonSchema)]
struct CreateEnvironment {
    /// Name, unique in the organization.
    #[schemars(length(min = 1, max = 50))]
    name: String,
    /// The region's name.
    region: String,
}

fn check_name(name: &str) -> Result<(), CloudError> {
    if name.chars().count() <= LONGEST_NAME {
        return Ok(());
    }
    Err(CloudError::invalid("name", name, format!("use at most {LONGEST_NAME} characters")))
}

async fn create(
    call: Call<Caller, NoPath, NoQuery, Json<CreateEnvironment>>,
) -> Answer<OneEnvironment> {
    let Json(CreateEnvironment { name, region }) = call.body;
    check_name(&name)?;
    let region =
        RegionName::new(&region).map_err(|_| CloudError::none("region", &format!("'{region}'")))?;
    let spec = EnvironmentSpec { name, region };
    let made = call.state.cloud.create_environment(&call.who.organization, spec, None).await?;
    Ok(one(&made, "Environment created successfully"))
}

async fn get_one(call: About) -> Answer<OneEnvironment> {
    let found = call.state.cloud.get(&call.who.organization, call.path.id).await?;
    Ok(one(&found.value, "Environment retrieved successfully"))
}

/// Another name.
#[derive(Deserialize, JsonSchema)]
struct UpdateEnvironment {
    /// It.
    #[schemars(length(min = 1, max = 50))]
    name: String,
}

async fn rename(call: About<NoQuery, Json<UpdateEnvironment>>) -> Answer<OneEnvironment> {
    let Json(UpdateEnvironment { name }) = call.body;
    check_name(&name)?;
    let cloud = &call.state.cloud;
    let now = again(|| async {
        let was = cloud.get(&call.who.organization, call.path.id).await?;
        cloud.rename_environment(&was, name.clone()).await
    });
    Ok(one(&now.await?, "Environment updated successfully"))
}

async fn delete_one(call: About) -> Answer<Served> {
    let cloud = &call.state.cloud;
    again(|| async {
        let was = cloud.get(&call.who.organization, call.path.id).await?;
        cloud.delete_environment(&was).await
    })
    .await?;
    Ok(Reply::new(served("Environment deleted successfully")))
}

/// How many VMs there are and can be.
#[derive(Serialize, JsonSchema)]
struct VmQuota {
    #[serde(flatten)]
    served: Served,
    /// Addresses of the network of VMs that name none.
    cidr: String,
    current_vms: u64,
    available_vms: u64,
    max_vms: u64,
    percentage_used: f64,
}

/// VMs with a port each on the environment's own network: as many as it has addresses for, and as the
/// organization's quota allows.
async fn quota(call: About) -> Answer<VmQuota> {
    let (cloud, organization) = (&call.state.cloud, &call.who.organization);
    let environment = cloud.get::<Environment>(organization, call.path.id).await?.value;
    let network = cloud.get(organization, environment.default_network).await?.value;
    let (mut cidrs, mut free) = (Vec::new(), 0_u64);
    let ports = cloud.all::<Port>(organization).await?;
    for subnet in cloud.subnets_of(&network).await? {
        let subnet = subnet.value;
        let stations = (1_u64 << (32 - subnet.cidr.prefix_len())).saturating_sub(2);
        let taken = ports.iter().filter(|port| port.value.subnet == subnet.id).count() as u64
            + u64::from(subnet.gateway.is_some());
        free += stations.saturating_sub(taken);
        cidrs.push(subnet.cidr.to_string());
    }
    let vms = cloud.all::<Vm>(organization).await?;
    let current_vms = vms.iter().filter(|vm| vm.value.environment == environment.id).count() as u64;
    let quota = cloud.quota(organization).await?;
    let allowed = quota.limits.vms.map(|most| most.saturating_sub(quota.used.vms));
    let available_vms = allowed.map_or(free, |allowed| allowed.min(free));
    let max_vms = current_vms + available_vms;
    Ok(Reply::new(VmQuota {
        served: served("VM quota retrieved successfully"),
        cidr: cidrs.join(","),
        current_vms,
        available_vms,
        max_vms,
        percentage_used: if max_vms == 0 {
            100.0
        } else {
            super::show::rounded(current_vms) * 100.0 / super::show::rounded(max_vms)
        },
    }))
}

async fn name_availability(call: Call<Caller, ByName>) -> Answer<Availability> {
    let (name, organization) = (call.path.name, call.who.organization.as_str());
    let taken = call.state.cloud.who_has::<Environment>(organization, &name).await?;
    Ok(availability(name, taken.is_none()))
}
