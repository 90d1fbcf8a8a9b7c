//! Two hundred VMs are asked for at once, over two servers on a cluster of three etcd members, and in
//! the middle of it one of all these is killed. Afterwards each VM is there once, nothing is two VMs',
//! and once all are deleted nothing of them is left in the store.
#![cfg(feature = "etcd")]

mod agent;
#[path = "../store/cluster.rs"]
mod cluster;
#[path = "../played/obedience.rs"]
mod obedience;
mod rig;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rig::{HOSTS, Rig, VMS};

/// Who is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    EtcdLeader,
    EtcdFollower,
    /// The server that sees to the region's VMs.
    Server,
    /// The agent of a host, for longer than its lease.
    Agent,
}

/// How many of the requests are answered when the victim is killed.
const KILLED_AFTER: usize = VMS / 5;

async fn survives(victim: Victim) {
    let mut rig = Rig::start().await;
    let before = rig.keys().await;
    let asked = rig.ask_for_vms();
    rig.until_asked(KILLED_AFTER).await;
    match victim {
        Victim::EtcdLeader => {
            let leader = rig.cluster.leader().await;
            rig.cluster.kill(leader);
        }
        Victim::EtcdFollower => {
            let leader = rig.cluster.leader().await;
            rig.cluster.kill((leader + 1) % 3);
        }
        Victim::Server => rig.kill_leading_server().await,
        Victim::Agent => {
            rig.agents[0].kill();
            tokio::time::sleep(Duration::from_secs(20)).await;
            rig.revive_agent(0);
        }
    }
    let mut ids = BTreeMap::new();
    for (name, asked) in asked {
        let id = asked.await.expect("no panic");
        assert_eq!(ids.insert(id, name), None, "one VM answers two requests");
    }
    assert_eq!(ids.len(), VMS);
    let vms = rig.settled(victim == Victim::Agent).await;
    let there: BTreeMap<_, _> = vms
        .iter()
        .map(|vm| (rig::id(vm), vm["name"].as_str().expect("a name").to_owned()))
        .collect();
    assert_eq!(there, ids, "each VM is there once, and no other");
    nothing_is_two_vms(&rig, &vms).await;
    for (name, again) in rig.ask_for_vms() {
        let id = again.await.expect("no panic");
        assert_eq!(ids.get(&id), Some(&name), "a request that is sent again makes nothing new");
    }

    rig.delete_all(ids.keys()).await;
    let left: Vec<_> = rig.keys().await.difference(&before).cloned().collect();
    assert_eq!(left, Vec::<String>::new(), "left in the store");
    assert_eq!(rig.claimed_vfs().await, 0);
    let used = rig.used().await;
    assert!(!used.is_empty() && used.iter().all(|used| *used == 0), "{used:?}");
}

/// No VF, no MAC and no address is of two VMs, and what is claimed is what VMs have.
async fn nothing_is_two_vms(rig: &Rig, vms: &[serde_json::Value]) {
    let mut vfs = BTreeSet::new();
    for vm in vms {
        let located = &vm["located"];
        for vf in located["place"]["vfs"].as_array().into_iter().flatten() {
            let vf = format!("{} {} {}", located["host"], vf["pf"], vf["vf"]);
            assert!(vfs.insert(vf.clone()), "VF {vf} is two VMs'");
        }
    }
    assert_eq!(rig.claimed_vfs().await, vfs.len(), "claimed is what VMs have");
    let ports = rig.all("/v1/ports").await;
    assert_eq!(ports.len(), VMS);
    for field in ["mac", "address"] {
        let all: BTreeSet<_> = ports.iter().map(|port| port[field].to_string()).collect();
        assert_eq!(all.len(), VMS, "no two ports have one {field}");
    }
    assert!(vfs.len() <= HOSTS * rig::VFS);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_of_etcd_is_killed() {
    survives(Victim::EtcdLeader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_of_etcd_is_killed() {
    survives(Victim::EtcdFollower).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_that_leads_is_killed() {
    survives(Victim::Server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_killed_and_its_host_is_lost_for_a_while() {
    survives(Victim::Agent).await;
}
