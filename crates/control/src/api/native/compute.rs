//! VMs, groups, key pairs, placement policies and security rules.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::access::Caller;
use super::super::problem::Problem;
use super::super::route::{Call, Json, NoPath, NoQuery, Nothing, Reply, Route, Routes};
use super::{ById, CREATED, DONE, PageQuery, UNDER_WAY, own, tenant_kind};
use crate::resource::{
    Group, GroupSpec, Keypair, KeypairSpec, PolicyResource, PolicySpec, Port, SecurityRule, Vm,
    VmSpec,
};

pub(super) fn add(routes: &mut Routes) {
    tenant_kind::<Keypair>(routes.about("keypairs"), "/v1/keypairs", "/v1/keypairs/{id}");
    routes
        .add(Route::post("/v1/keypairs", "Import a public key.").status(CREATED), create_keypair)
        .add(Route::delete("/v1/keypairs/{id}", "Delete it.").status(DONE), delete_keypair);
    tenant_kind::<PolicyResource>(
        routes.about("placement-policies"),
        "/v1/placement-policies",
        "/v1/placement-policies/{id}",
    );
    routes
        .add(
            Route::post("/v1/placement-policies", "A new placement policy.").status(CREATED),
            create_policy,
        )
        .add(
            Route::delete("/v1/placement-policies/{id}", "Delete it; groups stay as they are.")
                .status(DONE),
            delete_policy,
        );
    routes
        .about("vms")
        .add(Route::get("/v1/vms", "All of the organization's, in pages."), super::list::<Vm>)
        .add(Route::get("/v1/vms/{id}", "One of them, with its ports."), get_vm)
        .add(
            Route::post("/v1/vms", "A new VM; its status tells when it is there.").status(CREATED),
            create_vm,
        )
        .add(
            Route::delete("/v1/vms/{id}", "Delete it; it is gone once its host has said so.")
                .status(UNDER_WAY),
            delete_vm,
        )
        .add(Route::post("/v1/vms/{id}/start", "Start it.").status(UNDER_WAY), start_vm)
        .add(Route::post("/v1/vms/{id}/stop", "Stop it.").status(UNDER_WAY), stop_vm)
        .add(Route::post("/v1/vms/{id}/reboot", "Reset it.").status(UNDER_WAY), reboot_vm)
        .add(Route::put("/v1/vms/{id}/labels", "Give it other labels."), label_vm)
        .add(Route::post("/v1/vms/{id}/security-rules", "One more rule.").status(CREATED), add_rule)
        .add(
            Route::delete("/v1/vms/{id}/security-rules/{rule}", "Take a rule away.").status(DONE),
            delete_rule,
        );
    routes
        .about("groups")
        .add(Route::get("/v1/groups", "All of the organization's, in pages."), list_groups)
        .add(Route::get("/v1/groups/{id}", "One of them, with its VMs."), get_group)
        .add(
            Route::post("/v1/groups", "A new group: VMs placed together, all or none.")
                .status(CREATED),
            create_group,
        )
        .add(
            Route::delete("/v1/groups/{id}", "Delete it with its VMs.").status(UNDER_WAY),
            delete_group,
        );
}

async fn create_keypair(
    call: Call<Caller, NoPath, NoQuery, Json<KeypairSpec>>,
) -> Result<Reply<Keypair>, Problem> {
    let Json(spec) = call.body;
    let (cloud, once) = (&call.state.cloud, call.once.as_ref());
    Ok(Reply::new(cloud.create_keypair(&call.who.organization, spec, once).await?))
}

async fn delete_keypair(call: Call<Caller, ById>) -> Result<Nothing, Problem> {
    let was = own::<Keypair, _, _>(&call).await?;
    call.state.cloud.delete_keypair(&was).await?;
    Ok(Nothing)
}

async fn create_policy(
    call: Call<Caller, NoPath, NoQuery, Json<PolicySpec>>,
) -> Result<Reply<PolicyResource>, Problem> {
    let Json(spec) = call.body;
    let (cloud, once) = (&call.state.cloud, call.once.as_ref());
    Ok(Reply::new(cloud.create_policy(&call.who.organization, spec, once).await?))
}

async fn delete_policy(call: Call<Caller, ById>) -> Result<Nothing, Problem> {
    let was = own::<PolicyResource, _, _>(&call).await?;
    call.state.cloud.delete_policy(&was).await?;
    Ok(Nothing)
}

/// A VM with its ports.
#[derive(Serialize, JsonSchema)]
struct VmView {
    /// It.
    #[serde(flatten)]
    vm: Vm,
    /// Its ports, in the order of its VFs.
    interfaces: Vec<Port>,
}

async fn get_vm(call: Call<Caller, ById>) -> Result<Reply<VmView>, Problem> {
    let stored = own::<Vm, _, _>(&call).await?;
    let ports = call.state.cloud.ports_of(&stored.value).await?;
    let interfaces = ports.into_iter().map(|port| port.value).collect();
    Ok(Reply::tagged(VmView { vm: stored.value, interfaces }, stored.revision))
}

async fn create_vm(
    call: Call<Caller, NoPath, NoQuery, Json<VmSpec>>,
) -> Result<Reply<Vm>, Problem> {
    let Json(spec) = call.body;
    let (cloud, once) = (&call.state.cloud, call.once.as_ref());
    Ok(Reply::new(cloud.create_vm(&call.who.organization, spec, once).await?))
}

async fn delete_vm(call: Call<Caller, ById>) -> Result<Reply<Vm>, Problem> {
    let was = own::<Vm, _, _>(&call).await?;
    Ok(Reply::new(call.state.cloud.delete_vm(&was).await?))
}

async fn start_vm(call: Call<Caller, ById>) -> Result<Reply<Vm>, Problem> {
    let was = own::<Vm, _, _>(&call).await?;
    Ok(Reply::new(call.state.cloud.start_vm(&was).await?))
}

async fn stop_vm(call: Call<Caller, ById>) -> Result<Reply<Vm>, Problem> {
    let was = own::<Vm, _, _>(&call).await?;
    Ok(Reply::new(call.state.cloud.stop_vm(&was).await?))
}

async fn reboot_vm(call: Call<Caller, ById>) -> Result<Reply<Vm>, Problem> {
    let was = own::<Vm, _, _>(&call).await?;
    Ok(Reply::new(call.state.cloud.reboot_vm(&was).await?))
}

/// Labels.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Labels {
    /// All it is to have.
    #[schemars(length(max = 64))]
    labels: Vec<String>,
}

async fn label_vm(call: Call<Caller, ById, NoQuery, Json<Labels>>) -> Result<Reply<Vm>, Problem> {
    let was = own::<Vm, _, _>(&call).await?;
    let Json(Labels { labels }) = call.body;
    Ok(Reply::new(call.state.cloud.label_vm(&was, labels).await?))
}

async fn add_rule(
    call: Call<Caller, ById, NoQuery, Json<SecurityRule>>,
) -> Result<Reply<SecurityRule>, Problem> {
    let was = own::<Vm, _, _>(&call).await?;
    let Json(rule) = call.body;
    Ok(Reply::new(call.state.cloud.add_rule(&was, rule).await?))
}

#[derive(Deserialize, JsonSchema)]
struct RuleOf {
    /// The VM's id.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    id: u64,
    /// The rule's id within it.
    rule: u64,
}

async fn delete_rule(call: Call<Caller, RuleOf>) -> Result<Nothing, Problem> {
    let RuleOf { id, rule } = call.path;
    let cloud = &call.state.cloud;
    let was = cloud.get::<Vm>(&call.who.organization, id).await?;
    cloud.delete_rule(&super::unchanged(&call, was)?, rule).await?;
    Ok(Nothing)
}

async fn list_groups(
    call: Call<Caller, NoPath, PageQuery>,
) -> Result<Reply<super::Page<Group>>, Problem> {
    // A group's name is unique in its environment only.
    let listed = call.state.cloud.list(&call.who.organization, call.query.ask()).await?;
    let mut page = super::Page::<Group>::of(listed);
    if let Some(name) = &call.query.name {
        page.items.retain(|group| group.name == *name);
    }
    Ok(Reply::new(page))
}

/// A group with its VMs.
#[derive(Serialize, JsonSchema)]
struct GroupView {
    /// It.
    #[serde(flatten)]
    group: Group,
    /// Its VMs, by number.
    members: Vec<Vm>,
}

async fn get_group(call: Call<Caller, ById>) -> Result<Reply<GroupView>, Problem> {
    let stored = own::<Group, _, _>(&call).await?;
    let vms = call.state.cloud.vms_of(&stored.value).await?;
    let members = vms.into_iter().map(|vm| vm.value).collect();
    Ok(Reply::tagged(GroupView { group: stored.value, members }, stored.revision))
}

async fn create_group(
    call: Call<Caller, NoPath, NoQuery, Json<GroupSpec>>,
) -> Result<Reply<Group>, Problem> {
    let Json(spec) = call.body;
    let (cloud, once) = (&call.state.cloud, call.once.as_ref());
    Ok(Reply::new(cloud.create_group(&call.who.organization, spec, once).await?))
}

async fn delete_group(call: Call<Caller, ById>) -> Result<Reply<Group>, Problem> {
    let was = own::<Group, _, _>(&call).await?;
    Ok(Reply::new(call.state.cloud.delete_group(&was).await?))
}
