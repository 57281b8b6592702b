//! Real files. Written for Linux: `O_DIRECT`, `fallocate`, `RWF_DSYNC`, `flock`, each with a fallback where a file
//! system refuses it.

mod directory;
mod file;
mod in_flight;
mod ring;
mod threads;
mod transfer;
mod write_ring;

pub use directory::OsDirectory;
