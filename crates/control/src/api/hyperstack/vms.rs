//! VMs: made, listed, started, stopped, reset and deleted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::access::Caller;
use super::super::problem::Problem;
use super::super::route::{Call, Json, NoPath, NoQuery, Reply, Routes};
use super::fields::InstanceFields;
use super::rules::CreateRule;
use super::show::Surroundings;
use super::{About, Answer, Availability, ById, ByName, MOST, Page, Paged, Served};
use super::{again, availability, delete, found, get, post, put, served};
use crate::cloud::{Cloud, CloudError, Stored};
use crate::keys::OrgName;
use crate::resource::{Environment, Event, Firewall, Organization, Resource, Severity, Vm, VmSpec};

/// Most VMs of one call.
const MOST_VMS: i64 = 100;

pub(super) fn add(routes: &mut Routes) {
    routes
        .about("hyperstack-virtual-machines")
        .add(get("/v1/core/virtual-machines", "List VMs, oldest first."), list)
        .add(post("/v1/core/virtual-machines", "Create VMs."), create)
        .add(get("/v1/core/virtual-machines/{id}", "Get a VM."), get_one)
        .add(delete("/v1/core/virtual-machines/{id}", "Delete a VM."), delete_one)
        .add(get("/v1/core/virtual-machines/{id}/start", "Start a VM.").changing(), start)
        .add(get("/v1/core/virtual-machines/{id}/stop", "Stop a VM.").changing(), stop)
        .add(
            get("/v1/core/virtual-machines/{id}/hard-reboot", "Reset a VM.").changing(),
            hard_reboot,
        )
        .add(put("/v1/core/virtual-machines/{id}/label", "Give a VM other labels."), label)
        .add(get("/v1/core/virtual-machines/{id}/events", "What happened to a VM."), events)
        .add(
            get("/v1/core/virtual-machines/name-availability/{name}", "Whether a name is free."),
            name_availability,
        );
}

/// Which VMs.
#[derive(Deserialize, JsonSchema)]
struct VmQuery {
    /// Which page, from 1; the first if not said.
    #[schemars(range(min = 1))]
    page: Option<u64>,
    /// VMs of a page, 1 to 1000; 10 if not said.
    #[serde(rename = "pageSize")]
    #[schemars(range(min = 1, max = 1000))]
    page_size: Option<u64>,
    /// Only those whose name has this in it, or whose id is this.
    search: Option<String>,
    /// Only those of environments whose name has this in it.
    environment: Option<String>,
    /// Only those that none of these firewalls is for: ids, with commas between.
    exclude_firewalls: Option<String>,
    /// Whether the environment's name is to be just that.
    exact_environment_match: Option<bool>,
}

#[derive(Serialize, JsonSchema)]
#[expect(clippy::struct_field_names, reason = "named as on the wire")]
struct Instances {
    #[serde(flatten)]
    served: Served,
    page: u64,
    page_size: u64,
    count: u64,
    instances: Vec<InstanceFields>,
}

#[derive(Serialize, JsonSchema)]
struct SomeInstances {
    #[serde(flatten)]
    served: Served,
    instances: Vec<InstanceFields>,
}

#[derive(Serialize, JsonSchema)]
struct OneInstance {
    #[serde(flatten)]
    served: Served,
    instance: InstanceFields,
}

async fn show(
    cloud: &Cloud,
    organization: &OrgName,
    vms: &[Vm],
) -> Result<Vec<InstanceFields>, CloudError> {
    let around = Surroundings::of(cloud, organization, vms).await?;
    Ok(vms.iter().map(|vm| around.instance(vm)).collect())
}

async fn list(call: Call<Caller, NoPath, VmQuery>) -> Answer<Instances> {
    let (cloud, organization, query) = (&call.state.cloud, &call.who.organization, &call.query);
    let mut all = cloud.all::<Vm>(organization).await?;
    if let Some(text) = query.search.as_deref().filter(|text| !text.is_empty()) {
        all.retain(|vm| found(text, vm.value.id, &vm.value.name));
    }
    if let Some(name) = query.environment.as_deref().filter(|name| !name.is_empty()) {
        let exact = query.exact_environment_match == Some(true);
        let mut meant = cloud.all::<Environment>(organization).await?;
        meant.retain(|one| {
            if exact { one.value.name == name } else { found(name, one.value.id, &one.value.name) }
        });
        all.retain(|vm| meant.iter().any(|one| one.value.id == vm.value.environment));
    }
    if let Some(ids) = query.exclude_firewalls.as_deref().filter(|ids| !ids.is_empty()) {
        let guarded = guarded(cloud, organization, ids).await?;
        all.retain(|vm| !guarded.contains(&vm.value.id));
    }
    let (page, page_size) = (query.page.unwrap_or(1), query.page_size.unwrap_or(10));
    let paged = Paged { page: Some(page), page_size: Some(page_size), search: None };
    let Page { items, count, .. } = paged.cut(all)?;
    let vms: Vec<Vm> = items.into_iter().map(|stored| stored.value).collect();
    Ok(Reply::new(Instances {
        served: served("Virtual machines retrieved successfully"),
        page,
        page_size,
        count,
        instances: show(cloud, organization, &vms).await?,
    }))
}

/// VMs that one of these firewalls is for.
async fn guarded(cloud: &Cloud, organization: &OrgName, ids: &str) -> Result<Vec<u64>, Problem> {
    let ids: Vec<u64> =
        ids.split(',').map(|id| id.trim().parse()).collect::<Result<_, _>>().map_err(|_| {
            let detail = format!("exclude_firewalls '{ids}': use ids with commas between, as 7,12");
            Problem::bad_request(detail)
        })?;
    let mut firewalls = cloud.all::<Firewall>(organization).await?;
    firewalls.retain(|firewall| ids.contains(&firewall.value.id));
    Ok(firewalls.iter().flat_map(|one| one.value.vms.iter().map(|guarded| guarded.vm)).collect())
}

/// New VMs.
#[derive(Deserialize, JsonSchema)]
struct CreateInstances {
    /// Name; of several VMs, what `-1`, `-2` and so on is put behind.
    #[schemars(length(min = 1, max = 50))]
    name: String,
    /// The environment, by name.
    environment_name: String,
    /// The flavor, by name.
    flavor_name: String,
    /// The image, by name.
    image_name: Option<String>,
    /// The key pair that may log in, by name.
    key_name: String,
    /// How many.
    #[schemars(range(min = 1, max = 100))]
    count: i64,
    /// cloud-init's user data, as text.
    user_data: Option<String>,
    /// What may come and go: only rules that let everything pass, since a VF enforces none.
    security_rules: Option<Vec<CreateRule>>,
    /// Labels.
    labels: Option<Vec<String>>,
    /// Refused if true: there are no floating IPs.
    assign_floating_ip: Option<bool>,
    /// Refused if true: there are no volumes.
    create_bootable_volume: Option<bool>,
    /// Refused: there are no volumes.
    volume_name: Option<String>,
    /// Refused: nobody is called back.
    callback_url: Option<String>,
    /// Refused: a flavor is chosen by its name.
    flavor: Option<Value>,
    /// Refused: there are no profiles.
    profile: Option<Value>,
    /// Refused if true: nothing in the guest is measured.
    enhanced_monitoring_enabled: Option<bool>,
}

impl CreateInstances {
    /// What of it there is not here. It is refused rather than forgotten.
    fn check_possible(&self) -> Result<(), CloudError> {
        let text = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let object = |value: &Option<Value>| {
            value.as_ref().and_then(Value::as_object).is_some_and(|object| !object.is_empty())
        };
        let asked = [
            (
                self.assign_floating_ip == Some(true),
                "assign_floating_ip",
                super::refused::FLOATING_IP,
            ),
            (
                self.create_bootable_volume == Some(true),
                "create_bootable_volume",
                super::refused::VOLUMES,
            ),
            (text(&self.volume_name), "volume_name", super::refused::VOLUMES),
            (text(&self.callback_url), "callback_url", super::refused::CALLBACKS),
            (object(&self.profile), "profile", super::refused::PROFILES),
            (
                object(&self.flavor),
                "flavor",
                "flavors are the operator's; choose one by flavor_name",
            ),
            (
                self.enhanced_monitoring_enabled == Some(true),
                "enhanced_monitoring_enabled",
                super::refused::METRICS,
            ),
        ];
        match asked.into_iter().find(|(asked, ..)| *asked) {
            None => Ok(()),
            Some((_, field, why)) => Err(CloudError::invalid(field, "as it is asked for", why)),
        }
    }

    fn names(&self) -> Result<Vec<String>, CloudError> {
        match self.count {
            1 => Ok(vec![self.name.clone()]),
            // As OpenStack calls VMs of one request (nova, `multi_instance_name_template`).
            2..=MOST_VMS => Ok((1..=self.count).map(|n| format!("{}-{n}", self.name)).collect()),
            count => {
                let why = format!("use 1 to {MOST_VMS}");
                Err(CloudError::invalid("count", count.to_string(), why))
            }
        }
    }
}

async fn create(
    call: Call<Caller, NoPath, NoQuery, Json<CreateInstances>>,
) -> Answer<SomeInstances> {
    let Json(body) = call.body;
    let (cloud, organization) = (&call.state.cloud, &call.who.organization);
    body.check_possible()?;
    let names = body.names()?;
    let image = body.image_name.filter(|name| !name.is_empty()).ok_or_else(|| {
        CloudError::invalid("image_name", "", "name an image: VMs boot from nothing else here")
    })?;
    let rules = body.security_rules.unwrap_or_default();
    let environment = cloud.named::<Environment>(organization, &body.environment_name).await?;
    let spec = VmSpec {
        name: body.name,
        environment: environment.value.id,
        flavor: body.flavor_name,
        image,
        keypair: Some(body.key_name),
        networks: Vec::new(),
        security_rules: rules.into_iter().map(CreateRule::read).collect::<Result<_, _>>()?,
        user_data: body.user_data.filter(|data| !data.is_empty()),
        labels: body.labels.unwrap_or_default(),
    };
    let made = again(|| cloud.create_vms(organization, spec.clone(), &names)).await?;
    Ok(Reply::new(SomeInstances {
        served: served("Virtual machines are being created"),
        instances: show(cloud, organization, &made).await?,
    }))
}

async fn get_one(call: About) -> Answer<OneInstance> {
    let (cloud, organization) = (&call.state.cloud, &call.who.organization);
    let vm = cloud.get::<Vm>(organization, call.path.id).await?.value;
    let around = Surroundings::of(cloud, organization, std::slice::from_ref(&vm)).await?;
    Ok(Reply::new(OneInstance {
        served: served("Virtual machine retrieved successfully"),
        instance: around.instance(&vm),
    }))
}

async fn found_vm(call: &About) -> Result<Stored<Vm>, CloudError> {
    call.state.cloud.get::<Vm>(&call.who.organization, call.path.id).await
}

async fn delete_one(call: About) -> Answer<Served> {
    again(|| async { call.state.cloud.delete_vm(&found_vm(&call).await?).await }).await?;
    Ok(Reply::new(served("Virtual machine is being deleted")))
}

async fn start(call: About) -> Answer<Served> {
    again(|| async { call.state.cloud.start_vm(&found_vm(&call).await?).await }).await?;
    Ok(Reply::new(served("Virtual machine is being started")))
}

async fn stop(call: About) -> Answer<Served> {
    again(|| async { call.state.cloud.stop_vm(&found_vm(&call).await?).await }).await?;
    Ok(Reply::new(served("Virtual machine is being stopped")))
}

async fn hard_reboot(call: About) -> Answer<Served> {
    again(|| async { call.state.cloud.reboot_vm(&found_vm(&call).await?).await }).await?;
    Ok(Reply::new(served("Virtual machine is being rebooted")))
}

/// Labels.
#[derive(Deserialize, JsonSchema)]
struct Labels {
    /// All it is to have.
    labels: Option<Vec<String>>,
}

async fn label(call: About<NoQuery, Json<Labels>>) -> Answer<Served> {
    let cloud = &call.state.cloud;
    let Json(Labels { labels }) = call.body;
    let labels = labels.unwrap_or_default();
    again(|| async {
        let was = cloud.get::<Vm>(&call.who.organization, call.path.id).await?;
        cloud.label_vm(&was, labels.clone()).await
    })
    .await?;
    Ok(Reply::new(served("Labels updated successfully")))
}

/// Something that happened to a VM.
#[derive(Serialize, JsonSchema)]
struct InstanceEvent {
    instance_id: u64,
    org_id: u64,
    /// `virtual-machine`.
    object: &'static str,
    /// What happened, in a word.
    reason: String,
    /// What happened, in a sentence.
    message: String,
    /// `info`, `warning` or `error`.
    #[serde(rename = "type")]
    kind: Severity,
    time: String,
}

#[derive(Serialize, JsonSchema)]
struct InstanceEvents {
    #[serde(flatten)]
    served: Served,
    instance_events: Vec<InstanceEvent>,
}

async fn events(call: About) -> Answer<InstanceEvents> {
    let (cloud, organization) = (&call.state.cloud, &call.who.organization);
    let ById { id } = call.path;
    cloud.get::<Vm>(organization, id).await?;
    let org_id = cloud.named_global::<Organization>(organization.as_str()).await?.value.id;
    let mut all = cloud.all::<Event>(organization).await?;
    all.retain(|event| event.value.kind == Vm::KIND && event.value.resource == id);
    let newest = all.len().saturating_sub(MOST as usize);
    let show = |event: Event| InstanceEvent {
        instance_id: id,
        org_id,
        object: "virtual-machine",
        reason: event.reason,
        message: event.message,
        kind: event.severity,
        time: event.at.without_zone(),
    };
    Ok(Reply::new(InstanceEvents {
        served: served("Events retrieved successfully"),
        instance_events: all.into_iter().skip(newest).map(|event| show(event.value)).collect(),
    }))
}

async fn name_availability(call: Call<Caller, ByName>) -> Answer<Availability> {
    let name = call.path.name;
    let vms = call.state.cloud.all::<Vm>(&call.who.organization).await?;
    let taken = vms.iter().any(|vm| vm.value.name == name);
    Ok(availability(name, !taken))
}
