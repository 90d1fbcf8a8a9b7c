//! Claims that nobody has any more. A claim is written by itself, before it is written where the VM is;
//! one that was on its way when its server ceased to lead can come after the next leader has ended the
//! VM, and nothing else would ever give it back.

use super::{Item, Work};
use crate::claims::Placed;
use crate::cloud::{CloudError, Stored};
use crate::keys::{self, PlacementId};
use crate::resource::{Group, Vm};

/// Give back what is claimed for a VM or a group that is gone, if anything is. Ids are given once, so
/// that what is gone stays so.
pub(super) async fn give_back(work: &Work, item: &Item) -> Result<(), CloudError> {
    let (name, id) = match item {
        Item::Host(_) => return Ok(()),
        Item::Group(id) => (format!("group-{id}"), *id),
        Item::Vm(id) => (format!("vm-{id}"), *id),
    };
    let placement = PlacementId::new(&name)?;
    let entry = work.cloud.store().get(&keys::placement(&work.region, &placement)).await?;
    let Some(placed) = entry.map(Stored::<Placed>::read).transpose()? else { return Ok(()) };
    // Not every caller knows whose it was: the claim does.
    let owner = &placed.value.ask.organization;
    let found = match item {
        Item::Group(_) => work.cloud.get::<Group>(owner, id).await.map(drop),
        _ => work.cloud.get::<Vm>(owner, id).await.map(drop),
    };
    match found {
        Err(CloudError::NotFound { .. }) => {
            work.cloud.claims(&work.region).await?.release(placement).await?;
            tracing::warn!(%name, region = %work.region, "it is gone, and its claim was given back");
            Ok(())
        }
        found => found,
    }
}
