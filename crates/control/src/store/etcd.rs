//! etcd as the store, for more than one server.
//!
//! Each member has a client of its own, and one is favoured until it fails: a balanced channel would
//! go on giving every n-th request to a member that is down. Whether a request that failed was done is
//! told apart with care: what can be asked twice is asked of the next member; a transaction only if
//! it certainly was not proposed, else the caller is told that the outcome is unknown.

mod watch;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, GetResponse, KeyValue, KvClient,
    LeaseClient, PutOptions, Txn, TxnOp, TxnOpResponse, WatchClient,
};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use self::watch::Watcher;
use super::{
    Entry, Expect, KeyPage, Lease, LeaseId, Outcome, Page, Range, Revision, Scope, Store,
    StoreError, Transaction, Watch, Write,
};
use crate::keys::Key;

/// How long one member may take before the next is asked: longer than an election takes with etcd's
/// defaults (a second).
const ATTEMPT: Duration = Duration::from_secs(3);

/// How long all members together are asked.
const PATIENCE: Duration = Duration::from_secs(15);

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Pings find a member that went without a word. etcd ends connections that ping more often than
/// every five seconds (`--grpc-keepalive-min-time`).
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// Longest answer, in bytes: a page of entries that are 256 KB each.
const LONGEST_ANSWER: usize = 256 << 20;

/// Where etcd is, and where in it.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// A URL for each member, as in `http://10.0.0.1:2379`.
    pub endpoints: Vec<String>,
    /// What stands before each key, so that others can use the same etcd; may be empty.
    pub root: String,
}

/// A store in etcd.
#[derive(Clone)]
pub struct Etcd(Arc<Cluster>);

struct Member {
    kv: KvClient,
    lease: LeaseClient,
    watch: WatchClient,
}

struct Cluster {
    members: Vec<Member>,
    favoured: AtomicUsize,
    root: String,
}

impl Etcd {
    /// Connect, and see that a majority answers.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn connect(config: EtcdConfig) -> Result<Self, StoreError> {
        let unavailable = |error: Error| StoreError::Unavailable(error.to_string());
        let options = ConnectOptions::new()
            .with_connect_timeout(ATTEMPT)
            .with_keep_alive(PING.0, PING.1)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        let mut members = Vec::new();
        for endpoint in &config.endpoints {
            let client = Client::connect([endpoint], Some(options.clone())).await;
            let client = client.map_err(unavailable)?;
            members.push(Member {
                kv: client.kv_client().max_decoding_message_size(LONGEST_ANSWER),
                lease: client.lease_client(),
                watch: client.watch_client().max_decoding_message_size(LONGEST_ANSWER),
            });
        }
        if members.is_empty() {
            return Err(StoreError::Unavailable("no endpoint of etcd is named".to_owned()));
        }
        let favoured = AtomicUsize::new(0);
        let etcd = Self(Arc::new(Cluster { members, favoured, root: config.root }));
        etcd.0.revision().await?;
        Ok(etcd)
    }
}

/// What an answer or its absence means.
enum Failure {
    /// The answer is final.
    Final(StoreError),
    /// It was not done, for no leader was there or the member could not be reached.
    NotDone(String),
    /// It may have been done.
    Unknown(String),
}

/// Tells what a failed request means. `lease` and `asked` are what the request was about.
fn judge(error: &Error, lease: Option<LeaseId>, asked: Option<Revision>) -> Failure {
    let text = error.to_string();
    if refused(error) {
        return Failure::NotDone(text);
    }
    if let Error::LeaseKeepAliveError(why) = error
        && why.contains("not found")
        && let Some(lease) = lease
    {
        return Failure::Final(StoreError::LeaseGone(lease));
    }
    let Error::GRpcStatus(status) = error else { return Failure::Unknown(text) };
    // The messages are etcd's api/v3rpc/rpctypes/error.go.
    let message = status.message();
    match (status.code(), lease, asked) {
        (Code::NotFound, Some(lease), _) if message.contains("lease not found") => {
            Failure::Final(StoreError::LeaseGone(lease))
        }
        (Code::OutOfRange, _, Some(asked)) if message.contains("compacted") => {
            // Which is the oldest is not said; the one after is the least it can be.
            Failure::Final(StoreError::Compacted { asked, oldest: asked.next() })
        }
        (Code::OutOfRange, _, Some(asked)) if message.contains("future revision") => {
            Failure::Final(StoreError::Future { asked })
        }
        (Code::Unavailable, ..) if message.contains("etcdserver: no leader") => {
            Failure::NotDone(text)
        }
        (Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated, ..) => {
            Failure::Final(StoreError::Unavailable(text))
        }
        _ => Failure::Unknown(text),
    }
}

/// Whether no connection came about, so that nothing was sent. A connection that broke later tells of
/// it by another kind.
fn refused(error: &Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    if let Error::GRpcStatus(status) = error {
        cause = std::error::Error::source(status);
    }
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::ConnectionRefused
        {
            return true;
        }
        cause = error.source();
    }
    false
}

fn revision_of(header: Option<&etcd_client::ResponseHeader>) -> Result<Revision, StoreError> {
    header
        .and_then(|header| u64::try_from(header.revision()).ok())
        .map(Revision)
        .ok_or_else(|| StoreError::Foreign("an answer of etcd without a revision".to_owned()))
}

impl Cluster {
    /// Ask one member after the other until one answers. `twice` says whether to go on when it may
    /// have been done already.
    async fn ask<T, F>(
        &self,
        twice: bool,
        about: (Option<LeaseId>, Option<Revision>),
        request: impl Fn(usize) -> F + Send,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        let ends = Instant::now() + PATIENCE;
        loop {
            let member = self.favoured.load(Ordering::Relaxed);
            let failure = match timeout(ATTEMPT, request(member)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => judge(&error, about.0, about.1),
                Err(_) => Failure::Unknown(format!("no answer within {} s", ATTEMPT.as_secs())),
            };
            if !matches!(failure, Failure::Final(_)) {
                self.turn_from(member);
            }
            let why = match failure {
                Failure::Final(error) => return Err(error),
                Failure::Unknown(why) if !twice => return Err(StoreError::Unknown(why)),
                Failure::Unknown(why) | Failure::NotDone(why) => why,
            };
            if Instant::now() >= ends {
                return Err(StoreError::Unavailable(why));
            }
            sleep(PAUSE).await;
        }
    }

    /// Favour the next member, unless somebody did so already.
    fn turn_from(&self, member: usize) {
        let next = (member + 1) % self.members.len();
        let _ = self.favoured.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn path(&self, key: &str) -> String {
        format!("{}{key}", self.root)
    }

    fn key(&self, path: &[u8]) -> Result<Key, StoreError> {
        let text = String::from_utf8_lossy(path);
        let own = text.strip_prefix(self.root.as_str()).unwrap_or(&text);
        Key::parse(own).map_err(|error| StoreError::Foreign(error.to_string()))
    }

    fn entry(&self, kv: &KeyValue) -> Result<Entry, StoreError> {
        Ok(Entry {
            key: self.key(kv.key())?,
            value: kv.value().to_vec(),
            created: Revision(kv.create_revision().cast_unsigned()),
            modified: Revision(kv.mod_revision().cast_unsigned()),
            lease: (kv.lease() != 0).then_some(LeaseId(kv.lease().cast_unsigned())),
        })
    }

    /// One page, with values or without, and the revision it is of.
    async fn read(
        &self,
        range: &Range,
        keys_only: bool,
    ) -> Result<(GetResponse, Revision), StoreError> {
        let (first, end) = self.bounds(&range.scope);
        let after = range.after.as_ref().map(|key| format!("{}\0", self.path(key.as_str())));
        let first = after.map_or(first.clone(), |after| after.max(first));
        let mut options = GetOptions::new()
            .with_limit(i64::try_from(range.limit).unwrap_or(i64::MAX))
            .with_revision(range.at.map_or(0, |at| at.0.cast_signed()));
        if let Some(end) = end {
            options = options.with_range(end);
        }
        if keys_only {
            options = options.with_keys_only();
        }
        let answer = self.ask(true, (None, range.at), |member| {
            let (mut kv, first, options) =
                (self.members[member].kv.clone(), first.clone(), options.clone());
            async move { kv.get(first, Some(options)).await }
        });
        let answer = answer.await?;
        let revision = range.at.map_or_else(|| revision_of(answer.header()), Ok)?;
        Ok((answer, revision))
    }

    /// The newest revision.
    async fn revision(&self) -> Result<Revision, StoreError> {
        let path = self.path("/");
        let answer = self.ask(true, (None, None), |member| {
            let (mut kv, path) = (self.members[member].kv.clone(), path.clone());
            async move { kv.get(path, Some(GetOptions::new().with_keys_only())).await }
        });
        revision_of(answer.await?.header())
    }

    /// Where a scope begins and ends; etcd takes the first as the one key if there is no end.
    fn bounds(&self, scope: &Scope) -> (String, Option<Vec<u8>>) {
        match scope {
            Scope::Key(key) => (self.path(key.as_str()), None),
            Scope::Under(prefix) => {
                let first = self.path(prefix.as_str());
                let mut end = first.clone().into_bytes();
                // A prefix ends with '/', which is no byte's last value.
                if let Some(last) = end.last_mut() {
                    *last += 1;
                }
                (first, Some(end))
            }
        }
    }

    fn transaction(&self, transaction: &Transaction) -> Txn {
        let compares = transaction.expects().iter().map(|(key, expected)| {
            let revision = match expected {
                Expect::Absent => 0,
                Expect::At(revision) => revision.0.cast_signed(),
            };
            Compare::mod_revision(self.path(key.as_str()), CompareOp::Equal, revision)
        });
        let writes = transaction.writes().iter().map(|(key, write)| match write {
            Write::Put { value, lease } => {
                let under = lease.map(|id| PutOptions::new().with_lease(id.0.cast_signed()));
                TxnOp::put(self.path(key.as_str()), value.clone(), under)
            }
            Write::Delete => TxnOp::delete(self.path(key.as_str()), None),
        });
        let reads = transaction.expects().keys().map(|key| {
            TxnOp::get(self.path(key.as_str()), Some(GetOptions::new().with_keys_only()))
        });
        Txn::new()
            .when(compares.collect::<Vec<_>>())
            .and_then(writes.collect::<Vec<_>>())
            .or_else(reads.collect::<Vec<_>>())
    }
}

/// The keys that were not as expected, by what they were when the transaction was judged.
fn conflicts(transaction: &Transaction, answers: &[TxnOpResponse]) -> Vec<(Key, Option<Revision>)> {
    let found = answers.iter().map(|answer| match answer {
        TxnOpResponse::Get(get) => get.kvs().first().map(KeyValue::mod_revision),
        _ => None,
    });
    let found = found.map(|revision| revision.map(|number| Revision(number.cast_unsigned())));
    let expects = transaction.expects().iter().zip(found);
    let conflicts = expects.filter(|((_, expected), found)| match expected {
        Expect::Absent => found.is_some(),
        Expect::At(revision) => *found != Some(*revision),
    });
    conflicts.map(|((key, _), found)| (key.clone(), found)).collect()
}

#[async_trait]
impl Store for Etcd {
    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        transaction.check()?;
        let lease = transaction.writes().values().find_map(|write| match write {
            Write::Put { lease, .. } => *lease,
            Write::Delete => None,
        });
        let txn = self.0.transaction(&transaction);
        let answer = self.0.ask(false, (lease, None), |member| {
            let (mut kv, txn) = (self.0.members[member].kv.clone(), txn.clone());
            async move { kv.txn(txn).await }
        });
        let answer = answer.await?;
        let revision = revision_of(answer.header())?;
        Ok(if answer.succeeded() {
            Outcome::Committed(revision)
        } else {
            let keys = conflicts(&transaction, &answer.op_responses());
            Outcome::Conflict { revision, keys }
        })
    }

    async fn range(&self, range: Range) -> Result<Page, StoreError> {
        let (answer, revision) = self.0.read(&range, false).await?;
        let entries: Result<Vec<Entry>, StoreError> =
            answer.kvs().iter().map(|kv| self.0.entry(kv)).collect();
        Ok(Page { revision, entries: entries?, more: answer.more() })
    }

    async fn keys(&self, range: Range) -> Result<KeyPage, StoreError> {
        let (answer, revision) = self.0.read(&range, true).await?;
        let keys: Result<Vec<Key>, StoreError> =
            answer.kvs().iter().map(|kv| self.0.key(kv.key())).collect();
        Ok(KeyPage { revision, keys: keys?, more: answer.more() })
    }

    async fn watch(&self, scope: Scope, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        Ok(Box::new(Watcher::new(Arc::clone(&self.0), scope, after)))
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, StoreError> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds.max(1)).unwrap_or(i64::MAX);
        // Asked twice it may leave one that nobody knows, and which ends by itself.
        let answer = self.0.ask(true, (None, None), |member| {
            let mut lease = self.0.members[member].lease.clone();
            async move { lease.grant(seconds, None).await }
        });
        let answer = answer.await?;
        Ok(Lease {
            id: LeaseId(answer.id().cast_unsigned()),
            ttl: Duration::from_secs(answer.ttl().max(0).cast_unsigned()),
        })
    }

    async fn keep_alive(&self, id: LeaseId) -> Result<(), StoreError> {
        let answer = self.0.ask(true, (Some(id), None), |member| {
            let mut lease = self.0.members[member].lease.clone();
            // Its first answer is waited for in there.
            async move { lease.keep_alive(id.0.cast_signed()).await.map(drop) }
        });
        answer.await
    }

    async fn revoke(&self, id: LeaseId) -> Result<(), StoreError> {
        let answer = self.0.ask(true, (Some(id), None), |member| {
            let mut lease = self.0.members[member].lease.clone();
            async move { lease.revoke(id.0.cast_signed()).await.map(drop) }
        });
        answer.await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let answer = self.0.ask(true, (None, Some(revision)), |member| {
            let mut kv = self.0.members[member].kv.clone();
            async move { kv.compact(revision.0.cast_signed(), None).await.map(drop) }
        });
        match answer.await {
            Err(StoreError::Compacted { .. }) => Ok(()),
            other => other,
        }
    }
}
