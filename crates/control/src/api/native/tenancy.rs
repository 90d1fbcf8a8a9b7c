//! Organizations, API keys, quotas, environments, events, the audit trail and usage.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::access::Caller;
use super::super::problem::Problem;
use super::super::route::{Call, Json, NoBody, NoPath, NoQuery, Nothing, Reply, Route, Routes};
use super::{ById, CREATED, DONE, PageQuery, offered, own, tenant_kind};
use crate::placement::Quota;
use crate::resource::{
    ApiKey, ApiKeySpec, AuditRecord, Environment, EnvironmentSpec, Event, Organization,
    OrganizationSpec, QuotaView, Role, UsageRecord, Vm,
};

pub(super) fn add(routes: &mut Routes) {
    routes
        .about("organizations")
        .add(
            Route::get("/v1/organizations", "All organizations, in pages.").role(Role::Operator),
            super::list_global::<Organization>,
        )
        .add(
            Route::get("/v1/organizations/{id}", "One of them.").role(Role::Operator),
            super::get_global::<Organization>,
        )
        .add(
            Route::post("/v1/organizations", "A new organization.")
                .role(Role::Operator)
                .status(CREATED),
            create_organization,
        )
        .add(
            Route::delete("/v1/organizations/{id}", "Delete one that has nothing left.")
                .role(Role::Operator)
                .status(DONE),
            delete_organization,
        )
        .add(
            Route::get("/v1/organizations/{id}/quota", "What it may use, and uses.")
                .role(Role::Operator),
            quota_of,
        )
        .add(
            Route::put("/v1/organizations/{id}/quota", "Say what it may use.").role(Role::Operator),
            set_quota,
        )
        .add(Route::get("/v1/quota", "What the organization may use, and uses."), quota);
    routes
        .about("api-keys")
        .add(
            Route::get("/v1/api-keys", "All of the organization's, without their secrets.")
                .role(Role::Admin),
            super::list::<ApiKey>,
        )
        .add(
            Route::get("/v1/api-keys/{id}", "One of them.").role(Role::Admin),
            super::get::<ApiKey>,
        )
        .add(
            Route::post("/v1/api-keys", "A new API key; its secret is shown this once.")
                .role(Role::Admin)
                .status(CREATED),
            create_key,
        )
        .add(
            Route::delete("/v1/api-keys/{id}", "Revoke an API key, from now on.")
                .role(Role::Admin)
                .status(DONE),
            delete_key,
        );
    tenant_kind::<Environment>(
        routes.about("environments"),
        "/v1/environments",
        "/v1/environments/{id}",
    );
    routes
        .add(
            Route::post("/v1/environments", "A new environment, with a network.").status(CREATED),
            create_environment,
        )
        .add(Route::patch("/v1/environments/{id}", "Give it another name."), rename_environment)
        .add(
            Route::delete("/v1/environments/{id}", "Delete it, with its networks and key pairs.")
                .status(DONE),
            delete_environment,
        );
    tenant_kind::<Event>(routes.about("events"), "/v1/events", "/v1/events/{id}");
    routes.about("audit").add(
        Route::get("/v1/audit", "Who changed something, or tried to.").role(Role::Admin),
        super::list::<AuditRecord>,
    );
    routes
        .about("usage")
        .add(Route::get("/v1/usage-records", "What VMs had, and for how long."), usage);
}

async fn create_organization(
    call: Call<Caller, NoPath, NoQuery, Json<OrganizationSpec>>,
) -> Result<Reply<Organization>, Problem> {
    let Json(spec) = call.body;
    Ok(Reply::new(call.state.cloud.create_organization(spec, call.once.as_ref()).await?))
}

async fn delete_organization(call: Call<Caller, ById>) -> Result<Nothing, Problem> {
    let was = offered::<Organization, _, _>(&call).await?;
    call.state.cloud.delete_organization(&was).await?;
    Ok(Nothing)
}

async fn quota_of(call: Call<Caller, ById>) -> Result<Reply<QuotaView>, Problem> {
    let organization = offered::<Organization, _, _>(&call).await?;
    Ok(Reply::new(call.state.cloud.quota(&organization.value.name).await?))
}

async fn set_quota(
    call: Call<Caller, ById, NoQuery, Json<Quota>>,
) -> Result<Reply<QuotaView>, Problem> {
    let organization = offered::<Organization, _, _>(&call).await?;
    let Json(limits) = call.body;
    Ok(Reply::new(call.state.cloud.set_quota(&organization.value.name, limits).await?))
}

async fn quota(call: Call<Caller>) -> Result<Reply<QuotaView>, Problem> {
    Ok(Reply::new(call.state.cloud.quota(&call.who.organization).await?))
}

/// An API key with its secret.
#[derive(Serialize, JsonSchema)]
struct NewKey {
    /// The key.
    #[serde(flatten)]
    key: ApiKey,
    /// Its text, to be sent with every call. It is not shown again.
    secret: String,
}

async fn create_key(
    call: Call<Caller, NoPath, NoQuery, Json<ApiKeySpec>>,
) -> Result<Reply<NewKey>, Problem> {
    let Json(spec) = call.body;
    let Caller { organization, role, .. } = &call.who;
    let (key, secret) = call.state.cloud.create_key(organization, spec, *role).await?;
    Ok(Reply::new(NewKey { key, secret: secret.reveal().to_owned() }))
}

async fn delete_key(call: Call<Caller, ById>) -> Result<Nothing, Problem> {
    let was = own::<ApiKey, _, _>(&call).await?;
    if was.value.role > call.who.role {
        let why =
            "a key that may do more than yours can be revoked only by one that may do as much";
        return Err(Problem::forbidden(why));
    }
    call.state.cloud.delete_key(&was).await?;
    Ok(Nothing)
}

async fn create_environment(
    call: Call<Caller, NoPath, NoQuery, Json<EnvironmentSpec>>,
) -> Result<Reply<Environment>, Problem> {
    let Json(spec) = call.body;
    let (cloud, once) = (&call.state.cloud, call.once.as_ref());
    Ok(Reply::new(cloud.create_environment(&call.who.organization, spec, once).await?))
}

/// Another name.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rename {
    /// It.
    #[schemars(length(min = 1, max = 50))]
    name: String,
}

async fn rename_environment(
    call: Call<Caller, ById, NoQuery, Json<Rename>>,
) -> Result<Reply<Environment>, Problem> {
    let was = own::<Environment, _, _>(&call).await?;
    let Json(Rename { name }) = call.body;
    Ok(Reply::new(call.state.cloud.rename_environment(&was, name).await?))
}

async fn delete_environment(call: Call<Caller, ById>) -> Result<Nothing, Problem> {
    let was = own::<Environment, _, _>(&call).await?;
    call.state.cloud.delete_environment(&was).await?;
    Ok(Nothing)
}

async fn usage(
    call: Call<Caller, NoPath, PageQuery, NoBody>,
) -> Result<Reply<super::Page<UsageRecord>>, Problem> {
    let listed = call.state.cloud.list(&call.who.organization, call.query.ask()).await?;
    let mut page = super::Page::<UsageRecord>::of(listed);
    for usage in &mut page.items {
        usage.reckon();
        // What its host has told is added to the record when the VM ends.
        if usage.to.is_none()
            && let Ok(vm) = call.state.cloud.get::<Vm>(&call.who.organization, usage.vm).await
        {
            usage.add(call.state.cloud.traffic_of(&vm.value).await?);
        }
    }
    Ok(Reply::new(page))
}
