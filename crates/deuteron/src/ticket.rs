//! [`Ticket`]: a commit whose durability is still to come.

use crate::handle::Handle;
use crate::{Cancellation, Durability, Error};
use deuteron_contract::{Lsn, Timestamp};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

/// A transaction that has committed in memory: others see it, and it becomes durable in its turn.
///
/// In one process the outcome message of paper 2.3.2 needs no bytes: the stable log is a prefix, so "the log is
/// stable beyond the commit record" is the whole message, and a ticket is that record's LSN. Ask with
/// [`Ticket::is_durable`], block with [`Ticket::wait`], or `.await` it under any executor. Dropping a ticket
/// changes nothing.
///
/// Whoever waits for a ticket as a future is woken by a thread of the database that does nothing else: a waker may take its time, which delays
/// other futures only. It may use the database, too, and wait for what it commits, but not for another ticket as a future, for which nobody
/// is left to wake it.
#[must_use = "the commit is durable only when the ticket says so"]
pub struct Ticket {
    engine: Arc<Handle>,
    timestamp: Timestamp,
    /// The commit record; `None` where there is nothing to wait for.
    record: Option<Lsn>,
}

impl Ticket {
    pub(crate) fn new(engine: Arc<Handle>, timestamp: Timestamp, record: Option<Lsn>) -> Self {
        Self { engine, timestamp, record }
    }

    /// Says that nobody may wait for it, and what was promised.
    pub(crate) fn announce(&self, durability: Durability) {
        if let Some(record) = self.record {
            self.engine.committed(record, durability);
        }
    }

    /// The timestamp at which the transaction committed: its place in the serial order.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// # let table = db.table("orders")?;
    /// let mut first = db.begin();
    /// first.put(&table, b"1", b"apples")?;
    /// let first = first.commit_async()?;
    /// let second = db.begin().commit_async()?;
    /// assert!(first.timestamp() < second.timestamp());
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// Whether the commit is durable by now. Neither blocks nor hurries anything.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// assert!(db.begin().commit_async()?.is_durable(), "nothing was written");
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn is_durable(&self) -> bool {
        self.record.is_none_or(|record| self.engine.stable_lsn() > record)
    }

    /// Blocks until the commit is durable.
    ///
    /// # Errors
    /// [`Error::DurabilityUnknown`] with the cause, if the log failed first: whether the commit survived is then unknown until the database is opened again.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// # let table = db.table("orders")?;
    /// let mut tx = db.begin();
    /// tx.put(&table, b"1", b"apples")?;
    /// let ticket = tx.commit_async()?;
    /// ticket.wait()?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn wait(self) -> Result<(), Error> {
        match self.record {
            None => Ok(()),
            Some(record) => self.engine.wait_stable(record).map_err(|error| self.unknown(Some(error))),
        }
    }

    /// That it is not known whether the commit is durable.
    pub(crate) fn unknown(&self, cause: Option<Error>) -> Error {
        Error::DurabilityUnknown { timestamp: self.timestamp, cause: cause.map(Box::new) }
    }
}

impl Ticket {
    /// Blocks until the commit is durable, or for about `timeout`; whether it is durable. If not, nothing is decided: the
    /// transaction has committed, others see it, and the ticket can be asked again.
    ///
    /// # Errors
    /// As [`Ticket::wait`].
    ///
    /// ```
    /// use std::time::Duration;
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// # let table = db.table("orders")?;
    /// let mut tx = db.begin();
    /// tx.put(&table, b"1", b"apples")?;
    /// let mut ticket = tx.commit_async()?;
    /// while !ticket.wait_timeout(Duration::from_secs(1))? {
    ///     eprintln!("the disk is slow today");
    /// }
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<bool, Error> {
        self.wait_while(self.now().checked_add(timeout), || true)
    }

    /// Blocks until the commit is durable or the wait is cancelled; whether it is durable. If not, nothing is decided: the
    /// transaction has committed, others see it, and the ticket can be asked again.
    ///
    /// # Errors
    /// As [`Ticket::wait`].
    ///
    /// ```
    /// use deuteron::Cancellation;
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// # let table = db.table("orders")?;
    /// let cancellation = Cancellation::new();
    /// let mut tx = db.begin();
    /// tx.put(&table, b"1", b"apples")?;
    /// let mut ticket = tx.commit_async()?;
    /// assert!(ticket.wait_unless(&cancellation)?, "nobody cancelled");
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn wait_unless(&mut self, cancellation: &Cancellation) -> Result<bool, Error> {
        self.wait_until(None, cancellation)
    }

    pub(crate) fn now(&self) -> Instant {
        self.engine.now()
    }

    /// Blocks until the commit is durable, or `end`, or the wait is cancelled; whether it is durable.
    pub(crate) fn wait_until(
        &mut self,
        end: Option<Instant>,
        cancellation: &Cancellation,
    ) -> Result<bool, Error> {
        let _watched = cancellation.watch();
        self.wait_while(end, || !cancellation.is_cancelled())
    }

    /// Blocks until the commit is durable, or `end`, or the thread is unparked and `is_wanted` says no.
    fn wait_while(&mut self, end: Option<Instant>, is_wanted: impl Fn() -> bool) -> Result<bool, Error> {
        let Some(record) = self.record else { return Ok(true) };
        let mut begun = None;
        loop {
            if let Poll::Ready(outcome) = self.engine.poll_stable_parking(record) {
                if let Some(begun) = begun {
                    self.engine.waits().stable.record_time(self.now() - begun);
                }
                return outcome.map(|()| true).map_err(|error| self.unknown(Some(error)));
            }
            begun = begun.or_else(|| Some(self.now()));
            if !is_wanted() {
                return Ok(false);
            }
            match end.map(|end| end.saturating_duration_since(self.now())) {
                Some(Duration::ZERO) => return Ok(false),
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
    }
}

impl Future for Ticket {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.record {
            None => Poll::Ready(Ok(())),
            Some(record) => {
                let polled = self.engine.poll_stable(record, context.waker());
                polled.map_err(|error| self.unknown(Some(error)))
            }
        }
    }
}
