//! Networks, subnets and ports.

use super::super::access::Caller;
use super::super::problem::Problem;
use super::super::route::{Call, Json, NoPath, NoQuery, Nothing, Reply, Route, Routes};
use super::{ById, CREATED, DONE, own, tenant_kind};
use crate::resource::{Network, NetworkSpec, Port, Subnet, SubnetSpec};

pub(super) fn add(routes: &mut Routes) {
    tenant_kind::<Network>(routes.about("networks"), "/v1/networks", "/v1/networks/{id}");
    routes
        .add(
            Route::post("/v1/networks", "A new network, with its subnets.").status(CREATED),
            create_network,
        )
        .add(
            Route::delete("/v1/networks/{id}", "Delete one without ports, with its subnets.")
                .status(DONE),
            delete_network,
        );
    tenant_kind::<Subnet>(routes.about("subnets"), "/v1/subnets", "/v1/subnets/{id}");
    routes
        .add(
            Route::post("/v1/subnets", "One more subnet of a network.").status(CREATED),
            create_subnet,
        )
        .add(
            Route::delete("/v1/subnets/{id}", "Delete one without ports.").status(DONE),
            delete_subnet,
        );
    tenant_kind::<Port>(routes.about("ports"), "/v1/ports", "/v1/ports/{id}");
}

async fn create_network(
    call: Call<Caller, NoPath, NoQuery, Json<NetworkSpec>>,
) -> Result<Reply<Network>, Problem> {
    let Json(spec) = call.body;
    let (cloud, once) = (&call.state.cloud, call.once.as_ref());
    Ok(Reply::new(cloud.create_network(&call.who.organization, spec, once).await?))
}

async fn delete_network(call: Call<Caller, ById>) -> Result<Nothing, Problem> {
    let was = own::<Network, _, _>(&call).await?;
    call.state.cloud.delete_network(was).await?;
    Ok(Nothing)
}

async fn create_subnet(
    call: Call<Caller, NoPath, NoQuery, Json<SubnetSpec>>,
) -> Result<Reply<Subnet>, Problem> {
    let Json(spec) = call.body;
    let (cloud, once) = (&call.state.cloud, call.once.as_ref());
    Ok(Reply::new(cloud.create_subnet(&call.who.organization, spec, once).await?))
}

async fn delete_subnet(call: Call<Caller, ById>) -> Result<Nothing, Problem> {
    let was = own::<Subnet, _, _>(&call).await?;
    call.state.cloud.delete_subnet(&was).await?;
    Ok(Nothing)
}
