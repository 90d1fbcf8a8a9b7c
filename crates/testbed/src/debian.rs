//! Packages as apt knows them: which versions make up the guest or a QEMU of one's own, fetched and
//! unpacked beside this machine's own system, which is left as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::guest_image::ImageError;
use crate::packages::last_lines;

/// One package in the version apt would install.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) sha256: String,
}

impl Package {
    /// File name in the store of fetched packages.
    pub(crate) fn file_name(&self) -> String {
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

/// apt, with the lists of this machine or with lists of one's own.
#[derive(Default)]
pub(crate) struct Apt {
    /// Options that stand before each command.
    options: Vec<String>,
}

impl Apt {
    /// apt with sources, lists and settings in `folder`, which knows nothing of what is installed on
    /// this machine and leaves nothing outside of the folder. `sources` is text as in
    /// sources.list(5); packages come from `suite` where it has them, and else from the others.
    pub(crate) fn apart(folder: &Path, sources: &str, suite: &str) -> Result<Self, ImageError> {
        let make = |name: &str| {
            let path = folder.join(name);
            fs::create_dir_all(&path).map_err(|error| ImageError::file(&path, error))
        };
        make("lists/partial")?;
        make("cache/archives/partial")?;
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).map_err(|error| ImageError::file(&path, error))
        };
        write("sources.list", sources)?;
        write("status", "")?;
        let folder = folder.display();
        let settings = [
            format!("Dir::Etc::SourceList={folder}/sources.list"),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            "Dir::Etc::PreferencesParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={folder}/lists"),
            format!("Dir::State::status={folder}/status"),
            format!("Dir::Cache={folder}/cache"),
            format!("APT::Default-Release={suite}"),
            "Acquire::Languages=none".to_owned(),
            // Descriptions of applications, which some machines fetch with the lists.
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
        ];
        let options = settings.into_iter().flat_map(|setting| ["-o".to_owned(), setting]).collect();
        Ok(Self { options })
    }

    /// Fetch the package lists anew.
    pub(crate) fn update(&self) -> Result<(), ImageError> {
        let mut command = self.command("apt-get");
        // Without this a list that could not be fetched is only a warning.
        command.args(["-q", "update", "--error-on=any"]);
        run(command, "apt-get update").map(drop)
    }

    fn command(&self, tool: &str) -> Command {
        let mut command = Command::new(tool);
        command.args(&self.options);
        command
    }

    /// What `apt-cache show` says of these packages; names it does not know are left out.
    fn show(&self, names: &BTreeSet<String>) -> Result<Vec<Stanza>, ImageError> {
        let output = self
            .command("apt-cache")
            .args(["show", "--no-all-versions"])
            .args(names)
            .output()
            .map_err(|error| ImageError::tool("apt-cache", &error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.split("\n\n").filter_map(Stanza::parse).collect())
    }

    /// The first dependency of a package whose name begins with `prefix`.
    pub(crate) fn dependency(&self, package: &str, prefix: &str) -> Result<String, ImageError> {
        self.show(&BTreeSet::from([package.to_owned()]))?
            .into_iter()
            .flat_map(|stanza| stanza.depends)
            .find(|name| name.starts_with(prefix))
            .ok_or_else(|| ImageError::NoSuchPackage(package.to_owned()))
    }

    /// The packages named and every library below them, by name.
    ///
    /// Of dependencies only libraries are followed: what a package's maintainer scripts need
    /// (debconf, adduser) is of no use where no script runs.
    pub(crate) fn resolve(&self, names: &[&str]) -> Result<Vec<Package>, ImageError> {
        let wanted: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let found = closure(&wanted, |names| self.show(names))?;
        match wanted.iter().find(|name| !found.contains_key(*name)) {
            Some(name) => Err(ImageError::NoSuchPackage(name.clone())),
            None => Ok(found.into_values().collect()),
        }
    }

    /// Fetch those packages that are not in `store` yet. apt checks each against its signed lists.
    pub(crate) fn fetch(&self, packages: &[Package], store: &Path) -> Result<(), ImageError> {
        let missing: Vec<&Package> =
            packages.iter().filter(|package| !store.join(package.file_name()).exists()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let incoming = store.join("incoming");
        remove_folder(&incoming)?;
        fs::create_dir_all(&incoming).map_err(|error| ImageError::file(&incoming, error))?;
        let mut command = self.command("apt-get");
        command
            // The folder need not be open to apt's own user.
            .args(["-q", "-o", "APT::Sandbox::User=root", "download"])
            .args(missing.iter().map(|package| format!("{}={}", package.name, package.version)))
            .current_dir(&incoming);
        run(command, "apt-get download")?;
        for package in missing {
            let arrived = arrived(&incoming, &package.name)?;
            let stored = store.join(package.file_name());
            fs::rename(&arrived, &stored).map_err(|error| ImageError::file(&stored, error))?;
        }
        remove_folder(&incoming)
    }
}

/// Runs a command that has to succeed; gives back its standard output.
pub(crate) fn run(mut command: Command, tool: &'static str) -> Result<String, ImageError> {
    let output = command.output().map_err(|error| ImageError::tool(tool, &error))?;
    if !output.status.success() {
        return Err(ImageError::Tool { tool, why: last_lines(&output) });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The distribution this machine's packages come from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Archive {
    /// Where its packages are fetched, as this machine does.
    pub(crate) uri: String,
    /// The release's code name, which is the name of its main suite too.
    pub(crate) codename: String,
}

/// Debian's main suite among this machine's sources, whatever form they are written in. `None`
/// without package lists, or if this is no Debian.
pub(crate) fn archive() -> Result<Option<Archive>, ImageError> {
    let mut command = Command::new("apt-get");
    let format = "$(LABEL) $(CODENAME) $(RELEASE) $(REPO_URI)";
    command.args(["indextargets", "--format", format, "Created-By: Packages"]);
    Ok(main_suite(&run(command, "apt-get indextargets")?))
}

/// The line of Debian's own archive (Debian-Security has another label) whose suite is a release
/// (those for updates and backports have its name with something after it).
fn main_suite(targets: &str) -> Option<Archive> {
    targets.lines().find_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
        ["Debian", codename, _, uri] if !codename.contains('-') => {
            Some(Archive { uri: uri.to_owned(), codename: codename.to_owned() })
        }
        _ => None,
    })
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
pub(crate) fn sweep(packages: &[Package], store: &Path) -> Result<(), ImageError> {
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
pub(crate) fn unpack(packages: &[Package], store: &Path, tree: &Path) -> Result<(), ImageError> {
    for package in packages {
        let mut command = Command::new("dpkg-deb");
        command.arg("-x").arg(store.join(package.file_name())).arg(tree);
        run(command, "dpkg-deb -x")?;
    }
    Ok(())
}

/// Remove a folder with all that is in it; one that is not there is as good.
pub(crate) fn remove_folder(path: &Path) -> Result<(), ImageError> {
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
    fn the_main_suite_is_found_among_its_updates_and_other_archives() {
        let targets = "Google tools-x tools-x https://one/\n\
                       Debian bookworm-updates bookworm-updates http://two/\n\
                       Debian bookworm oldstable http://two/\n\
                       Debian-Security bookworm-security bookworm-security http://three/\n";
        let want = Archive { uri: "http://two/".to_owned(), codename: "bookworm".to_owned() };
        assert_eq!(main_suite(targets), Some(want));
        assert_eq!(main_suite("Ubuntu noble noble http://two/\n"), None);
        assert_eq!(main_suite("$(LABEL) $(CODENAME) bookworm http://two/\n"), None);
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
