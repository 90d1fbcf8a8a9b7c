//! `lanekeeper context`: the servers that one works with, each under a name, with what proves which
//! server it is and with the API key to show it. They are in one file that its user alone can read,
//! `~/.config/lanekeeper/contexts.toml`.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use lanekeeper_client::{Client, Endpoint};
use serde::{Deserialize, Serialize};

use super::connect::{API_KEY, authority};
use super::table::{Column, Row, print_json, print_rows};
use crate::Failure;
use crate::output::{note, print};

/// Permissions that others than the file's user have.
const OTHERS: u32 = 0o077;

/// Keep the servers that you work with: address, authority and API key, each under a name.
#[derive(clap::Args)]
#[command(
    after_help = "They are kept in ~/.config/lanekeeper/contexts.toml (under XDG_CONFIG_HOME if that \
is set), which you alone can read. LANEKEEPER_SERVER, LANEKEEPER_AUTHORITY and LANEKEEPER_API_KEY go \
before the chosen context, and --context NAME before these."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Add a server, or change what is kept of it; the first one is used from then on.
    Add(Add),
    /// Use this one from now on.
    Use {
        /// Its name.
        name: String,
    },
    /// Show all, without their keys.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Forget one.
    Delete {
        /// Its name.
        name: String,
    },
}

#[derive(clap::Args)]
struct Add {
    /// What to call it.
    name: String,
    /// The server's address, as https://server.example:8443.
    #[arg(long, value_name = "URL")]
    server: String,
    /// The authority's certificate (PEM) that the server's must be of; it is copied. Without one,
    /// those of this machine count.
    #[arg(long, value_name = "FILE")]
    authority: Option<PathBuf>,
    /// File with the API key, or - for standard input; LANEKEEPER_API_KEY if not given. It is copied.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Organization to work in, with an operator's key; the key's own if not given.
    #[arg(long, value_name = "NAME")]
    organization: Option<String>,
}

/// A server, and who one is there.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Context {
    pub(super) server: String,
    /// PEM, or the path of a file with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) authority: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) api_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) organization: Option<String>,
}

/// What is in the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Contexts {
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

fn path() -> Result<PathBuf, Failure> {
    let set = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let folder = set.filter(|path| path.is_absolute());
    let folder = folder.or_else(|| Some(std::env::home_dir()?.join(".config")));
    let none = || Failure::Usage("there is no home directory: set HOME".to_owned());
    Ok(folder.ok_or_else(none)?.join("lanekeeper/contexts.toml"))
}

impl Contexts {
    pub(super) fn load() -> Result<Self, Failure> {
        let path = path()?;
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Failure::Usage(format!("{}: {error}", path.display()))),
        };
        warn_if_open(&path);
        // The whole error would show the line, and a key may be in it.
        toml::from_str(&text).map_err(|error| {
            Failure::Usage(format!(
                "{} is not as it should be: {}",
                path.display(),
                error.message()
            ))
        })
    }

    /// Written beside and renamed, so that it is whole at any time.
    fn save(&self) -> Result<(), Failure> {
        let path = path()?;
        let failed = |why: &dyn std::fmt::Display| {
            Failure::Work(format!("{} cannot be written: {why}", path.display()))
        };
        let text = toml::to_string(self).map_err(|why| failed(&why))?;
        let folder = path.parent().unwrap_or(&path);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|why| failed(&why))?;
        // Of mode 0600 from its first moment.
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|why| failed(&why))?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all());
        written.map_err(|why| failed(&why))?;
        file.persist(&path).map_err(|why| failed(&why.error))?;
        Ok(())
    }

    /// The one of this name; the current one if none is named.
    pub(super) fn chosen(&self, name: Option<&str>) -> Result<Option<&Context>, Failure> {
        match name.or(self.current.as_deref()) {
            Some(name) => self.contexts.get(name).map(Some).ok_or_else(|| self.none(name)),
            None => Ok(None),
        }
    }

    fn none(&self, name: &str) -> Failure {
        let names: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
        let known = match names.as_slice() {
            [] => "there are none; add one with 'lanekeeper context add'".to_owned(),
            names => format!("there are: {}", names.join(", ")),
        };
        Failure::Usage(format!("there is no context '{name}'; {known}"))
    }
}

fn warn_if_open(path: &Path) {
    let open = |mode: u32| mode & OTHERS != 0;
    if std::fs::metadata(path).is_ok_and(|found| open(found.permissions().mode())) {
        let path = path.display();
        note(format!("warning: others can read {path}, API keys included: chmod 600 {path}"));
    }
}

/// A context as it is shown.
#[derive(Serialize)]
struct Shown {
    name: String,
    current: bool,
    server: String,
    organization: Option<String>,
}

impl Row for Shown {
    const COLUMNS: &'static [Column<Self>] = &[
        ("NAME", |shown| shown.name.clone()),
        ("CURRENT", |shown| if shown.current { "*" } else { "" }.to_owned()),
        ("SERVER", |shown| shown.server.clone()),
        ("ORGANIZATION", |shown| shown.organization.clone().unwrap_or_default()),
    ];
}

/// Run the sub-command.
///
/// # Errors
/// [`Failure::Usage`] for a context or a file that cannot be; [`Failure::Work`].
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let mut contexts = Contexts::load()?;
    match args.command {
        Command::Add(add) => {
            let name = add.name.clone();
            contexts.contexts.insert(name.clone(), context(add)?);
            contexts.current.get_or_insert_with(|| name.clone());
            contexts.save()?;
            let current = contexts.current.as_ref() == Some(&name);
            let used = if current { ", and used from now on" } else { "" };
            print(format!("context {name} is kept{used}"))
        }
        Command::Use { name } => {
            contexts.chosen(Some(&name))?;
            contexts.current = Some(name.clone());
            contexts.save()?;
            print(format!("context {name} is used from now on"))
        }
        Command::List { json } => list(contexts, json),
        Command::Delete { name } => {
            contexts.contexts.remove(&name).ok_or_else(|| contexts.none(&name))?;
            if contexts.current.as_ref() == Some(&name) {
                contexts.current = None;
            }
            contexts.save()?;
            print(format!("context {name} is forgotten"))
        }
    }
}

/// What is to be kept, once a client of it could be.
fn context(add: Add) -> Result<Context, Failure> {
    let given = add.key_file.as_deref().map(read_key).transpose()?;
    let pem = add.authority.map(|file| authority(&file.display().to_string())).transpose()?;
    let context = Context {
        server: add.server,
        authority: pem,
        api_key: given.or_else(|| std::env::var(API_KEY).ok()),
        organization: add.organization,
    };
    Client::new(&Endpoint {
        authority_pem: context.authority.clone(),
        key: context.api_key.clone().map(Into::into),
        ..Endpoint::new(&context.server)
    })?;
    if context.api_key.is_none() {
        note("no API key is kept with it: give one with --key-file, or set LANEKEEPER_API_KEY");
    }
    Ok(context)
}

fn read_key(file: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = match file.to_str() {
        Some("-") => std::io::stdin().read_to_string(&mut text).map(drop),
        _ => std::fs::read_to_string(file).map(|read| text = read),
    };
    read.map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))?;
    match text.trim() {
        "" => Err(Failure::Usage(format!("{}: there is no API key in it", file.display()))),
        key => Ok(key.to_owned()),
    }
}

fn list(contexts: Contexts, json: bool) -> Result<(), Failure> {
    let Contexts { current, contexts } = contexts;
    let shown = contexts.into_iter().map(|(name, Context { server, organization, .. })| {
        let current = current.as_ref() == Some(&name);
        Shown { name, current, server, organization }
    });
    let shown: Vec<Shown> = shown.collect();
    if json { print_json(&shown) } else { print_rows(&shown) }
}
