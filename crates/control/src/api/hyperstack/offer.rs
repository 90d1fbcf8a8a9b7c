//! What can be had: regions, flavors, images. Flavors and images are those of every region.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::access::Caller;
use super::super::route::{Call, NoPath, Reply, Routes};
use super::fields::{FlavorFields, FlavorsOf, ImageFields, ImagesOf, NOT_GREEN, RegionFields};
use super::{About, Answer, Availability, ByName, Served, availability, delete, get};
use super::{found, operators, served, show};
use crate::cloud::{Cloud, CloudError};
use crate::resource::{FlavorResource, ImageResource, Profile, Region};

pub(super) fn add(routes: &mut Routes) {
    routes
        .about("hyperstack-offer")
        .add(get("/v1/core/regions", "List regions."), regions)
        .add(get("/v1/core/flavors", "List flavors."), flavors)
        .add(get("/v1/core/images", "List images."), images)
        .add(get("/v1/core/images/{id}", "Get an image."), image)
        .add(operators(delete("/v1/core/images/{id}", "Offer an image no more.")), delete_image)
        .add(
            get("/v1/core/image/name-availability/{name}", "Whether a name is free."),
            name_availability,
        );
}

/// Things of a region.
#[derive(Deserialize, JsonSchema)]
struct InRegion {
    /// The region's name; every region if not said.
    region: Option<String>,
}

/// The regions there are, or the one that is named.
pub(super) async fn named_or_all(
    cloud: &Cloud,
    name: Option<&str>,
) -> Result<Vec<Region>, CloudError> {
    let all = match name.filter(|name| !name.is_empty()) {
        Some(name) => vec![cloud.named_global::<Region>(name).await?],
        None => cloud.all_global::<Region>().await?,
    };
    Ok(all.into_iter().map(|stored| stored.value).collect())
}

#[derive(Serialize, JsonSchema)]
struct Regions {
    #[serde(flatten)]
    served: Served,
    regions: Vec<RegionFields>,
}

async fn regions(call: Call<Caller>) -> Answer<Regions> {
    let show = |region: Region| RegionFields {
        id: region.id,
        name: region.name.to_string(),
        description: region.description,
        country: region.country,
        green_status: NOT_GREEN,
        features: [(
            "rdma".to_owned(),
            json!({"fabric": region.fabric, "profiles": [Profile::Roce, Profile::Ethernet]}),
        )]
        .into_iter()
        .collect(),
    };
    let all = named_or_all(&call.state.cloud, None).await?;
    Ok(Reply::new(Regions {
        served: served("Regions retrieved successfully"),
        regions: all.into_iter().map(show).collect(),
    }))
}

#[derive(Serialize, JsonSchema)]
struct Flavors {
    #[serde(flatten)]
    served: Served,
    data: Vec<FlavorsOf>,
}

async fn flavors(call: Call<Caller, NoPath, InRegion>) -> Answer<Flavors> {
    let cloud = &call.state.cloud;
    let all = cloud.all_global::<FlavorResource>().await?;
    let mut data: Vec<FlavorsOf> = Vec::new();
    for region in named_or_all(cloud, call.query.region.as_deref()).await? {
        let needs: Vec<_> =
            all.iter().map(|one| one.value.spec.to_placement(&region.fabric)).collect();
        let room = move |index: &crate::placement::Index| -> Vec<bool> {
            needs.iter().map(|need| index.room(need) > 0).collect()
        };
        let room = cloud.look(&region.name, room).await?;
        for (flavor, stock_available) in all.iter().zip(room) {
            let flavor = flavor_in(&region, &flavor.value, stock_available);
            let same =
                |of: &&mut FlavorsOf| of.gpu == flavor.gpu && of.region_name == flavor.region_name;
            match data.iter_mut().find(same) {
                Some(of) => of.flavors.push(flavor),
                None => data.push(FlavorsOf {
                    gpu: flavor.gpu.clone(),
                    region_name: flavor.region_name.clone(),
                    flavors: vec![flavor],
                }),
            }
        }
    }
    Ok(Reply::new(Flavors { served: served("Flavors retrieved successfully"), data }))
}

fn flavor_in(region: &Region, flavor: &FlavorResource, stock_available: bool) -> FlavorFields {
    let FlavorResource { id, created_at, spec } = flavor;
    FlavorFields {
        id: *id,
        name: spec.name.clone(),
        display_name: spec.name.clone(),
        region_name: region.name.to_string(),
        cpu: spec.vcpus,
        ram: show::gib(spec.ram_mib),
        disk: spec.disk_gib,
        ephemeral: 0,
        gpu: show::gpu_model(spec),
        gpu_count: spec.gpu_count(),
        stock_available,
        labels: show::labels(spec),
        features: show::flavor_features(spec),
        created_at: created_at.without_zone(),
    }
}

/// Which images.
#[derive(Deserialize, JsonSchema)]
struct ImageQuery {
    /// The region's name; every region if not said.
    region: Option<String>,
    /// Whether those for everybody are meant too: all are.
    include_public: Option<bool>,
    /// Only those whose name has this in it, or whose id is this.
    search: Option<String>,
    /// Which page, from 1.
    #[schemars(range(min = 1))]
    page: Option<u64>,
    /// Images of a page, 1 to 1000; all if neither this nor a page is said.
    #[schemars(range(min = 1, max = 1000))]
    per_page: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct Images {
    #[serde(flatten)]
    served: Served,
    images: Vec<ImagesOf>,
}

async fn images(call: Call<Caller, NoPath, ImageQuery>) -> Answer<Images> {
    let (cloud, query) = (&call.state.cloud, call.query);
    let mut all = cloud.all_global::<ImageResource>().await?;
    let text = query.search.unwrap_or_default();
    all.retain(|one| {
        let public = query.include_public != Some(false);
        public && (text.is_empty() || found(&text, one.value.id, &one.value.spec.name))
    });
    let mut shown = Vec::new();
    for region in named_or_all(cloud, query.region.as_deref()).await? {
        shown.extend(all.iter().map(|one| image_in(region.name.as_str(), &one.value)));
    }
    let paged = super::Paged { page: query.page, page_size: query.per_page, search: None };
    let mut images: Vec<ImagesOf> = Vec::new();
    for image in paged.cut(shown)?.items {
        let same =
            |of: &&mut ImagesOf| of.kind == image.kind && of.region_name == image.region_name;
        match images.iter_mut().find(same) {
            Some(of) => of.images.push(image),
            None => images.push(ImagesOf {
                region_name: image.region_name.clone(),
                kind: image.kind.clone(),
                logo: String::new(),
                images: vec![image],
            }),
        }
    }
    Ok(Reply::new(Images { served: served("Images retrieved successfully"), images }))
}

fn image_in(region: &str, image: &ImageResource) -> ImageFields {
    let ImageResource { id, spec, .. } = image;
    ImageFields {
        id: *id,
        name: spec.name.clone(),
        region_name: region.to_owned(),
        kind: spec.os.clone(),
        version: spec.version.clone(),
        size: spec.size,
        display_size: display_size(spec.size),
        description: spec.description.clone(),
        is_public: true,
        labels: Vec::new(),
    }
}

fn display_size(bytes: u64) -> String {
    let mb = super::show::rounded(bytes) / 1e6;
    if mb < 1000.0 { format!("{mb:.1} MB") } else { format!("{:.1} GB", mb / 1000.0) }
}

#[derive(Serialize, JsonSchema)]
struct OneImage {
    #[serde(flatten)]
    served: Served,
    image: ImageFields,
}

async fn image(call: About) -> Answer<OneImage> {
    let cloud = &call.state.cloud;
    let found = cloud.get_global::<ImageResource>(call.path.id).await?;
    let first = named_or_all(cloud, None).await?.into_iter().next();
    let region = first.map(|region| region.name.to_string()).unwrap_or_default();
    let image = image_in(&region, &found.value);
    Ok(Reply::new(OneImage { served: served("Image retrieved successfully"), image }))
}

async fn delete_image(call: About) -> Answer<Served> {
    let cloud = &call.state.cloud;
    let was = cloud.get_global::<ImageResource>(call.path.id).await?;
    cloud.withdraw(&was).await?;
    Ok(Reply::new(served("Image deleted successfully")))
}

async fn name_availability(call: Call<Caller, ByName>) -> Answer<Availability> {
    let name = call.path.name;
    let taken = call.state.cloud.who_has::<ImageResource>("", &name).await?;
    Ok(availability(name, taken.is_none()))
}

#[cfg(test)]
mod tests {
    use super::display_size;

    #[test]
    fn a_size_is_shown_in_the_unit_that_suits_it() {
        assert_eq!(display_size(0), "0.0 MB");
        assert_eq!(display_size(52_428_800), "52.4 MB");
        assert_eq!(display_size(2_361_393_152), "2.4 GB");
    }
}
