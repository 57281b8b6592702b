//! The simulated disk: a machine that can be stopped at any operation, and a disk that loses, keeps, reorders and
//! tears what was not synced.
//!
//! # Model
//!
//! | state | of | becomes durable by |
//! |---|---|---|
//! | *visible* | what reads show | |
//! | *pending* | each write, extension or cut since the file's last sync, in order | [`File::sync`](crate::File::sync) |
//! | *durable* | what every crash leaves | |
//!
//! A durable write goes to the durable bytes at once and makes no earlier write durable, unless a cut lies between. The same three states
//! exist for the entries of the directory: creations, removals and renames are pending until the directory is
//! synced, whatever is done to the files.
//!
//! [`SimulatedDisk::crash`] computes what survives under a [`CrashPolicy`], makes every handle from before fail
//! with [`MachineStopped`](crate::MachineStopped), and returns a new directory. A [`FaultPlan`] says which
//! operations fail, and how, and when the machine stops by itself.
//!
//! Everything random comes from the seed: the same operations in the same order leave the same bytes.
//!
//! ```
//! use deuteron_device::{CrashPolicy, Directory, File, OpenMode, SimulatedDisk};
//!
//! let disk = SimulatedDisk::new(1);
//! let directory = disk.directory();
//! let file = directory.open("a", OpenMode::CreateNew, false)?;
//! directory.sync()?;
//! file.write_at(b"synced", 0)?;
//! file.sync()?;
//! file.write_at(b"not yet", 6)?;
//!
//! let directory = disk.crash(CrashPolicy::LoseAll);
//! assert!(file.length().unwrap_err().is_stopped());
//! let file = directory.open("a", OpenMode::Read, false)?;
//! let mut bytes = [0; 6];
//! file.read_at(&mut bytes, 0)?;
//! assert_eq!((&bytes, file.length()?), (b"synced", 6));
//! # Ok::<(), deuteron_device::DeviceError>(())
//! ```

mod directory;
mod disk;
mod entries;
mod fault;
mod file;
mod inode;
mod random;
mod state;
mod sweep;
mod trace;
mod watch;

pub use directory::SimulatedDirectory;
pub use disk::SimulatedDisk;
pub use fault::{FaultKind, FaultPlan, InjectedFault};
pub use inode::SECTOR_BYTES;
pub use random::Random;
pub use sweep::{Sweep, effort};
pub use watch::Moment;

/// What a crash does to that which was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CrashPolicy {
    /// It is lost, all of it.
    LoseAll,
    /// It survives, as if it had been synced just in time.
    KeepAll,
    /// Each write is lost, kept, or torn at 512 or 4096 bytes, independently of the order in which the writes were
    /// made; each directory entry too, except that changes of one name survive in order.
    Random,
}
