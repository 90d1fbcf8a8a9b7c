//! The public SDKs of the Hyperstack API, installed by name into the cache, and scripts that take them
//! through a VM's whole life: that clients which know nothing of us work unchanged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Progress;
use crate::guest_image::ImageError;
use crate::packages::ensure;
use crate::python::{InstallError, environment, once, run, works};

/// An SDK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sdk {
    /// `hyperstack` of the Python package index.
    Python,
    /// `@nexgencloud/hyperstack-sdk-javascript` of the npm registry.
    JavaScript,
}

/// What a script needs to know.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    /// The API, as `https://127.0.0.1:8443/v1`.
    pub url: &'a str,
    /// An API key of a member.
    pub key: &'a str,
    /// The certificate of the authority that signed the server's, as a PEM file.
    pub authority: &'a Path,
    /// A region.
    pub region: &'a str,
    /// A flavor with at least one VF, of which two VMs have room there.
    pub flavor: &'a str,
    /// An image.
    pub image: &'a str,
    /// How long a VM may take for anything, in seconds.
    pub seconds: u32,
}

impl Sdk {
    /// Its folder in the cache; raise the number when it is made in another way.
    fn folder(self) -> &'static str {
        match self {
            Self::Python => "sdk-python-1",
            Self::JavaScript => "sdk-javascript-1",
        }
    }

    /// Install it, unless it is there.
    ///
    /// Several processes may call this at once; one installs and the others wait.
    ///
    /// # Errors
    /// [`InstallError`].
    pub fn install(self, cache: &Path, progress: Progress<'_>) -> Result<PathBuf, InstallError> {
        once(cache, self.folder(), progress, |folder, progress| match self {
            // It has pre-releases only.
            Self::Python => environment(folder, &["hyperstack==1.56.1a0"], progress),
            Self::JavaScript => javascript(folder, progress),
        })
    }

    /// The command that takes it through a VM's life; `folder` is where it was installed. It ends with
    /// 0 if all was as it should be, and says what was.
    ///
    /// # Errors
    /// [`InstallError::Cache`].
    pub fn script(self, folder: &Path, target: &Target<'_>) -> Result<Command, InstallError> {
        let (name, text) = match self {
            Self::Python => ("hyperstack-life.py", include_str!("../sdk/hyperstack.py")),
            Self::JavaScript => ("hyperstack-life.js", include_str!("../sdk/hyperstack.js")),
        };
        let script = folder.join(name);
        fs::write(&script, text).map_err(|error| ImageError::file(&script, error))?;
        let mut command = match self {
            Self::Python => Command::new(folder.join("bin/python")),
            Self::JavaScript => Command::new("node"),
        };
        command
            .arg(script)
            .env("SDK_URL", target.url)
            .env("SDK_KEY", target.key)
            .env("SDK_CA", target.authority)
            .env("NODE_EXTRA_CA_CERTS", target.authority)
            .env("SDK_REGION", target.region)
            .env("SDK_FLAVOR", target.flavor)
            .env("SDK_IMAGE", target.image)
            .env("SDK_SECONDS", target.seconds.to_string());
        // Neither is to go by way of a proxy: the server is on this machine.
        command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
        Ok(command)
    }
}

fn javascript(folder: &Path, progress: Progress<'_>) -> Result<(), InstallError> {
    // Node from elsewhere than Debian brings its own npm.
    if !works("npm", &["--version"]) {
        ensure(&["nodejs", "npm"], progress)?;
    }
    progress("installing the JavaScript SDK");
    let package = "@nexgencloud/hyperstack-sdk-javascript@1.55.1-alpha";
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-save", "--prefix"]).arg(folder).arg(package);
    run(&mut npm, &format!("npm install {package}"))
}
