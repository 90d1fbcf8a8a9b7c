//! Verification runs.

use super::super::access::Caller;
use super::super::problem::Problem;
use super::super::route::{Call, Json, NoPath, NoQuery, Nothing, Reply, Route, Routes};
use super::{ById, CREATED, DONE, Page, PageQuery, own};
use crate::resource::{Verification, VerificationSpec, VerificationView};

pub(super) fn add(routes: &mut Routes) {
    routes
        .about("verifications")
        .add(
            Route::get("/v1/verifications", "All of the organization's, in pages, without checks."),
            list,
        )
        .add(Route::get("/v1/verifications/{id}", "One of them, with what was found."), get)
        .add(
            Route::post("/v1/verifications", "Have the lanes of a group, or of VMs, looked at.")
                .status(CREATED),
            create,
        )
        .add(
            Route::delete("/v1/verifications/{id}", "Delete it, finished or not.").status(DONE),
            delete,
        );
}

async fn list(
    call: Call<Caller, NoPath, PageQuery>,
) -> Result<Reply<Page<VerificationView>>, Problem> {
    let (cloud, ask) = (&call.state.cloud, call.query.ask());
    let (mut items, more) = cloud.verifications(&call.who.organization, ask).await?;
    let next = items.last().map(|last| last.run.id).filter(|_| more);
    if call.query.name.is_some() {
        // They have no names.
        items.clear();
    }
    Ok(Reply::new(Page { items, next }))
}

async fn get(call: Call<Caller, ById>) -> Result<Reply<VerificationView>, Problem> {
    let view = call.state.cloud.verification(&call.who.organization, call.path.id).await?;
    Ok(Reply::new(view))
}

async fn create(
    call: Call<Caller, NoPath, NoQuery, Json<VerificationSpec>>,
) -> Result<Reply<VerificationView>, Problem> {
    let Json(spec) = call.body;
    let (cloud, once) = (&call.state.cloud, call.once.as_ref());
    Ok(Reply::new(cloud.create_verification(&call.who.organization, spec, once).await?))
}

async fn delete(call: Call<Caller, ById>) -> Result<Nothing, Problem> {
    let was = own::<Verification, _, _>(&call).await?;
    call.state.cloud.delete_verification(&was).await?;
    Ok(Nothing)
}
