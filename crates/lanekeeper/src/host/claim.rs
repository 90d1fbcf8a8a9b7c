//! `lanekeeper host claim` and `release`.

use std::env::VarError;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use lanekeeper_host::file::read_text;
use lanekeeper_host::{
    AffinityWanted, ClaimId, ClaimRequest, DriverWanted, OwnerToken, RdmaNeed, Released, VmFacts,
    Which,
};
use lanekeeper_model::{
    Guid, LinkState, MacAddr, Mbps, Mtu, PciAddr, Pcp, VfIndex, VlanId, VlanProtocol, VlanTag,
};
use lanekeeper_topology::{Affinity, Distance, Strictness};
use lanekeeper_vmm::passthrough;
use lanekeeper_vmm::qmp::Qmp;

use super::Place;
use crate::Failure;
use crate::values::{mbps, number, switch, vf};

/// Bytes of the largest file with a token, which has 128 characters at most.
const LARGEST_TOKEN: u64 = 4 << 10;
/// Bytes of the largest request.
const LARGEST_REQUEST: u64 = 64 << 10;

/// Who it is for. The token is a secret: whoever has it can release the VF.
#[derive(clap::Args)]
struct Owner {
    /// Owner token: 8 to 128 printable characters. Better in --token-file or the environment's
    /// LANEKEEPER_TOKEN, for a command line can be read by others.
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// File with the owner token as its only line.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
}

impl Owner {
    fn token(&self) -> Result<OwnerToken, Failure> {
        let text = match (&self.token, &self.token_file) {
            (Some(token), _) => token.clone(),
            (None, Some(file)) => {
                read(file, LARGEST_TOKEN)?.trim_end_matches(['\n', '\r']).to_owned()
            }
            (None, None) => std::env::var("LANEKEEPER_TOKEN").map_err(|error| {
                Failure::Usage(match error {
                    VarError::NotPresent => {
                        "whose is it? give --token-file, LANEKEEPER_TOKEN or --token".to_owned()
                    }
                    // Its text is a secret.
                    VarError::NotUnicode(_) => "LANEKEEPER_TOKEN is no text".to_owned(),
                })
            })?,
        };
        text.parse().map_err(|error: lanekeeper_host::HostError| Failure::Usage(error.to_string()))
    }
}

/// Take a VF for an owner.
#[derive(clap::Args)]
#[command(
    after_help = "Prints the claim as JSON: address, IOMMU group, device node, arguments for \
QEMU, elements for libvirt. The same token with the same request gets the same claim again."
)]
pub(super) struct ClaimArgs {
    #[command(flatten)]
    owner: Owner,
    /// Take everything but the token from this JSON file (`-`: standard input).
    #[arg(long, value_name = "FILE", conflicts_with = "Wanted")]
    request: Option<PathBuf>,
    #[command(flatten)]
    wanted: Wanted,
}

/// What is asked for.
#[derive(clap::Args)]
struct Wanted {
    /// Pool to take a VF from.
    #[arg(long)]
    pool: Option<String>,
    /// PF to take a VF from, by our own name.
    #[arg(long)]
    pf: Option<String>,
    /// Number of the VF, if it is to be that one.
    #[arg(long, requires = "pf", value_parser = vf)]
    vf: Option<VfIndex>,
    /// MAC; if not given one is drawn and kept with the claim.
    #[arg(long)]
    mac: Option<MacAddr>,
    /// Access VLAN, 1 to 4094; 0 for none.
    #[arg(long, value_parser = number(VlanId::new))]
    vlan: Option<VlanId>,
    /// Priority of the VLAN tag, 0 to 7.
    #[arg(long, requires = "vlan", value_parser = number(Pcp::new))]
    pcp: Option<Pcp>,
    /// Protocol of the VLAN tag: 802.1Q or 802.1ad.
    #[arg(long, requires = "vlan")]
    vlan_protocol: Option<VlanProtocol>,
    /// Guaranteed rate in Mb/s.
    #[arg(long, value_parser = mbps)]
    min_rate: Option<Mbps>,
    /// Greatest rate in Mb/s.
    #[arg(long, value_parser = mbps)]
    max_rate: Option<Mbps>,
    /// The VM may use further MACs and promiscuous mode.
    #[arg(long, value_name = "on|off", value_parser = switch)]
    trust: Option<bool>,
    /// Drop what the VM sends from another MAC.
    #[arg(long, value_name = "on|off", value_parser = switch)]
    spoofchk: Option<bool>,
    /// auto, enable or disable.
    #[arg(long)]
    link_state: Option<LinkState>,
    /// Address that the VM may speak for (only the software NIC can hold a VM to it).
    #[arg(long = "address", value_name = "IP")]
    addresses: Vec<IpAddr>,
    /// MTU in bytes.
    #[arg(long, value_parser = number(Mtu::new))]
    mtu: Option<Mtu>,
    /// Node and port GUID.
    #[arg(long)]
    guid: Option<Guid>,
    /// What RDMA the VM is to use.
    #[arg(long, value_enum)]
    rdma: Option<Rdma>,
    /// NUMA node to be on.
    #[arg(long, conflicts_with = "gpu")]
    numa: Option<u32>,
    /// PCI address of the GPU to be beside (behind one root port).
    #[arg(long)]
    gpu: Option<PciAddr>,
    /// Refuse a VF that is further away, rather than take the nearest.
    #[arg(long)]
    strict: bool,
    /// Driver to hand the VF over with; the host file's default, or vfio-pci.
    #[arg(long, value_enum)]
    driver: Option<Driver>,
    /// The VM's RAM in MiB, to be told how much memory must be lockable.
    #[arg(long, value_name = "MIB")]
    vm_memory: Option<u64>,
    /// How many devices the VM gets by VFIO.
    #[arg(long, default_value_t = 1)]
    vm_devices: u32,
    /// The VM has an emulated IOMMU.
    #[arg(long)]
    vm_iommu: bool,
    /// User id that the VMM runs as.
    #[arg(long)]
    vmm_user: Option<u32>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Rdma {
    /// By the NIC.
    Hardware,
    /// By the VM's kernel.
    Software,
    /// None.
    None,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Driver {
    /// For a VM.
    VfioPci,
    /// The VF's own network driver, for use on this host.
    Kernel,
}

/// Give a VF back.
#[derive(clap::Args)]
pub(super) struct ReleaseArgs {
    #[command(flatten)]
    owner: Owner,
    /// The claim, as `claim` named it.
    #[arg(required_unless_present = "pf")]
    claim: Option<String>,
    /// Or our own name for the PF ...
    #[arg(long, requires = "vf", conflicts_with = "claim")]
    pf: Option<String>,
    /// ... and the number of the VF.
    #[arg(long, requires = "pf", value_parser = vf)]
    vf: Option<VfIndex>,
}

/// Which VM, and whose VF.
#[derive(clap::Args)]
pub(super) struct HandArgs {
    #[command(flatten)]
    owner: Owner,
    /// The claim, as `claim` named it.
    claim: String,
    /// Monitor socket (QMP) of the QEMU that runs the VM.
    #[arg(long, value_name = "SOCKET")]
    qmp: PathBuf,
}

/// Put a claimed VF into a VM that runs.
pub(super) fn attach(
    place: &Place,
    args: &HandArgs,
    bus: Option<&str>,
) -> Result<ExitCode, Failure> {
    let (id, token) = (ClaimId(args.claim.clone()), args.owner.token()?);
    let owner = place.ready_owner()?;
    let claim = owner.claim_of(&id, &token)?;
    let qmp = monitor(&args.qmp)?;
    // Journal, then touch: should this program die now, the VF counts as the VM's.
    owner.attached(&id, &token)?;
    match passthrough::attach(&qmp, &args.claim, claim.address, bus) {
        Ok(port) => {
            place.tell(&port, || format!("VF {} is in the VM, behind {port}", claim.address))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            owner.detached(&id, &token)?;
            Err(Failure::Work(error.to_string()))
        }
    }
}

/// Take a VF out of a VM that runs; it stays its owner's until it is released.
pub(super) fn detach(
    place: &Place,
    args: &HandArgs,
    within: Duration,
) -> Result<ExitCode, Failure> {
    let (id, token) = (ClaimId(args.claim.clone()), args.owner.token()?);
    let owner = place.ready_owner()?;
    let qmp = monitor(&args.qmp)?;
    owner.detaching(&id, &token)?;
    let was_there = passthrough::detach(&qmp, &args.claim, within)
        .map_err(|error| Failure::Work(error.to_string()))?;
    owner.detached(&id, &token)?;
    place.tell(&was_there, || {
        let how = if was_there { "is out of the VM" } else { "was not in the VM" };
        format!("the VF of {id} {how}; it stays yours until it is released")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn monitor(socket: &Path) -> Result<Qmp, Failure> {
    Qmp::connect(socket, Duration::from_secs(10), || false).map_err(|error| {
        Failure::Work(format!("cannot reach QEMU's monitor {}: {error}", socket.display()))
    })
}

/// Claim, and print the claim as JSON.
pub(super) fn claim(place: &Place, args: ClaimArgs) -> Result<ExitCode, Failure> {
    let request = args.into_request()?;
    let claim = place.ready_owner()?.claim(&request)?;
    super::print_json(&claim).map_err(|failure| match failure {
        Failure::Work(why) => Failure::Work(format!(
            "{why}; claim {} stands: ask again with the same token, or release it",
            claim.id
        )),
        other => other,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Release, and say how it went. A release that is too late is no failure: the VF is not its
/// owner's, which is what was wanted.
pub(super) fn release(place: &Place, args: &ReleaseArgs) -> Result<ExitCode, Failure> {
    let which = match (&args.claim, &args.pf, args.vf) {
        (Some(claim), _, _) => Which::Claim(ClaimId(claim.clone())),
        (None, Some(pf), Some(vf)) => Which::Vf { pf: pf.clone(), vf },
        _ => return Err(Failure::Usage("name a claim, or --pf and --vf".to_owned())),
    };
    let token = args.owner.token()?;
    let released = place.ready_owner()?.release(&which, &token)?;
    place.tell(&released, || {
        let notes = match &released {
            Released::Done { notes, .. } => notes.as_slice(),
            Released::NoOp { .. } | Released::Quarantined { .. } => &[],
        };
        let mut lines = vec![released.to_string()];
        lines.extend(notes.iter().map(|note| format!("note: {note}")));
        lines.join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

impl ClaimArgs {
    fn into_request(self) -> Result<ClaimRequest, Failure> {
        let token = self.owner.token()?;
        match &self.request {
            Some(file) => from_file(file, token),
            None => self.wanted.into_request(token),
        }
    }
}

impl Wanted {
    fn into_request(self, token: OwnerToken) -> Result<ClaimRequest, Failure> {
        let vlan = self.vlan.map(|id| VlanTag {
            id,
            pcp: self.pcp.unwrap_or_default(),
            protocol: self.vlan_protocol.unwrap_or_default(),
        });
        let to = match (self.numa, self.gpu) {
            (Some(node), _) => Some(Affinity::Numa(node)),
            (None, Some(addr)) => Some(Affinity::Gpu { addr, within: Distance::Pxb }),
            (None, None) if self.strict => {
                return Err(Failure::Usage("--strict needs --numa or --gpu".to_owned()));
            }
            (None, None) => None,
        };
        let strictness = if self.strict { Strictness::Strict } else { Strictness::Preferred };
        Ok(ClaimRequest {
            pool: self.pool,
            pf: self.pf,
            vf: self.vf,
            mac: self.mac,
            vlan,
            min_rate: self.min_rate,
            max_rate: self.max_rate,
            trust: self.trust,
            spoofchk: self.spoofchk,
            link_state: self.link_state,
            addresses: self.addresses,
            mtu: self.mtu,
            guid: self.guid,
            rdma: self.rdma.map(|rdma| match rdma {
                Rdma::Hardware => RdmaNeed::Hardware,
                Rdma::Software => RdmaNeed::Software,
                Rdma::None => RdmaNeed::None,
            }),
            affinity: to.map(|to| AffinityWanted { to, strictness }),
            driver: self.driver.map(|driver| match driver {
                Driver::VfioPci => DriverWanted::VfioPci,
                Driver::Kernel => DriverWanted::Kernel,
            }),
            vm: VmFacts {
                memory_bytes: self.vm_memory.map(|mebibytes| mebibytes.saturating_mul(1 << 20)),
                devices: self.vm_devices,
                viommu: self.vm_iommu,
                user: self.vmm_user,
            },
            ..ClaimRequest::new(token)
        })
    }
}

/// A request from a file that has no token in it: files are kept and shown, tokens should not be.
fn from_file(file: &Path, token: OwnerToken) -> Result<ClaimRequest, Failure> {
    let wrong = |error: serde_json::Error| {
        Failure::Usage(format!("{}: {error}; see `host claim --help`", file.display()))
    };
    let mut value: serde_json::Value =
        serde_json::from_str(&read(file, LARGEST_REQUEST)?).map_err(wrong)?;
    let Some(fields) = value.as_object_mut() else {
        return Err(Failure::Usage(format!("{}: a request is a JSON object", file.display())));
    };
    if fields.contains_key("token") {
        return Err(Failure::Usage(format!(
            "{}: `token` does not belong into the request; give --token-file",
            file.display()
        )));
    }
    fields.insert("token".to_owned(), String::from(token).into());
    serde_json::from_value(value).map_err(wrong)
}

fn read(file: &Path, most: u64) -> Result<String, Failure> {
    let file = if file == Path::new("-") { Path::new("/dev/stdin") } else { file };
    read_text(file, most)
        .map_err(|error| Failure::Usage(format!("cannot read {}: {error}", file.display())))
}
