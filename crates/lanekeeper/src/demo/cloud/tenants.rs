//! What an operator and two tenants ask the server's API for, in the order in which people would.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use lanekeeper_client::{Client, Endpoint, Error};
use lanekeeper_control::resource::{HostView, Network, Port, VerificationView, Vm, VmStatus};
use lanekeeper_model::{MacAddr, VfIndex, VlanId};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::DemoError;
use super::super::plan::{HOSTS, MTU};
use super::processes::{FABRIC, ServerAt};

const REGION: &str = "demo";
const FLAVOR: &str = "small";
const IMAGE: &str = "guest";
/// Both tenants' network has these addresses, so that nothing but the network keeps them apart.
const ADDRESSES: &str = "10.10.0.0/24";
/// How long the hosts may take until they are known: an agent looks first what carries guests out.
const HOST_PATIENCE: Duration = Duration::from_secs(60);
/// How long a group may take until it is ACTIVE, or gone.
const GROUP_PATIENCE: Duration = Duration::from_secs(300);
/// How long before one looks again.
const PAUSE: Duration = Duration::from_millis(200);

/// A page of a list.
#[derive(Deserialize)]
struct Page<T> {
    items: Vec<T>,
}

/// Who runs the cloud.
pub(super) struct Operator {
    server: ServerAt,
    client: Client,
}

fn client(server: &ServerAt, key: String) -> Result<Client, DemoError> {
    let endpoint = Endpoint {
        authority_pem: Some(server.authority()?),
        key: Some(key.into()),
        ..Endpoint::new(&server.url)
    };
    Ok(Client::new(&endpoint)?)
}

fn post(client: &Client, path: &str, body: &Value) -> Result<Value, DemoError> {
    Ok(client.post(path, body)?.body)
}

fn get<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, DemoError> {
    Ok(client.get(path)?.body)
}

/// A field of an answer that is text.
fn text(answer: &Value, field: &str) -> Result<String, DemoError> {
    let text = answer[field].as_str().map(str::to_owned);
    text.ok_or_else(|| DemoError::Plan(format!("an answer has no '{field}'")))
}

/// A field of an answer that is an id.
fn id(answer: &Value, field: &str) -> Result<u64, DemoError> {
    let id = answer[field].as_u64();
    id.ok_or_else(|| DemoError::Plan(format!("an answer has no '{field}'")))
}

/// Look until there is something.
fn until<T>(
    what: &str,
    patience: Duration,
    look: impl Fn() -> Result<Option<T>, DemoError>,
) -> Result<T, DemoError> {
    let end = Instant::now() + patience;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() >= end {
            return Err(DemoError::Late { what: what.to_owned(), seconds: patience.as_secs() });
        }
        std::thread::sleep(PAUSE);
    }
}

impl Operator {
    /// Offer a region, a flavor and an image.
    ///
    /// # Errors
    /// [`DemoError::Api`].
    pub(super) fn begin(server: &ServerAt) -> Result<Self, DemoError> {
        let client = client(server, server.operator_key()?)?;
        post(
            &client,
            "/v1/regions",
            &json!({
                "name": REGION, "fabric": FABRIC, "vlans": { "from": 100, "to": 199 },
                "addresses": "10.64.0.0/16", "description": "two emulated hosts"
            }),
        )?;
        post(
            &client,
            "/v1/flavors",
            &json!({
                "name": FLAVOR, "vcpus": 1, "ram_mib": 256, "network_optimised": true,
                "vfs": { "count": 1, "rate_mbps": 1000, "rdma": "software" }
            }),
        )?;
        post(&client, "/v1/images", &json!({ "name": IMAGE, "source": "builtin" }))?;
        Ok(Self { server: server.clone(), client })
    }

    /// A one-time token that makes a machine this host.
    ///
    /// # Errors
    /// [`DemoError::Api`].
    pub(super) fn token(&self, host: &str) -> Result<String, DemoError> {
        let path = format!("/v1/regions/{REGION}/hosts/{host}/token");
        text(&post(&self.client, &path, &Value::Null)?, "token")
    }

    fn hosts(&self) -> Result<Vec<HostView>, DemoError> {
        let page: Page<_> = get(&self.client, &format!("/v1/regions/{REGION}/hosts"))?;
        Ok(page.items)
    }

    /// Wait until every host has told what it has.
    ///
    /// # Errors
    /// [`DemoError::Late`].
    pub(super) fn await_hosts(&self) -> Result<(), DemoError> {
        until("not every agent has told what its host has", HOST_PATIENCE, || {
            let ready = |host: &&HostView| host.alive && host.vfs > 0;
            Ok((self.hosts()?.iter().filter(ready).count() == HOSTS.len()).then_some(()))
        })
    }

    /// How many VFs are somebody's.
    ///
    /// # Errors
    /// [`DemoError::Api`].
    pub(super) fn claimed_vfs(&self) -> Result<u32, DemoError> {
        Ok(self.hosts()?.iter().map(|host| host.vfs_used).sum())
    }

    /// Two tenants, each with an environment and a RoCE network of the same addresses.
    ///
    /// # Errors
    /// [`DemoError::Api`].
    pub(super) fn tenants(&self) -> Result<[Tenant; 2], DemoError> {
        Ok([self.tenant("tenant-a")?, self.tenant("tenant-b")?])
    }

    fn tenant(&self, name: &str) -> Result<Tenant, DemoError> {
        post(&self.client, "/v1/organizations", &json!({ "name": name }))?;
        let within = self.client.clone().within(name)?;
        let key = post(&within, "/v1/api-keys", &json!({ "name": "demo", "role": "member" }))?;
        let own = client(&self.server, text(&key, "secret")?)?;
        let environment = json!({ "name": "lab", "region": REGION });
        let environment = id(&post(&own, "/v1/environments", &environment)?, "id")?;
        let network = post(
            &own,
            "/v1/networks",
            &json!({
                "name": "rdma", "environment": environment, "profile": "roce", "mtu": MTU,
                "cidr": ADDRESSES
            }),
        )?;
        let network: Network = serde_json::from_value(network)
            .map_err(|error| DemoError::Plan(format!("a network is none: {error}")))?;
        let vlan = u32::from(network.vlan.unwrap_or_default());
        let vlan = VlanId::new(vlan)?;
        Ok(Tenant { own, within, environment, network: network.id, vlan })
    }
}

/// Who asks for VMs.
pub(super) struct Tenant {
    own: Client,
    /// The operator, in the tenant's organization: to see where its VMs are.
    within: Client,
    environment: u64,
    network: u64,
    vlan: VlanId,
}

/// A group whose VMs are ACTIVE.
pub(in crate::demo) struct Group {
    pub(in crate::demo) name: String,
    id: u64,
    pub(in crate::demo) vlan: VlanId,
    pub(in crate::demo) members: Vec<Member>,
    pub(in crate::demo) took: Duration,
}

/// A VM of a group.
#[derive(Clone)]
pub(in crate::demo) struct Member {
    pub(in crate::demo) id: u64,
    pub(in crate::demo) name: String,
    /// Which of [`HOSTS`].
    pub(in crate::demo) host: usize,
    pub(in crate::demo) vf: VfIndex,
    pub(in crate::demo) port: Lane,
}

/// Its port.
#[derive(Clone)]
pub(in crate::demo) struct Lane {
    pub(in crate::demo) name: String,
    pub(in crate::demo) mac: MacAddr,
    pub(in crate::demo) address: Ipv4Addr,
}

#[derive(Deserialize)]
struct Whole {
    members: Vec<Vm>,
    complete: bool,
}

impl Tenant {
    /// Ask for a group of VMs on as many hosts as can be, and wait until they are ACTIVE.
    ///
    /// # Errors
    /// [`DemoError::Api`], [`DemoError::NotActive`] with the reason, [`DemoError::Late`].
    pub(super) fn group(&self, name: &str, count: u32) -> Result<Group, DemoError> {
        let began = Instant::now();
        let vm = json!({
            "name": name, "environment": self.environment, "flavor": FLAVOR, "image": IMAGE,
            "networks": [{ "network": self.network }]
        });
        let policy = json!({ "spread": "preferred" });
        let body = json!({ "count": count, "policy": policy, "vm": vm });
        let group = id(&post(&self.own, "/v1/groups", &body)?, "id")?;
        let what = format!("the group '{name}' is not ACTIVE");
        let vms = until(&what, GROUP_PATIENCE, || self.active(group))?;
        let took = began.elapsed();
        let members = vms.iter().map(|vm| self.member(vm)).collect::<Result<_, _>>()?;
        Ok(Group { name: name.to_owned(), id: group, vlan: self.vlan, members, took })
    }

    fn active(&self, group: u64) -> Result<Option<Vec<Vm>>, DemoError> {
        let whole: Whole = get(&self.own, &format!("/v1/groups/{group}"))?;
        if let Some(vm) = whole.members.iter().find(|vm| vm.status == VmStatus::Error) {
            let why = vm.fault.as_ref().map_or("is in ERROR", |fault| &fault.message).to_owned();
            return Err(DemoError::NotActive { vm: vm.name.clone(), why });
        }
        let active = whole.members.iter().all(|vm| vm.status == VmStatus::Active);
        Ok((whole.complete && active).then_some(whole.members))
    }

    fn member(&self, vm: &Vm) -> Result<Member, DemoError> {
        let nowhere = || DemoError::Plan(format!("VM '{}' has no lane", vm.name));
        let seen: Vm = get(&self.within, &format!("/v1/vms/{}", vm.id))?;
        let located = seen.located.ok_or_else(nowhere)?;
        let port = vm.ports.first().ok_or_else(nowhere)?;
        let port: Port = get(&self.own, &format!("/v1/ports/{port}"))?;
        Ok(Member {
            id: vm.id,
            name: vm.name.clone(),
            host: HOSTS.iter().position(|it| *it == located.host.as_str()).ok_or_else(nowhere)?,
            vf: located.place.vfs.first().ok_or_else(nowhere)?.vf,
            port: Lane { name: port.name, mac: port.mac, address: port.address },
        })
    }

    /// Have the lanes of a group's VMs looked at, and wait until all were.
    ///
    /// # Errors
    /// [`DemoError::Api`], [`DemoError::Late`].
    pub(super) fn verify(&self, group: &Group) -> Result<VerificationView, DemoError> {
        let run = post(&self.own, "/v1/verifications", &json!({ "group": group.id }))?;
        let path = format!("/v1/verifications/{}", id(&run, "id")?);
        let what = format!("the VMs of '{}' are not all looked at", group.name);
        until(&what, GROUP_PATIENCE, || {
            let view: VerificationView = get(&self.own, &path)?;
            Ok((view.parts.len() == view.run.vms.len()).then_some(view))
        })
    }

    /// Delete a group, and wait until it is gone.
    ///
    /// # Errors
    /// [`DemoError::Api`], [`DemoError::Late`].
    pub(super) fn delete(&self, group: &Group) -> Result<(), DemoError> {
        let path = format!("/v1/groups/{}", group.id);
        self.own.delete::<Value>(&path)?;
        let what = format!("the group '{}' is not gone", group.name);
        until(&what, GROUP_PATIENCE, || match self.own.get::<Value>(&path) {
            Ok(_) => Ok(None),
            Err(Error::Problem(problem)) if problem.status == Some(404) => Ok(Some(())),
            Err(error) => Err(error.into()),
        })
    }
}
