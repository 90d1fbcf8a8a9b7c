//! What the operator offers: regions, flavors, images.

use super::super::access::Caller;
use super::super::problem::Problem;
use super::super::route::{Call, Json, NoPath, NoQuery, Nothing, Reply, Route, Routes};
use super::{ById, CREATED, DONE, global_kind, offered};
use crate::resource::{
    FlavorResource, FlavorSpec, Global, ImageResource, ImageSpec, Region, RegionSpec, Role,
};

pub(super) fn add(routes: &mut Routes) {
    global_kind::<Region>(routes.about("regions"), "/v1/regions", "/v1/regions/{id}");
    routes
        .add(
            Route::post("/v1/regions", "A new region.").role(Role::Operator).status(CREATED),
            create_region,
        )
        .add(
            Route::delete("/v1/regions/{id}", "Delete one without environments and hosts.")
                .role(Role::Operator)
                .status(DONE),
            delete_region,
        );
    global_kind::<FlavorResource>(routes.about("flavors"), "/v1/flavors", "/v1/flavors/{id}");
    routes
        .add(
            Route::post("/v1/flavors", "A new flavor.").role(Role::Operator).status(CREATED),
            create_flavor,
        )
        .add(
            Route::delete("/v1/flavors/{id}", "Offer it no more; VMs that are of it stay.")
                .role(Role::Operator)
                .status(DONE),
            withdraw::<FlavorResource>,
        );
    global_kind::<ImageResource>(routes.about("images"), "/v1/images", "/v1/images/{id}");
    routes
        .add(
            Route::post("/v1/images", "A new image.").role(Role::Operator).status(CREATED),
            create_image,
        )
        .add(
            Route::delete("/v1/images/{id}", "Offer it no more; VMs that are of it stay.")
                .role(Role::Operator)
                .status(DONE),
            withdraw::<ImageResource>,
        );
}

async fn create_region(
    call: Call<Caller, NoPath, NoQuery, Json<RegionSpec>>,
) -> Result<Reply<Region>, Problem> {
    let Json(spec) = call.body;
    Ok(Reply::new(call.state.cloud.create_region(spec, call.once.as_ref()).await?))
}

async fn delete_region(call: Call<Caller, ById>) -> Result<Nothing, Problem> {
    let was = offered::<Region, _, _>(&call).await?;
    call.state.cloud.delete_region(&was).await?;
    Ok(Nothing)
}

async fn create_flavor(
    call: Call<Caller, NoPath, NoQuery, Json<FlavorSpec>>,
) -> Result<Reply<FlavorResource>, Problem> {
    let Json(spec) = call.body;
    Ok(Reply::new(call.state.cloud.create_flavor(spec, call.once.as_ref()).await?))
}

async fn create_image(
    call: Call<Caller, NoPath, NoQuery, Json<ImageSpec>>,
) -> Result<Reply<ImageResource>, Problem> {
    let Json(spec) = call.body;
    Ok(Reply::new(call.state.cloud.create_image(spec, call.once.as_ref()).await?))
}

async fn withdraw<T: Global>(call: Call<Caller, ById>) -> Result<Nothing, Problem> {
    let was = offered::<T, _, _>(&call).await?;
    call.state.cloud.withdraw(&was).await?;
    Ok(Nothing)
}
