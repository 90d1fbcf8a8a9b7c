//! Firewalls: rules under a name, and the VMs they are for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::access::Caller;
use super::super::problem::Problem;
use super::super::route::{Call, Json, NoPath, NoQuery, Reply, Routes};
use super::fields::RuleFields;
use super::rules::CreateRule;
use super::{About, Answer, Page, Paged, Served, again, delete, found, get, post, served, show};
use crate::cloud::{Cloud, CloudError, status_word};
use crate::resource::{Environment, Firewall, Time, Vm};

pub(super) fn add(routes: &mut Routes) {
    routes
        .about("hyperstack-firewalls")
        .add(get("/v1/core/firewalls", "List firewalls."), list)
        .add(post("/v1/core/firewalls", "Create a firewall."), create)
        .add(get("/v1/core/firewalls/{id}", "Get a firewall."), get_one)
        .add(delete("/v1/core/firewalls/{id}", "Delete a firewall that is for no VM."), delete_one)
        .add(post("/v1/core/firewalls/{id}/firewall-rules", "One more rule."), add_rule)
        .add(
            delete("/v1/core/firewalls/{id}/firewall-rules/{rule}", "Take a rule away."),
            delete_rule,
        )
        .add(
            post("/v1/core/firewalls/{id}/update-attachments", "Say which VMs it is for."),
            update_attachments,
        )
        .add(
            post(
                "/v1/core/virtual-machines/{id}/attach-firewalls",
                "Say which firewalls a VM has.",
            ),
            attach_firewalls,
        );
}

/// An environment, as a firewall shows it.
#[derive(Serialize, JsonSchema)]
struct FirewallEnvironment {
    id: u64,
    name: String,
    region: String,
}

/// A VM, as a firewall shows it.
#[derive(Serialize, JsonSchema)]
struct AttachedVm {
    id: u64,
    name: String,
    environment: String,
    flavor: String,
    status: &'static str,
    created_at: String,
}

/// That a firewall is for a VM.
#[derive(Serialize, JsonSchema)]
struct Attachment {
    /// The VM's id.
    id: u64,
    /// `SUCCESS`.
    status: &'static str,
    vm: AttachedVm,
    created_at: String,
}

/// A firewall.
#[derive(Serialize, JsonSchema)]
struct FirewallFields {
    id: u64,
    name: String,
    description: String,
    /// `SUCCESS`.
    status: &'static str,
    environment: FirewallEnvironment,
    rules: Vec<RuleFields>,
    attachments: Vec<Attachment>,
    created_at: String,
}

#[derive(Serialize, JsonSchema)]
struct OneFirewall {
    #[serde(flatten)]
    served: Served,
    firewall: FirewallFields,
}

#[derive(Serialize, JsonSchema)]
#[expect(clippy::struct_field_names, reason = "named as on the wire")]
struct Firewalls {
    #[serde(flatten)]
    served: Served,
    firewalls: Vec<FirewallFields>,
    count: u64,
    page: Option<u64>,
    page_size: Option<u64>,
}

async fn show_one(cloud: &Cloud, firewall: &Firewall) -> Result<FirewallFields, CloudError> {
    let organization = &firewall.organization;
    let environment = cloud.get::<Environment>(organization, firewall.environment).await?.value;
    let vms = cloud.guarded_by(firewall).await?;
    let attachment = |vm: &Vm| {
        let since = firewall.vms.iter().find(|guarded| guarded.vm == vm.id);
        Attachment {
            id: vm.id,
            status: "SUCCESS",
            vm: AttachedVm {
                id: vm.id,
                name: vm.name.clone(),
                environment: environment.name.clone(),
                flavor: vm.flavor.name.clone(),
                status: status_word(vm.status),
                created_at: vm.created_at.without_zone(),
            },
            created_at: since.map_or(vm.created_at, |guarded| guarded.since).without_zone(),
        }
    };
    Ok(FirewallFields {
        id: firewall.id,
        name: firewall.name.clone(),
        description: firewall.description.clone(),
        status: "SUCCESS",
        attachments: vms.iter().map(|vm| attachment(&vm.value)).collect(),
        rules: firewall.rules.iter().map(|rule| show::rule(rule, firewall.created_at)).collect(),
        created_at: firewall.created_at.without_zone(),
        environment: FirewallEnvironment {
            id: environment.id,
            region: environment.region.to_string(),
            name: environment.name,
        },
    })
}

/// Which firewalls.
#[derive(Deserialize, JsonSchema)]
struct FirewallQuery {
    /// Which page, from 1.
    #[schemars(range(min = 1))]
    page: Option<u64>,
    /// Firewalls of a page, 1 to 1000.
    #[serde(rename = "pageSize")]
    #[schemars(range(min = 1, max = 1000))]
    page_size: Option<u64>,
    /// Only those whose name has this in it, or whose id is this.
    search: Option<String>,
    /// Only those of environments whose name has this in it.
    environment: Option<String>,
}

async fn list(call: Call<Caller, NoPath, FirewallQuery>) -> Answer<Firewalls> {
    let (cloud, organization) = (&call.state.cloud, &call.who.organization);
    let FirewallQuery { page, page_size, search, environment } = call.query;
    let paged = Paged { page, page_size, search };
    let mut all = cloud.all::<Firewall>(organization).await?;
    all.retain(|one| paged.finds(one.value.id, &one.value.name));
    if let Some(name) = environment.filter(|name| !name.is_empty()) {
        let mut meant = cloud.all::<Environment>(organization).await?;
        meant.retain(|one| found(&name, one.value.id, &one.value.name));
        all.retain(|one| meant.iter().any(|of| of.value.id == one.value.environment));
    }
    let Page { items, count, page, page_size } = paged.cut(all)?;
    let mut firewalls = Vec::new();
    for firewall in items {
        firewalls.push(show_one(cloud, &firewall.value).await?);
    }
    let served = served("Firewalls retrieved successfully");
    Ok(Reply::new(Firewalls { served, firewalls, count, page, page_size }))
}

/// A new firewall.
#[derive(Deserialize, JsonSchema)]
struct CreateFirewall {
    /// Name, unique in the organization.
    #[schemars(length(min = 1, max = 50))]
    name: String,
    /// The environment it is to be of, by id.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    environment_id: u64,
    /// What it is for, for people.
    #[schemars(length(max = 500))]
    description: Option<String>,
}

async fn create(call: Call<Caller, NoPath, NoQuery, Json<CreateFirewall>>) -> Answer<OneFirewall> {
    let Json(CreateFirewall { name, environment_id, description }) = call.body;
    let (cloud, organization) = (&call.state.cloud, &call.who.organization);
    let description = description.unwrap_or_default();
    let made = again(|| {
        cloud.create_firewall(organization, environment_id, name.clone(), description.clone())
    });
    let firewall = show_one(cloud, &made.await?).await?;
    Ok(Reply::new(OneFirewall { served: served("Firewall created successfully"), firewall }))
}

async fn get_one(call: About) -> Answer<OneFirewall> {
    let cloud = &call.state.cloud;
    let found = cloud.get::<Firewall>(&call.who.organization, call.path.id).await?;
    let firewall = show_one(cloud, &found.value).await?;
    Ok(Reply::new(OneFirewall { served: served("Firewall retrieved successfully"), firewall }))
}

async fn delete_one(call: About) -> Answer<Served> {
    let cloud = &call.state.cloud;
    again(|| async {
        let was = cloud.get::<Firewall>(&call.who.organization, call.path.id).await?;
        cloud.delete_firewall(&was).await
    })
    .await?;
    Ok(Reply::new(served("Firewall deleted successfully")))
}

#[derive(Serialize, JsonSchema)]
struct OneFirewallRule {
    #[serde(flatten)]
    served: Served,
    firewall_rule: RuleFields,
}

async fn add_rule(call: About<NoQuery, Json<CreateRule>>) -> Answer<OneFirewallRule> {
    let cloud = &call.state.cloud;
    let Json(body) = call.body;
    let rule = body.read()?;
    let made = again(|| async {
        let was = cloud.get::<Firewall>(&call.who.organization, call.path.id).await?;
        cloud.add_firewall_rule(&was, rule.clone()).await
    });
    Ok(Reply::new(OneFirewallRule {
        served: served("Firewall rule added successfully"),
        firewall_rule: show::rule(&made.await?, Time::now()),
    }))
}

/// A rule of a firewall.
#[derive(Deserialize, JsonSchema)]
struct RuleOf {
    /// The firewall's id.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    id: u64,
    /// The rule's id within it.
    rule: u64,
}

async fn delete_rule(call: Call<Caller, RuleOf>) -> Answer<Served> {
    let cloud = &call.state.cloud;
    again(|| async {
        let was = cloud.get::<Firewall>(&call.who.organization, call.path.id).await?;
        cloud.delete_firewall_rule(&was, call.path.rule).await
    })
    .await?;
    Ok(Reply::new(served("Firewall rule deleted successfully")))
}

/// VMs.
#[derive(Deserialize, JsonSchema)]
struct Vms {
    /// All it is to be for, by id.
    #[schemars(length(max = 1000))]
    vms: Vec<u64>,
}

async fn update_attachments(call: About<NoQuery, Json<Vms>>) -> Answer<Served> {
    let cloud = &call.state.cloud;
    let Json(Vms { vms }) = call.body;
    again(|| async {
        let was = cloud.get::<Firewall>(&call.who.organization, call.path.id).await?;
        cloud.attach_firewall(&was, &vms).await
    })
    .await?;
    Ok(Reply::new(served("Firewall attachments updated successfully")))
}

/// Firewalls.
#[derive(Deserialize, JsonSchema)]
struct Wanted {
    /// All that the VM is to have, by id.
    #[schemars(length(max = 64))]
    firewalls: Vec<u64>,
}

async fn attach_firewalls(call: About<NoQuery, Json<Wanted>>) -> Answer<Served> {
    let cloud = &call.state.cloud;
    let Json(Wanted { firewalls }) = call.body;
    if firewalls.len() > 64 {
        let detail = format!("{} firewalls: a VM has at most 64", firewalls.len());
        return Err(Problem::invalid(detail));
    }
    again(|| async {
        let vm = cloud.get::<Vm>(&call.who.organization, call.path.id).await?;
        cloud.set_firewalls_of(&vm.value, &firewalls).await
    })
    .await?;
    Ok(Reply::new(served("Firewalls attached successfully")))
}
