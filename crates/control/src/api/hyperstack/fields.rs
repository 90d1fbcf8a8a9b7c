//! What the Hyperstack API's answers are made of, field by field as its public clients read them.
//! Clients of it end at a null in what is not an `Option` here; what it has no field for is in
//! `features`.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// Free-form.
pub(super) type Features = Map<String, Value>;

/// What is known of the energy a region runs on: nothing. Clients take three words only.
pub(super) const NOT_GREEN: &str = "NOT_GREEN";

/// Properties of an environment.
#[derive(Serialize, JsonSchema)]
pub(super) struct EnvironmentFeatures {
    /// Whether its VMs are on a network that is made for RDMA.
    pub(super) network_optimised: bool,
    /// `NOT_GREEN`.
    pub(super) green_status: &'static str,
}

/// An environment.
#[derive(Serialize, JsonSchema)]
pub(super) struct EnvironmentFields {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) region: String,
    pub(super) features: EnvironmentFeatures,
    pub(super) created_at: String,
}

/// An environment, as a VM shows it.
#[derive(Serialize, JsonSchema)]
pub(super) struct InstanceEnvironmentFields {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) org_id: u64,
    pub(super) region: String,
    pub(super) features: EnvironmentFeatures,
}

/// A region.
#[derive(Serialize, JsonSchema)]
pub(super) struct RegionFields {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) description: String,
    pub(super) country: String,
    /// `NOT_GREEN`.
    pub(super) green_status: &'static str,
    /// What its networks can be: `rdma`.
    pub(super) features: Features,
}

/// A label of a flavor.
#[derive(Serialize, JsonSchema)]
pub(super) struct LabelFields {
    pub(super) id: u64,
    pub(super) label: String,
}

/// A flavor, as a list shows it.
#[derive(Serialize, JsonSchema)]
pub(super) struct FlavorFields {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) display_name: String,
    pub(super) region_name: String,
    pub(super) cpu: u32,
    /// In GiB.
    pub(super) ram: f64,
    /// In GiB.
    pub(super) disk: u64,
    pub(super) ephemeral: u64,
    pub(super) gpu: String,
    pub(super) gpu_count: u32,
    /// Whether there is room for one VM of it now.
    pub(super) stock_available: bool,
    pub(super) labels: Vec<LabelFields>,
    /// What its VFs are: `rdma`.
    pub(super) features: Features,
    pub(super) created_at: String,
}

/// Flavors of one GPU model in one region.
#[derive(Serialize, JsonSchema)]
pub(super) struct FlavorsOf {
    pub(super) gpu: String,
    pub(super) region_name: String,
    pub(super) flavors: Vec<FlavorFields>,
}

/// A flavor, as a VM shows it.
#[derive(Serialize, JsonSchema)]
pub(super) struct InstanceFlavorFields {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) cpu: u32,
    /// In GiB.
    pub(super) ram: f64,
    /// In GiB.
    pub(super) disk: u64,
    pub(super) ephemeral: u64,
    pub(super) gpu: String,
    pub(super) gpu_count: u32,
    pub(super) labels: Vec<LabelFields>,
    pub(super) features: Features,
}

/// An image.
#[derive(Serialize, JsonSchema)]
pub(super) struct ImageFields {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) region_name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) version: String,
    /// In bytes.
    pub(super) size: u64,
    pub(super) display_size: String,
    pub(super) description: String,
    pub(super) is_public: bool,
    pub(super) labels: Vec<LabelFields>,
}

/// Images of one operating system in one region.
#[derive(Serialize, JsonSchema)]
pub(super) struct ImagesOf {
    pub(super) region_name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) logo: String,
    pub(super) images: Vec<ImageFields>,
}

/// A key pair.
#[derive(Serialize, JsonSchema)]
pub(super) struct KeypairFields {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) environment: EnvironmentFields,
    pub(super) public_key: String,
    /// SHA-256, as OpenSSH shows it.
    pub(super) fingerprint: String,
    pub(super) created_at: String,
}

/// A name.
#[derive(Serialize, JsonSchema)]
pub(super) struct NameFields {
    pub(super) name: String,
}

/// A security rule.
#[derive(Serialize, JsonSchema)]
pub(super) struct RuleFields {
    pub(super) id: u64,
    pub(super) direction: String,
    pub(super) ethertype: String,
    pub(super) protocol: String,
    pub(super) remote_ip_prefix: String,
    pub(super) port_range_min: Option<u16>,
    pub(super) port_range_max: Option<u16>,
    /// `SUCCESS`.
    pub(super) status: &'static str,
    pub(super) created_at: String,
}

/// A VM.
#[derive(Serialize, JsonSchema)]
pub(super) struct InstanceFields {
    pub(super) id: u64,
    pub(super) name: String,
    /// `CREATING`, `BUILD`, `ACTIVE`, `STOPPING`, `SHUTOFF`, `STARTING`, `REBOOTING`, `ERROR` or
    /// `DELETING`.
    pub(super) status: &'static str,
    /// `RUNNING`, `SHUTDOWN` or `NOSTATE`.
    pub(super) power_state: &'static str,
    /// What it is once nothing is under way any more.
    pub(super) vm_state: &'static str,
    pub(super) environment: InstanceEnvironmentFields,
    pub(super) image: NameFields,
    pub(super) flavor: InstanceFlavorFields,
    pub(super) keypair: NameFields,
    pub(super) os: String,
    /// The address of its first port.
    pub(super) fixed_ip: Option<String>,
    pub(super) floating_ip: Option<String>,
    pub(super) floating_ip_status: Option<String>,
    pub(super) security_rules: Vec<RuleFields>,
    /// There are none here.
    pub(super) volume_attachments: Vec<Value>,
    pub(super) labels: Vec<String>,
    /// Its ports (`rdma`), and why it is in error, if it is (`fault`).
    pub(super) features: Features,
    pub(super) callback_url: Option<String>,
    pub(super) locked: bool,
    pub(super) contract_id: Option<u64>,
    pub(super) port_randomization: bool,
    pub(super) port_randomization_status: Option<String>,
    pub(super) requires_public_ip: bool,
    pub(super) created_at: String,
}
