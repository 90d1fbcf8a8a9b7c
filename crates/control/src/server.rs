//! The server: the API over HTTPS, the lives of VMs, and a store.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::api::{Api, Rates, State};
use crate::cloud::{Cloud, CloudError};
use crate::keys::{self, OrgName, ServerName};
use crate::metrics::Metrics;
use crate::resource::{ApiKey, ApiKeySpec, OrganizationSpec, Role};
use crate::store::{Embedded, Store, StoreError, Transaction};
use crate::tls::{Authority, Limits, Listener, Peer, ServerCertificate, TlsError};

/// The organization of the first operator.
pub const OPERATORS: &str = "operators";

/// How long calls may go on after the server was asked to end.
const GRACE: Duration = Duration::from_secs(3);

/// Where the store is.
#[derive(Clone, Debug)]
pub enum StoreConfig {
    /// In the server's own data directory.
    Embedded,
    /// In an etcd cluster.
    #[cfg(feature = "etcd")]
    Etcd(crate::store::EtcdConfig),
}

/// How a server runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory of its authority, its store and the first operator's key.
    pub data: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Names and addresses that its certificate is for.
    pub names: Vec<String>,
    /// A certificate and its key, as PEM files, instead of one of its own authority.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Its store.
    pub store: StoreConfig,
    /// Its name among other servers of the store.
    pub name: ServerName,
    /// How often who may call.
    pub rates: Rates,
}

/// Why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// What it makes at its first start.
    #[error(transparent)]
    Cloud(#[from] CloudError),
    /// A file or a port.
    #[error("{what}: {error}")]
    System {
        /// Which.
        what: String,
        /// What the system said.
        error: std::io::Error,
    },
}

fn system<T: ToString>(what: &T) -> impl FnOnce(std::io::Error) -> ServerError + use<T> {
    let what = what.to_string();
    move |error| ServerError::System { what, error }
}

/// A server that listens.
pub struct Server {
    cloud: Arc<Cloud>,
    metrics: Arc<Metrics>,
    authority: Arc<Authority>,
    listener: Listener,
    address: SocketAddr,
    name: ServerName,
    rates: Rates,
    renews: bool,
    names: Vec<String>,
}

impl Server {
    /// Open the store, listen, and at the first start make the first operator's API key.
    ///
    /// # Errors
    /// [`ServerError`].
    pub async fn start(config: Config) -> Result<Self, ServerError> {
        let data = &config.data;
        std::fs::create_dir_all(data).map_err(system(&data.display()))?;
        let authority = Arc::new(Authority::open(data)?);
        let store: Arc<dyn Store> = match &config.store {
            StoreConfig::Embedded => Arc::new(Embedded::open(&data.join("store"))?),
            #[cfg(feature = "etcd")]
            StoreConfig::Etcd(etcd) => Arc::new(crate::store::Etcd::connect(etcd.clone()).await?),
        };
        let certificate = match &config.certificate {
            Some((certificates, key)) => ServerCertificate::from_files(certificates, key)?,
            None => authority.issue_server(&config.names)?,
        };
        let port = tokio::net::TcpListener::bind(config.listen).await;
        let port = port.map_err(system(&config.listen))?;
        let address = port.local_addr().map_err(system(&config.listen))?;
        let listener = Listener::new(port, &authority, certificate, Limits::default())?;
        let metrics: Arc<Metrics> = Arc::default();
        let cloud = Arc::new(Cloud::counting(store, Arc::clone(&metrics)));
        if matches!(config.store, StoreConfig::Embedded) {
            depose(cloud.store()).await?;
        }
        first_operator(&cloud, data).await?;
        Ok(Self {
            cloud,
            metrics,
            authority,
            listener,
            address,
            name: config.name,
            rates: config.rates,
            renews: config.certificate.is_none(),
            names: config.names,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What can be done, without the API.
    pub fn cloud(&self) -> &Arc<Cloud> {
        &self.cloud
    }

    /// The certificate that clients check the server's by, as PEM.
    pub fn authority(&self) -> &str {
        self.authority.certificate_pem()
    }

    /// Serve until `end` is ready, and for a moment after it what was begun.
    ///
    /// # Errors
    /// [`ServerError::System`].
    pub async fn run(
        self,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), ServerError> {
        let Self { cloud, metrics, authority, listener, address, name, rates, renews, names } =
            self;
        let lives =
            tokio::spawn(crate::lifecycle::run(Arc::clone(&cloud), name, Arc::clone(&metrics)));
        let presented = listener.presented();
        let signer = Arc::clone(&authority);
        let renewal = tokio::spawn(async move {
            if !renews {
                return;
            }
            loop {
                let until = presented.renew_at().duration_since(std::time::SystemTime::now());
                tokio::time::sleep(until.unwrap_or_default().max(Duration::from_secs(60))).await;
                match signer.issue_server(&names) {
                    Ok(certificate) => presented.replace(certificate),
                    Err(error) => tracing::error!(%error, "the certificate was not renewed"),
                }
            }
        });
        let state = Arc::new(State::new(cloud, authority, metrics, rates));
        let router = Api::new(&state)
            .router
            .merge(crate::console::router())
            .layer(axum::middleware::from_fn(crate::api::guard_headers))
            .layer(axum::middleware::from_fn(crate::api::finish_body))
            .into_make_service_with_connect_info::<Peer>();
        let (ending, ended) = tokio::sync::oneshot::channel::<()>();
        let serving = axum::serve(listener, router).with_graceful_shutdown(async move {
            end.await;
            // Nobody waits any more if serving has failed.
            let _ = ending.send(());
        });
        let served = tokio::select! {
            served = serving.into_future() => served,
            // Streams of events have no end of their own.
            () = async { let _ = ended.await; tokio::time::sleep(GRACE).await } => Ok(()),
        };
        lives.abort();
        renewal.abort();
        served.map_err(system(&address))
    }
}

/// Who led when the store was last open does so no more: an embedded store is one server's at a time.
/// Nobody has to wait for the end of the leases of a server that was killed.
async fn depose(store: &Arc<dyn Store>) -> Result<(), StoreError> {
    let leaders = store.every_key(keys::leaders()).await?;
    for some in leaders.chunks(Transaction::MOST_KEYS) {
        let deposed = some.iter().fold(Transaction::new(), |all, key| all.delete(key.clone()));
        store.commit(deposed).await?;
    }
    Ok(())
}

/// Make the first operator's API key, if there is none yet, into a file that only its owner reads.
async fn first_operator(cloud: &Cloud, data: &Path) -> Result<(), ServerError> {
    let name = OrgName::new(OPERATORS).map_err(CloudError::from)?;
    match cloud.named_global::<crate::resource::Organization>(OPERATORS).await {
        Ok(_) => {}
        Err(CloudError::NotFound { .. }) => {
            let description = "who runs this cloud".to_owned();
            let spec = OrganizationSpec { name: name.clone(), description };
            match cloud.create_organization(spec, None).await {
                // Another server was quicker.
                Ok(_) | Err(CloudError::Taken { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(error) => return Err(error.into()),
    }
    let keys = cloud.all::<ApiKey>(&name).await?;
    if keys.iter().any(|key| key.value.role == Role::Operator) {
        return Ok(());
    }
    new_operator_key(cloud, data).await?;
    Ok(())
}

/// A new API key of an operator's, in the file `operator.key` of the data directory.
///
/// # Errors
/// [`ServerError`].
pub async fn new_operator_key(cloud: &Cloud, data: &Path) -> Result<PathBuf, ServerError> {
    let name = OrgName::new(OPERATORS).map_err(CloudError::from)?;
    let file = data.join("operator.key");
    let new = data.join("operator.key.new");
    // Opened first: a key that cannot be written down is not made.
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut written = options.open(&new).map_err(system(&new.display()))?;
    let spec =
        ApiKeySpec { name: "first operator".to_owned(), role: Role::Operator, expires_at: None };
    let (_, secret) = cloud.create_key(&name, spec, Role::Operator).await?;
    writeln!(written, "{}", secret.reveal()).map_err(system(&new.display()))?;
    written.sync_all().map_err(system(&new.display()))?;
    std::fs::rename(&new, &file).map_err(system(&file.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::keys::DutyName;
    use crate::store::Election;

    #[tokio::test]
    async fn who_led_an_embedded_store_before_it_was_opened_anew_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let store =
            || -> Arc<dyn Store> { Arc::new(Embedded::open(folder.path()).expect("a store")) };
        // Longer than the test may take.
        let lease = Duration::from_secs(3600);
        let stand = |store: &Arc<dyn Store>, name: &str| {
            let duty = DutyName::new("lifecycle-north").expect("a name");
            Election::new(Arc::clone(store), &duty, ServerName::new(name).expect("a name"), lease)
        };
        let before = store();
        let killed = stand(&before, "killed").campaign().await.expect("elected");
        drop(killed);
        // What keeps the lease alive has to be gone as well.
        let began = Instant::now();
        while Arc::strong_count(&before) > 1 {
            assert!(began.elapsed() < Duration::from_secs(60));
            tokio::task::yield_now().await;
        }
        drop(before);
        let after = store();
        depose(&after).await.expect("deposed");
        let new = stand(&after, "new");
        let elected = tokio::time::timeout(Duration::from_secs(60), new.campaign()).await;
        drop(elected.expect("not waited for").expect("elected"));
    }
}
