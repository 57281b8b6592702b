//! [`MemoryGroup`]: a bound on all memory that a process has, the system's page cache for its files included.
//!
//! An engine is told how much memory it may use; but most read and write files through the system's page cache, which is as large as the machine
//! unless somebody bounds it. Linux does so by control groups. To make one takes root, as a rule.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A control group of its own for one process. Removed when it is dropped; the process must have ended.
pub struct MemoryGroup {
    path: PathBuf,
}

impl MemoryGroup {
    /// Makes a group whose processes may have so many bytes together.
    pub fn new(bytes: u64) -> io::Result<Self> {
        let (parent, bound) = place(&fs::read_to_string("/proc/self/cgroup")?)
            .ok_or_else(|| io::Error::other("this system has no control groups for memory"))?;
        let path = parent.join(format!("deuteron-peers-{}", std::process::id()));
        fs::create_dir(&path).map_err(about(&path))?;
        let group = Self { path };
        let bound = group.path.join(bound);
        fs::write(&bound, bytes.to_string()).map_err(about(&bound))?;
        Ok(group)
    }

    /// Puts a process into the group. What it has already stays where it was counted.
    pub fn take(&self, process: u32) -> io::Result<()> {
        let members = self.path.join("cgroup.procs");
        fs::write(&members, process.to_string()).map_err(about(&members))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// An error with what it concerns.
fn about(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("the control group {}: {error}", path.display()))
}

/// Where a new group goes, and the file that bounds its memory, by what the system says of this process's groups.
fn place(groups: &str) -> Option<(PathBuf, &'static str)> {
    let root = Path::new("/sys/fs/cgroup");
    let below = |path: &str| path.trim_start_matches('/').to_owned();
    let path_of = |controller: &'static str| {
        groups.lines().find_map(move |line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|name| name == controller).then_some(path)
        })
    };
    if let Some(path) = path_of("memory") {
        return Some((root.join("memory").join(below(path)), "memory.limit_in_bytes"));
    }
    // In the unified hierarchy a group that has processes has no groups below it.
    let own = root.join(below(path_of("")?));
    let parent = if own == root { root } else { own.parent()? };
    Some((parent.to_owned(), "memory.max"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_goes_below_its_own_or_in_the_unified_hierarchy_beside_it() {
        let told = |groups| place(groups).map(|(path, bound)| (path.display().to_string(), bound));
        assert_eq!(
            told("5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n"),
            Some(("/sys/fs/cgroup/memory/a/b".to_owned(), "memory.limit_in_bytes"))
        );
        assert_eq!(
            told("0::/user.slice/a.scope\n"),
            Some(("/sys/fs/cgroup/user.slice".to_owned(), "memory.max"))
        );
        assert_eq!(told("0::/\n"), Some(("/sys/fs/cgroup".to_owned(), "memory.max")));
        assert_eq!((told("1:name=systemd:/\n"), told("")), (None, None));
    }
}
