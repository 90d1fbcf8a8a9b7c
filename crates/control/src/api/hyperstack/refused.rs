//! What the official API has and this cloud has not: volumes, snapshots, floating IPs, hibernation and
//! the like. Asked for what there is of them, it says that there is nothing; asked for one, that there
//! is no such thing; asked to do something, it is refused with what can be done instead.

use serde_json::json;

use super::super::access::Caller;
use super::super::problem::Problem;
use super::super::route::{Call, Manner, NoPath, Reply, Route, Routes};
use super::{ById, ByName, Paged, Served, delete, get, post, put, served};
use crate::cloud::CloudError;
use crate::resource::Vm;

/// Why, and what instead.
pub(super) const FLOATING_IP: &str = "there are no floating IPs: a VM's ports are on its networks only; reach it from another VM there";
pub(super) const VOLUMES: &str =
    "there are no volumes: a VM has the disk of its flavor; take a flavor with a larger one";
pub(super) const CALLBACKS: &str =
    "nobody is called back: follow /v1/watch, or read a VM's events, to learn what happens";
pub(super) const PROFILES: &str = "there are no profiles: say with each VM what it is to be";
pub(super) const METRICS: &str =
    "nothing within a guest is measured: run an exporter in it; usage is told by /v1/usage-records";
const HIBERNATION: &str = "a VM cannot hibernate: its VFs' state stays in the NIC; stop it, which keeps its disk, its ports \
     and its place";
const SNAPSHOTS: &str =
    "there are no snapshots: a VM with VFs cannot be frozen as a whole; copy its data from within";
const RESIZE: &str = "a VM keeps its flavor: its place and its VFs are chosen for it; make another, and delete this one";
const CONSOLE: &str = "no console or log of a guest is kept here; log in with its key pair";
const CONTRACTS: &str = "there are no contracts: a quota limits what an organization uses";

pub(super) fn add(routes: &mut Routes) {
    routes.about("hyperstack-refused");
    for (path, why) in [
        ("/v1/core/virtual-machines/{id}/hibernate", HIBERNATION),
        ("/v1/core/virtual-machines/{id}/hibernate-restore", HIBERNATION),
    ] {
        refuse_of_vm(routes, get(path, "Refused: a VM cannot hibernate.").changing(), why);
    }
    for (route, why) in [
        (post("/v1/core/virtual-machines/{id}/resize", "Refused: a VM keeps its flavor."), RESIZE),
        (
            post("/v1/core/virtual-machines/{id}/attach-floatingip", "Refused: there are none."),
            FLOATING_IP,
        ),
        (
            post("/v1/core/virtual-machines/{id}/detach-floatingip", "Refused: there are none."),
            FLOATING_IP,
        ),
        (
            post("/v1/core/virtual-machines/{id}/attach-volumes", "Refused: there are none."),
            VOLUMES,
        ),
        (
            post("/v1/core/virtual-machines/{id}/detach-volumes", "Refused: there are none."),
            VOLUMES,
        ),
        (post("/v1/core/virtual-machines/{id}/snapshots", "Refused: there are none."), SNAPSHOTS),
        (get("/v1/core/virtual-machines/{id}/metrics", "Refused: none are taken."), METRICS),
        (
            Route::patch(
                "/v1/core/virtual-machines/{id}/enhanced-metrics",
                "Refused: none are taken.",
            )
            .manner(Manner::Hyperstack),
            METRICS,
        ),
        (get("/v1/core/virtual-machines/{id}/request-console", "Refused: there is none."), CONSOLE),
        (get("/v1/core/virtual-machines/{id}/logs", "Refused: there are none."), CONSOLE),
        (post("/v1/core/virtual-machines/{id}/logs", "Refused: there are none."), CONSOLE),
        (
            post("/v1/core/virtual-machines/{id}/attach-callback", "Refused: nobody is called."),
            CALLBACKS,
        ),
        (
            put("/v1/core/virtual-machines/{id}/update-callback", "Refused: nobody is called."),
            CALLBACKS,
        ),
        (
            delete("/v1/core/virtual-machines/{id}/delete-callback", "Refused: nobody is called."),
            CALLBACKS,
        ),
    ] {
        refuse_of_vm(routes, route, why);
    }
    for (path, why) in [("/v1/core/volumes", VOLUMES), ("/v1/core/profiles", PROFILES)] {
        let route = post(path, "Refused: there are none.");
        routes.add(route, move |_: Call<Caller>| async move { refuse(why) });
    }
    routes.add(
        get("/v1/core/virtual-machines/contract/{id}/virtual-machines", "Refused: there are none."),
        async |_: Call<Caller, ById>| refuse(CONTRACTS),
    );
    nothing(routes);
}

/// What there is none of.
fn nothing(routes: &mut Routes) {
    for (path, key) in [
        ("/v1/core/volumes", "volumes"),
        ("/v1/core/snapshots", "snapshots"),
        ("/v1/core/profiles", "profiles"),
        ("/v1/core/volume-types", "volume_types"),
    ] {
        let list = move |_: Call<Caller, NoPath, Paged>| async move {
            let Served { status, message } = served("There are none");
            Ok::<_, Problem>(Reply::new(json!({
                "status": status, "message": message, key: [], "count": 0, "page": null,
                "page_size": null
            })))
        };
        routes.add(get(path, "An empty list: there are none."), list);
    }
    for (path, noun) in [
        ("/v1/core/volumes/{id}", "volume"),
        ("/v1/core/snapshots/{id}", "snapshot"),
        ("/v1/core/profiles/{id}", "profile"),
    ] {
        let none = move |call: Call<Caller, ById>| async move {
            Err::<Reply<Served>, Problem>(CloudError::none(noun, &call.path.id).into())
        };
        routes.add(get(path, "Not found: there are none."), none);
        routes.add(delete(path, "Not found: there are none."), none);
    }
    for path in
        ["/v1/core/volume/name-availability/{name}", "/v1/core/snapshots/name-availability/{name}"]
    {
        let free = async |call: Call<Caller, ByName>| {
            Ok::<_, Problem>(super::availability(call.path.name, true))
        };
        routes.add(get(path, "Whether a name is free: every one is."), free);
    }
}

fn refuse(why: &'static str) -> Result<Reply<Served>, Problem> {
    Err(Problem::bad_request(why))
}

fn refuse_of_vm(routes: &mut Routes, route: Route, why: &'static str) {
    routes.add(route, move |call: Call<Caller, ById>| async move {
        call.state.cloud.get::<Vm>(&call.who.organization, call.path.id).await?;
        refuse(why)
    });
}
