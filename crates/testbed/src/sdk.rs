//! The public SDKs of the Hyperstack API, installed by name into the cache, and scripts that take them
//! through a VM's whole life: that clients which know nothing of us work unchanged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Progress;
use crate::debian::remove_folder;
use crate::guest_image::{ImageError, lock};
use crate::packages::{PackageError, ensure, last_lines};

/// An SDK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sdk {
    /// `hyperstack` of the Python package index.
    Python,
    /// `@nexgencloud/hyperstack-sdk-javascript` of the npm registry.
    JavaScript,
}

/// Why there is no SDK.
#[derive(Debug, thiserror::Error)]
pub enum SdkError {
    /// Python or Node could not be installed.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// The cache could not be written.
    #[error(transparent)]
    Cache(#[from] ImageError),
    /// The installer failed.
    #[error("{what} failed: {why}")]
    Install {
        /// What was run.
        what: String,
        /// Its last lines.
        why: String,
    },
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
    /// [`SdkError`].
    pub fn install(self, cache: &Path, progress: Progress<'_>) -> Result<PathBuf, SdkError> {
        let folder = cache.join(self.folder());
        // A virtual environment knows its own path, so it cannot be renamed once it is whole; this
        // file says that it is.
        let whole = folder.join("whole");
        fs::create_dir_all(cache).map_err(|error| ImageError::file(cache, error))?;
        let _lock = lock(&cache.join("sdk.lock"), "installs an SDK", progress)?;
        if whole.exists() {
            return Ok(folder);
        }
        remove_folder(&folder)?;
        fs::create_dir_all(&folder).map_err(|error| ImageError::file(&folder, error))?;
        match self {
            Self::Python => python(&folder, progress)?,
            Self::JavaScript => javascript(&folder, progress)?,
        }
        fs::write(&whole, "").map_err(|error| ImageError::file(&whole, error))?;
        Ok(folder)
    }

    /// The command that takes it through a VM's life; `folder` is where it was installed. It ends with
    /// 0 if all was as it should be, and says what was.
    ///
    /// # Errors
    /// [`SdkError::Cache`].
    pub fn script(self, folder: &Path, target: &Target<'_>) -> Result<Command, SdkError> {
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

fn run(command: &mut Command, what: &str) -> Result<(), SdkError> {
    let failed = |why: String| SdkError::Install { what: what.to_owned(), why };
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(failed(last_lines(&output))) }
}

fn works(program: &str, arguments: &[&str]) -> bool {
    run(Command::new(program).args(arguments), program).is_ok()
}

fn python(folder: &Path, progress: Progress<'_>) -> Result<(), SdkError> {
    if !works("python3", &["-c", "import venv, ensurepip"]) {
        ensure(&["python3-venv"], progress)?;
    }
    progress("installing the Python SDK");
    run(Command::new("python3").args(["-m", "venv"]).arg(folder), "python3 -m venv")?;
    // It has pre-releases only.
    let package = "hyperstack==1.56.1a0";
    let mut pip = Command::new(folder.join("bin/pip"));
    run(pip.args(["install", "--quiet", "--pre", package]), &format!("pip install {package}"))
}

fn javascript(folder: &Path, progress: Progress<'_>) -> Result<(), SdkError> {
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
