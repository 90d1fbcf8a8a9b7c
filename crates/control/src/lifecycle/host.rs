//! Seeing to one host: closing it to placements when its agent is no longer heard of, opening it when
//! it is back, and seeing to what is on it.

use super::{Item, Work};
use crate::cloud::{CloudError, Stored};
use crate::keys::{self, HostName, PlacementId};
use crate::placement::{Closed, HostClaims};

pub(super) async fn see_to(work: &Work, name: &HostName) -> Result<Vec<Item>, CloudError> {
    let (region, store) = (&work.region, work.cloud.store());
    let alive = work.cloud.is_alive(region, name).await?;
    let claims = store.get(&keys::claims_of(region, name)).await?;
    let claims = claims.map(Stored::<HostClaims>::read).transpose()?;
    let claims = claims.map(|stored| stored.value).unwrap_or_default();
    let known = work.cloud.knows_host(region, name).await?;
    let closed = match (alive, claims.closed) {
        (false, None) if known => Some(Some(Closed::Lost)),
        (true, Some(Closed::Lost)) => Some(None),
        _ => None,
    };
    if let Some(closed) = closed {
        work.cloud.claims(region).await?.close(name.clone(), closed).await?;
        tracing::warn!(host = %name, %region, alive, "a host is lost, or is back");
        let series =
            format!("lanekeeper_host_changes_total{{region=\"{region}\",alive=\"{alive}\"}}");
        work.metrics.count(series, "How often a host was lost (alive=false) or came back.");
    }
    Ok(claims.placements.keys().filter_map(item_of).collect())
}

/// What a placement is of.
pub(super) fn item_of(id: &PlacementId) -> Option<Item> {
    let (kind, number) = id.as_str().split_once('-')?;
    let number = number.parse().ok()?;
    match kind {
        "vm" => Some(Item::Vm(number)),
        "group" => Some(Item::Group(number)),
        _ => None,
    }
}
