//! What is left: GPUs by model, and in which sizes. Prices there are none.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::super::access::Caller;
use super::super::route::{Call, Reply, Routes};
use super::{Answer, Served, get, offer::named_or_all, served};
use crate::keys::GpuModel;
use crate::placement::{Flavor, GpuNeed, Index, Scalars};

/// GPUs of a VM, as stock is counted.
const SIZES: [u32; 5] = [1, 2, 4, 8, 10];

pub(super) fn add(routes: &mut Routes) {
    routes
        .about("hyperstack-stock")
        .add(get("/v1/core/stocks", "GPUs that are free."), stocks)
        .add(get("/v1/core/gpus", "List GPU models."), gpus)
        .add(get("/v1/pricebook", "Prices: none, since nothing is charged."), pricebook);
}

/// How many VMs of a size there are GPUs for.
#[derive(Serialize, JsonSchema)]
struct Configurations {
    #[serde(rename = "1x")]
    one: u64,
    #[serde(rename = "2x")]
    two: u64,
    #[serde(rename = "4x")]
    four: u64,
    #[serde(rename = "8x")]
    eight: u64,
    #[serde(rename = "10x")]
    ten: u64,
}

/// GPUs of a model.
#[derive(Serialize, JsonSchema)]
struct ModelStock {
    model: String,
    /// How many are free on hosts that take VMs, as text.
    available: String,
    /// `0`: what will be is not known.
    planned_7_days: &'static str,
    /// `0`: what will be is not known.
    planned_30_days: &'static str,
    /// `0`: what will be is not known.
    planned_100_days: &'static str,
    configurations: Configurations,
}

/// GPUs of a region.
#[derive(Serialize, JsonSchema)]
struct RegionStock {
    region: String,
    #[serde(rename = "stock-type")]
    stock_type: &'static str,
    models: Vec<ModelStock>,
}

#[derive(Serialize, JsonSchema)]
struct Stocks {
    #[serde(flatten)]
    served: Served,
    stocks: Vec<RegionStock>,
}

fn count(index: &Index) -> Vec<ModelStock> {
    let of = |model: GpuModel| {
        let [one, two, four, eight, ten] = SIZES.map(|count| {
            let gpus = Some(GpuNeed { model: model.clone(), count });
            index.room(&Flavor { gpus, vfs: None, scalars: Scalars::default() })
        });
        ModelStock {
            model: model.to_string(),
            available: one.to_string(),
            planned_7_days: "0",
            planned_30_days: "0",
            planned_100_days: "0",
            configurations: Configurations { one, two, four, eight, ten },
        }
    };
    index.gpu_models().into_iter().map(of).collect()
}

async fn stocks(call: Call<Caller>) -> Answer<Stocks> {
    let mut stocks = Vec::new();
    for region in named_or_all(&call.state.cloud, None).await? {
        let models = call.state.cloud.look(&region.name, count).await?;
        stocks.push(RegionStock { region: region.name.to_string(), stock_type: "GPU", models });
    }
    Ok(Reply::new(Stocks { served: served("Stocks retrieved successfully"), stocks }))
}

/// A region by name.
#[derive(Serialize, JsonSchema)]
struct GpuRegion {
    id: u64,
    name: String,
}

/// A GPU model.
#[derive(Serialize, JsonSchema)]
struct GpuFields {
    /// Its number in this list.
    id: u64,
    name: String,
    regions: Vec<GpuRegion>,
}

#[derive(Serialize, JsonSchema)]
struct Gpus {
    #[serde(flatten)]
    served: Served,
    gpu_list: Vec<GpuFields>,
}

async fn gpus(call: Call<Caller>) -> Answer<Gpus> {
    let mut models: BTreeMap<GpuModel, Vec<GpuRegion>> = BTreeMap::new();
    for region in named_or_all(&call.state.cloud, None).await? {
        for model in call.state.cloud.look(&region.name, Index::gpu_models).await? {
            let name = region.name.to_string();
            models.entry(model).or_default().push(GpuRegion { id: region.id, name });
        }
    }
    let all = (1..).zip(models);
    let gpu_list = all
        .map(|(id, (model, regions))| GpuFields { id, name: model.to_string(), regions })
        .collect();
    Ok(Reply::new(Gpus { served: served("GPUs retrieved successfully"), gpu_list }))
}

/// What something costs.
#[derive(Serialize, JsonSchema)]
struct Price {
    name: String,
    value: f64,
}

async fn pricebook(_: Call<Caller>) -> Answer<Vec<Price>> {
    Ok(Reply::new(Vec::new()))
}
