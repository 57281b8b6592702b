//! [`Ticket`]: a commit whose durability is still to come.

use crate::handle::Handle;
use crate::{Cancellation, Durability, Error};
use deuteron_contract::{Lsn, Timestamp};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A transaction that has committed in memory: others see it, and it becomes durable in its turn.
///
/// In one process the outcome message of paper 2.3.2 needs no bytes: the stable log is a prefix, so "the log is
/// stable beyond the commit record" is the whole message, and a ticket is that record's LSN. Ask with
/// [`Ticket::is_durable`], block with [`Ticket::wait`], or `.await` it under any executor. Dropping a ticket
/// changes nothing.
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
        let waker = unpark();
        let mut begun = None;
        loop {
            if let Poll::Ready(outcome) = self.engine.poll_stable(record, &waker) {
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

/// Wakes a thread that has parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// One for all waits of the thread: if it asks again for what it has given up waiting for, it is seen to wait already, and does
    /// not stand once more among those whom the log looks through.
    static UNPARK: Arc<Unpark> = Arc::new(Unpark(thread::current()));
}

/// Wakes the calling thread.
fn unpark() -> Waker {
    // The thread may be about to end, and what it keeps be gone already.
    let unpark = UNPARK.try_with(Arc::clone).unwrap_or_else(|_| Arc::new(Unpark(thread::current())));
    Waker::from(unpark)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use deuteron_device::MemoryDirectory;
    use std::sync::Barrier;

    /// Keeps the thread that writes the log, which has called it, from the first time that somebody else comes to the barrier until
    /// the second.
    struct Holds(Barrier);

    impl Wake for Holds {
        fn wake(self: Arc<Self>) {
            self.0.wait();
            self.0.wait();
        }
    }

    #[test]
    fn who_asks_again_and_again_waits_once() {
        let options = Options::new().memory(32 << 20);
        let db = options.open_in(Arc::new(MemoryDirectory::new())).unwrap();
        let table = db.table("t").unwrap();
        let commit = || {
            let mut tx = db.begin();
            tx.put(&table, b"k", b"v").unwrap();
            tx.commit_async().unwrap()
        };
        let holds = Arc::new(Holds(Barrier::new(2)));
        let waker = Waker::from(Arc::clone(&holds));
        // Until one is not durable before it is asked for.
        while Pin::new(&mut commit()).poll(&mut Context::from_waker(&waker)).is_ready() {}
        holds.0.wait();
        let (mut ticket, cancelled) = (commit(), Cancellation::new());
        cancelled.cancel();
        let mut is_durable = false;
        for _ in 0..1000 {
            is_durable |= ticket.wait_timeout(Duration::ZERO).unwrap();
            is_durable |= ticket.wait_unless(&cancelled).unwrap();
        }
        let waiters = UNPARK.with(Arc::strong_count) - 1;
        holds.0.wait();
        assert_eq!((waiters, is_durable), (1, false));
        assert!(ticket.wait_timeout(Duration::MAX).unwrap());
        db.close().unwrap();
    }
}
