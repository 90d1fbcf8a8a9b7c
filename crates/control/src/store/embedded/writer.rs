//! The one thread that writes. It takes all requests that wait, does them in their order in one redb
//! transaction, syncs once, and only then answers. Leases end here too: their deadlines are kept in
//! memory, since a lease that was kept alive a moment ago need not be known to the disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use redb::{Database, ReadableDatabase, ReadableTable};
use tokio::sync::oneshot;

use super::session::{Done, Session};
use super::tables::{LEASES, disk};
use super::watch::Subscribers;
use crate::store::{Lease, LeaseId, Outcome, Revision, StoreError, Transaction};

/// Most requests in one commit, so that the first of them does not wait for ever.
const GROUP: usize = 1024;

/// Most leases that one commit ends, so that those who keep theirs alive meanwhile do not come too late.
const ENDED: usize = 128;

/// The shortest lease: below it, a busy machine would lose leases that somebody keeps alive.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// What can be asked of the writer.
pub(super) enum Request {
    Commit(Transaction, Answer<Outcome>),
    Grant(Duration, Answer<Lease>),
    KeepAlive(LeaseId, Answer<()>),
    Revoke(LeaseId, Answer<()>),
    /// Compact up to a revision, but over no more than so many; answers how far it came.
    Compact {
        to: Revision,
        most: u64,
        answer: Answer<Revision>,
    },
}

/// What is told to somebody after the commit.
type Later = Box<dyn FnOnce(Option<&StoreError>)>;

/// The answer to give once it is known whether the commit succeeded.
fn later<T: 'static>(answer: Answer<T>, result: Result<T, StoreError>) -> Later {
    Box::new(move |failed| {
        // Whoever asked may have gone.
        let _ = answer.send(failed.map_or(result, |error| Err(error.clone())));
    })
}

struct Term {
    ttl: Duration,
    ends: Instant,
}

pub(super) struct Writer {
    database: Arc<Database>,
    subscribers: Arc<Subscribers>,
    leases: BTreeMap<u64, Term>,
    /// No lease ends before this: the least of all when it was last looked, for which all are read.
    none_before: Option<Instant>,
}

impl Writer {
    pub(super) fn new(
        database: Arc<Database>,
        subscribers: Arc<Subscribers>,
    ) -> Result<Self, StoreError> {
        let mut leases = BTreeMap::new();
        let transaction = database.begin_read().map_err(disk)?;
        for row in transaction.open_table(LEASES).map_err(disk)?.iter().map_err(disk)? {
            let (id, millis) = row.map_err(disk)?;
            let ttl = Duration::from_millis(millis.value());
            leases.insert(id.value(), Term { ttl, ends: Instant::now() + ttl });
        }
        let none_before = leases.values().map(|term: &Term| term.ends).min();
        Ok(Self { database, subscribers, leases, none_before })
    }

    /// Until everybody who could ask has gone, or the disk fails: what a file holds after a failed
    /// write or sync is known only when it is opened again.
    pub(super) fn run(mut self, requests: &Receiver<Request>) {
        while let Some(group) = self.wait(requests) {
            if let Err(error) = self.serve(group) {
                tracing::error!(%error, "the store writes nothing more");
                return;
            }
        }
    }

    /// The requests that wait, or none when a lease has ended first.
    fn wait(&self, requests: &Receiver<Request>) -> Option<Vec<Request>> {
        let first = match self.none_before {
            None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(ends) => requests.recv_timeout(ends.saturating_duration_since(Instant::now())),
        };
        let mut group = match first {
            Ok(request) => vec![request],
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        group.extend(std::iter::from_fn(|| requests.try_recv().ok()).take(GROUP - 1));
        Some(group)
    }

    fn serve(&mut self, group: Vec<Request>) -> Result<(), StoreError> {
        // Keeping alive comes first, and needs no disk: it may be just in time.
        let (alive, group): (Vec<_>, Vec<_>) =
            group.into_iter().partition(|request| matches!(request, Request::KeepAlive(..)));
        let now = Instant::now();
        for request in alive {
            let Request::KeepAlive(id, answer) = request else { continue };
            let _ = answer.send(self.keep_alive(id, now));
        }
        let ended = self.ended(now);
        if group.is_empty() && ended.is_empty() {
            return Ok(());
        }
        let mut answers = Vec::new();
        let result = self.write(group, &ended, &mut answers);
        for (revision, keys) in result.iter().flatten() {
            self.subscribers.tell(*revision, keys);
        }
        for answer in answers {
            answer(result.as_ref().err());
        }
        result.map(drop)
    }
}

impl Writer {
    /// The leases that have ended. They are looked through only when one may have: with ten thousand of
    /// them it would be most of the writer's work otherwise.
    fn ended(&mut self, now: Instant) -> Vec<u64> {
        if self.none_before.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let (ended, last): (Vec<_>, Vec<_>) =
            self.leases.iter().partition(|(_, term)| term.ends <= now);
        // What is left of them comes at once with the next commit.
        if ended.len() <= ENDED {
            self.none_before = last.iter().map(|(_, term)| term.ends).min();
        }
        ended.into_iter().map(|(id, _)| *id).take(ENDED).collect()
    }

    fn keep_alive(&mut self, id: LeaseId, now: Instant) -> Result<(), StoreError> {
        let term = self.leases.get_mut(&id.0).ok_or(StoreError::LeaseGone(id))?;
        term.ends = now + term.ttl;
        Ok(())
    }

    /// Does all of it in one commit; gives back which revision changed which keys. What is to be
    /// answered is in `answers` in any case.
    fn write(
        &mut self,
        group: Vec<Request>,
        ended: &[u64],
        answers: &mut Vec<Later>,
    ) -> Result<Vec<(u64, Vec<String>)>, StoreError> {
        let transaction = self.database.begin_write().map_err(disk)?;
        let mut session = Session::open(&transaction)?;
        for id in ended {
            session.end_lease(*id)?;
        }
        for request in group {
            answers.push(serve(&mut session, request)?);
        }
        let Done { changed, granted, over, dirty } = session.close()?;
        if dirty {
            transaction.commit().map_err(disk)?;
        } else {
            transaction.abort().map_err(disk)?;
        }
        for id in over {
            self.leases.remove(&id);
        }
        for Lease { id, ttl } in granted {
            let ends = Instant::now() + ttl;
            self.none_before = Some(self.none_before.map_or(ends, |at| at.min(ends)));
            self.leases.insert(id.0, Term { ttl, ends });
        }
        Ok(changed)
    }
}

/// Does one request. An error is one of the disk, and ends the whole commit.
fn serve(session: &mut Session<'_>, request: Request) -> Result<Later, StoreError> {
    Ok(match request {
        Request::Commit(transaction, answer) => later(answer, session.commit(&transaction)?),
        Request::Grant(ttl, answer) => later(answer, Ok(session.grant(ttl.max(SHORTEST_LEASE))?)),
        Request::KeepAlive(id, answer) => later(answer, Err(StoreError::LeaseGone(id))),
        Request::Revoke(id, answer) => {
            let revoked = session.end_lease(id.0)?;
            later(answer, if revoked { Ok(()) } else { Err(StoreError::LeaseGone(id)) })
        }
        Request::Compact { to, most, answer } => later(answer, session.compact(to, most)?),
    })
}
