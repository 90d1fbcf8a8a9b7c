//! Packages as apt knows them: which versions make up the guest, fetched and unpacked beside this
//! machine's own system, which is left as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use super::ImageError;
use crate::packages::last_lines;

/// The package whose dependency is the newest kernel of the distribution.
const KERNEL: &str = "linux-image-amd64";

/// One package in the version apt would install.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) sha256: String,
}

impl Package {
    /// File name in the store of fetched packages.
    pub(super) fn file_name(&self) -> String {
        format!("{}_{}.deb", self.name, &self.sha256[..16.min(self.sha256.len())])
    }
}

/// One stanza of `apt-cache show`, as far as it matters here.
#[derive(Debug)]
struct Stanza {
    package: Package,
    section: String,
    depends: Vec<String>,
}

impl Stanza {
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.map(|value| value.trim().to_owned())
        };
        let depends = ["Pre-Depends", "Depends"]
            .iter()
            .filter_map(|name| field(name))
            .flat_map(|list| list.split(',').map(first_alternative).collect::<Vec<_>>())
            .collect();
        Some(Self {
            package: Package {
                name: field("Package")?,
                version: field("Version")?,
                sha256: field("SHA256")?,
            },
            section: field("Section").unwrap_or_default(),
            depends,
        })
    }

    /// `libs`, or `contrib/libs` and the like outside the main archive.
    fn is_library(&self) -> bool {
        self.section.rsplit('/').next() == Some("libs")
    }
}

/// The name in `name:any (>= 1) | other`.
fn first_alternative(dependency: &str) -> String {
    let first = dependency.split('|').next().unwrap_or_default().trim();
    first.split([' ', ':', '(']).next().unwrap_or_default().to_owned()
}

/// What `apt-cache show` says of these packages; names it does not know are left out.
fn show(names: &BTreeSet<String>) -> Result<Vec<Stanza>, ImageError> {
    let output = Command::new("apt-cache")
        .args(["show", "--no-all-versions"])
        .args(names)
        .output()
        .map_err(|error| ImageError::tool("apt-cache", &error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split("\n\n").filter_map(Stanza::parse).collect())
}

/// The kernel package, the packages named and every library below them, by name.
///
/// Of dependencies only libraries are followed: what a package's maintainer scripts need (debconf,
/// adduser) is of no use in the guest, where no script runs.
pub(super) fn resolve(names: &[&str]) -> Result<Vec<Package>, ImageError> {
    let kernel = show(&BTreeSet::from([KERNEL.to_owned()]))?
        .into_iter()
        .flat_map(|stanza| stanza.depends)
        .find(|name| name.starts_with("linux-image-"))
        .ok_or_else(|| ImageError::NoSuchPackage(KERNEL.to_owned()))?;
    let wanted: BTreeSet<String> =
        names.iter().map(|name| (*name).to_owned()).chain([kernel]).collect();
    let found = closure(&wanted, show)?;
    match wanted.iter().find(|name| !found.contains_key(*name)) {
        Some(name) => Err(ImageError::NoSuchPackage(name.clone())),
        None => Ok(found.into_values().collect()),
    }
}

fn closure(
    wanted: &BTreeSet<String>,
    show: impl Fn(&BTreeSet<String>) -> Result<Vec<Stanza>, ImageError>,
) -> Result<BTreeMap<String, Package>, ImageError> {
    let mut asked = wanted.clone();
    let mut frontier = wanted.clone();
    let mut found = BTreeMap::new();
    while !frontier.is_empty() {
        let mut next = BTreeSet::new();
        for stanza in show(&frontier)? {
            if !wanted.contains(&stanza.package.name) && !stanza.is_library() {
                continue;
            }
            next.extend(stanza.depends.into_iter().filter(|name| !asked.contains(name)));
            found.insert(stanza.package.name.clone(), stanza.package);
        }
        asked.extend(next.iter().cloned());
        frontier = next;
    }
    Ok(found)
}

/// Fetch those packages that are not in `store` yet. apt checks each against its signed lists.
pub(super) fn fetch(packages: &[Package], store: &Path) -> Result<(), ImageError> {
    let missing: Vec<&Package> =
        packages.iter().filter(|package| !store.join(package.file_name()).exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let incoming = store.join("incoming");
    remove_folder(&incoming)?;
    fs::create_dir_all(&incoming).map_err(|error| ImageError::file(&incoming, error))?;
    let output = Command::new("apt-get")
        // The folder need not be open to apt's own user.
        .args(["-q", "-o", "APT::Sandbox::User=root", "download"])
        .args(missing.iter().map(|package| format!("{}={}", package.name, package.version)))
        .current_dir(&incoming)
        .output()
        .map_err(|error| ImageError::tool("apt-get", &error))?;
    if !output.status.success() {
        return Err(ImageError::Tool { tool: "apt-get download", why: last_lines(&output) });
    }
    for package in missing {
        let arrived = arrived(&incoming, &package.name)?;
        let stored = store.join(package.file_name());
        fs::rename(&arrived, &stored).map_err(|error| ImageError::file(&stored, error))?;
    }
    remove_folder(&incoming)
}

/// The file apt wrote for a package: `NAME_VERSION_ARCH.deb` with characters escaped.
fn arrived(incoming: &Path, name: &str) -> Result<std::path::PathBuf, ImageError> {
    let prefix = format!("{name}_");
    let listing = fs::read_dir(incoming).map_err(|error| ImageError::file(incoming, error))?;
    listing
        .filter_map(Result::ok)
        .find(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| entry.path())
        .ok_or_else(|| ImageError::Tool {
            tool: "apt-get download",
            why: format!("it succeeded without a file for {name}"),
        })
}

/// Drop packages that the image no longer uses.
pub(super) fn sweep(packages: &[Package], store: &Path) -> Result<(), ImageError> {
    let used: BTreeSet<String> = packages.iter().map(Package::file_name).collect();
    let listing = fs::read_dir(store).map_err(|error| ImageError::file(store, error))?;
    for entry in listing.filter_map(Result::ok) {
        if !used.contains(&*entry.file_name().to_string_lossy()) {
            let path = entry.path();
            fs::remove_file(&path).map_err(|error| ImageError::file(&path, error))?;
        }
    }
    Ok(())
}

/// Unpack the packages over each other into `tree`, running none of their scripts.
pub(super) fn unpack(packages: &[Package], store: &Path, tree: &Path) -> Result<(), ImageError> {
    for package in packages {
        let output = Command::new("dpkg-deb")
            .arg("-x")
            .arg(store.join(package.file_name()))
            .arg(tree)
            .output()
            .map_err(|error| ImageError::tool("dpkg-deb", &error))?;
        if !output.status.success() {
            return Err(ImageError::Tool { tool: "dpkg-deb -x", why: last_lines(&output) });
        }
    }
    Ok(())
}

/// Remove a folder with all that is in it; one that is not there is as good.
pub(super) fn remove_folder(path: &Path) -> Result<(), ImageError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ImageError::file(path, error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stanza(name: &str, section: &str, depends: &str) -> String {
        format!(
            "Package: {name}\nVersion: 1\nSection: {section}\nDepends: {depends}\n\
             Description: one\n of many\nSHA256: 00112233445566778899\n"
        )
    }

    #[test]
    fn a_stanza_gives_the_first_of_each_alternative_without_versions() {
        let text =
            stanza("tool", "net", "libc6 (>= 2.34), debconf (>= 0.5) | debconf-2.0, perl:any");
        let text = text.replace("Section", "Pre-Depends: init-system-helpers (>= 1.54~)\nSection");
        let stanza = Stanza::parse(&text).expect("complete");
        assert_eq!(stanza.depends, ["init-system-helpers", "libc6", "debconf", "perl"]);
        assert_eq!(stanza.package.file_name(), "tool_0011223344556677.deb");
    }

    #[test]
    fn libraries_are_followed_to_the_end_and_other_dependencies_are_not() {
        let world = [
            ("tool", stanza("tool", "net", "liba, debconf")),
            ("liba", stanza("liba", "libs", "libb, tool")),
            ("libb", stanza("libb", "contrib/libs", "liba")),
            ("debconf", stanza("debconf", "admin", "libperl")),
            ("libperl", stanza("libperl", "libs", "")),
        ];
        let show = |names: &BTreeSet<String>| {
            let known = world.iter().filter(|(name, _)| names.contains(*name));
            Ok(known.filter_map(|(_, text)| Stanza::parse(text)).collect())
        };
        let found = closure(&BTreeSet::from(["tool".to_owned()]), show).expect("resolves");
        assert_eq!(found.keys().collect::<Vec<_>>(), ["liba", "libb", "tool"]);
    }

    #[test]
    fn packages_no_longer_used_are_swept() {
        let store = tempfile::tempdir().expect("a folder");
        let used =
            Package { name: "a".into(), version: "1".into(), sha256: "0123456789abcdef".into() };
        fs::write(store.path().join(used.file_name()), "").expect("writes");
        fs::write(store.path().join("old_00.deb"), "").expect("writes");
        sweep(std::slice::from_ref(&used), store.path()).expect("sweeps");
        let left: Vec<_> = fs::read_dir(store.path()).expect("lists").flatten().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].file_name().to_string_lossy(), used.file_name());
    }
}
