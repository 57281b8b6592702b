//! The entries of the simulated directory: names, and which of their changes are durable.

use super::CrashPolicy;
use super::random::Random;
use std::collections::{BTreeMap, BTreeSet};

pub(super) type InodeNumber = u64;
type Names = BTreeMap<String, InodeNumber>;

#[derive(Clone, Debug)]
enum Change {
    Create { name: String, inode: InodeNumber },
    Remove { name: String },
    Rename { from: String, to: String },
}

impl Change {
    fn apply(&self, names: &mut Names) {
        match self {
            Change::Create { name, inode } => {
                names.insert(name.clone(), *inode);
            }
            Change::Remove { name } => {
                names.remove(name);
            }
            Change::Rename { from, to } => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
        }
    }

    fn names(&self) -> [&str; 2] {
        match self {
            Change::Create { name, .. } | Change::Remove { name } => [name, name],
            Change::Rename { from, to } => [from, to],
        }
    }
}

/// The directory.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    visible: Names,
    durable: Names,
    pending: Vec<Change>,
}

impl Entries {
    pub(super) fn get(&self, name: &str) -> Option<InodeNumber> {
        self.visible.get(name).copied()
    }

    pub(super) fn visible(&self) -> &Names {
        &self.visible
    }

    pub(super) fn create(&mut self, name: &str, inode: InodeNumber) {
        self.change(Change::Create { name: name.to_owned(), inode });
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.change(Change::Remove { name: name.to_owned() });
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) {
        self.change(Change::Rename { from: from.to_owned(), to: to.to_owned() });
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.visible);
        self.pending.push(change);
    }

    pub(super) fn sync(&mut self) {
        for change in self.pending.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// As [`Inode::sync_partly`](super::inode::Inode::sync_partly).
    pub(super) fn sync_partly(&mut self, random: &mut Random) {
        let mut lost = Vec::new();
        self.durable = self.survivor(CrashPolicy::Random, random, &mut lost);
        self.pending = lost;
    }

    pub(super) fn lose_pending(&mut self) {
        self.pending.clear();
    }

    pub(super) fn crash(&mut self, policy: CrashPolicy, random: &mut Random) {
        let survivor = self.survivor(policy, random, &mut Vec::new());
        *self = Entries { visible: survivor.clone(), durable: survivor, pending: Vec::new() };
    }

    /// A change survives only if all earlier pending changes of its names do, as in any file system: different
    /// names are independent, one name has one history.
    fn survivor(&self, policy: CrashPolicy, random: &mut Random, lost: &mut Vec<Change>) -> Names {
        let mut survivor = self.durable.clone();
        let mut lost_names = BTreeSet::new();
        for change in &self.pending {
            let keep = match policy {
                CrashPolicy::LoseAll => false,
                CrashPolicy::KeepAll => true,
                CrashPolicy::Random => random.coin(),
            };
            if keep && change.names().iter().all(|name| !lost_names.contains(name)) {
                change.apply(&mut survivor);
            } else {
                lost_names.extend(change.names());
                lost.push(change.clone());
            }
        }
        survivor
    }

    /// Every inode that some name leads to, or may lead to after a crash.
    pub(super) fn inodes(&self) -> BTreeSet<InodeNumber> {
        let pending = self.pending.iter().filter_map(|change| match change {
            Change::Create { inode, .. } => Some(inode),
            _ => None,
        });
        self.visible.values().chain(self.durable.values()).chain(pending).copied().collect()
    }
}
