//! A file system without room. A small one is filled by a file of ballast until the round is over; of a large one the process that
//! is to meet the adversity is given a part only ([`Adversity::Fills`](deuteron::device::Adversity::Fills)).

use crate::failure::{Failure, Outcome};
use deuteron_bench::Random;
use std::fs::File;
use std::path::{Path, PathBuf};

/// What is left of the room, in bytes: much or next to nothing.
pub fn left(random: &mut Random) -> u64 {
    random.below(48 << 20) >> random.below(12)
}

/// A file system is small if it has fewer bytes.
const SMALL: u64 = 1 << 30;

fn failed(error: std::io::Error) -> Failure {
    Failure::because("cannot fill the file system", &error)
}

/// Whether the file system that `path` is on is to be filled.
pub fn is_small(path: &Path) -> Outcome<bool> {
    let found = rustix::fs::statvfs(path).map_err(|error| failed(error.into()))?;
    Ok(found.f_blocks.saturating_mul(found.f_frsize) < SMALL)
}

/// A file that takes the room of a file system, as long as it lives.
pub struct Ballast(PathBuf);

impl Ballast {
    /// Leaves `bytes` of the room that the file system of `directory` has.
    pub fn leaving(bytes: u64, directory: &Path) -> Outcome<Ballast> {
        let ballast = Ballast(directory.join("ballast"));
        let file = File::create(&ballast.0).map_err(failed)?;
        let found = rustix::fs::statvfs(directory).map_err(|error| failed(error.into()))?;
        let taken = found.f_bavail.saturating_mul(found.f_frsize).saturating_sub(bytes);
        if taken > 0 {
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, taken)
                .map_err(|error| failed(error.into()))?;
        }
        Ok(ballast)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        // If it cannot be removed, the next round says that there is no room.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ballast_goes_when_the_round_is_over() {
        let scratch = tempfile::tempdir().unwrap();
        drop(Ballast::leaving(u64::MAX, scratch.path()).unwrap());
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}
