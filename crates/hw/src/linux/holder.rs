//! Which process has a VF's VFIO device open: a link in its folder of open files points there
//! (proc(5)).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::tree::{self, Tree};
use crate::inventory::Holder;

/// Open VFIO files with who holds them. Taken once for all VFs of a PF, as every process is looked
/// at.
#[derive(Debug, Default)]
pub(super) struct Holders(BTreeMap<String, Holder>);

impl Holders {
    /// Look at every process.
    pub(super) fn look(tree: &Tree) -> Self {
        let mut found = BTreeMap::new();
        let processes = tree.path("proc");
        for name in tree::names(&processes) {
            let Ok(pid) = name.parse::<u32>() else { continue };
            let folder = processes.join(&name);
            for file in vfio_files(&folder.join("fd")) {
                let command = tree::text(&folder.join("comm")).unwrap_or_default();
                found.entry(file).or_insert(Holder { pid, command });
            }
        }
        Self(found)
    }

    /// Who holds a VF: through its group, or since Linux 6.6 through its own device file.
    pub(super) fn of(&self, device: &Path, group: Option<u32>) -> Option<Holder> {
        let by_group = group.map(|number| format!("/dev/vfio/{number}"));
        let by_device = tree::names(&device.join("vfio-dev"))
            .into_iter()
            .map(|name| format!("/dev/vfio/devices/{name}"));
        by_group.into_iter().chain(by_device).find_map(|file| self.0.get(&file)).cloned()
    }
}

/// What VFIO files are open in a process: none of one that is not ours to look at.
fn vfio_files(open: &Path) -> Vec<String> {
    tree::names(open)
        .iter()
        .filter_map(|number| fs::read_link(open.join(number)).ok())
        .map(|file| file.to_string_lossy().into_owned())
        .filter(|file| file.starts_with("/dev/vfio/"))
        .collect()
}
