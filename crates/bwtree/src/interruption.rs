//! Lets a test do something between any two steps of a change to the tree, as another thread would that runs while this one does not: when
//! a page has been split and nobody has been told, when one has been merged and is still in the index, and just before each
//! compare-and-swap.

/// Such a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// A page has been split, and the index does not know.
    Split,
    /// A page has been merged, and the index does not know.
    Merged,
    /// Any other.
    Step,
}

/// In a test, what that has set for this thread is done.
#[inline(always)]
pub(crate) fn strike(moment: Moment) {
    #[cfg(all(test, not(loom)))]
    beds::strike(moment);
    let _ = moment;
}

#[cfg(all(test, not(loom)))]
pub(crate) use beds::{Bed, checked, interrupted_by};

#[cfg(all(test, not(loom)))]
mod beds {
    use super::Moment;
    use crate::{Options, Tree, Upsert, check_base};
    use deuteron_device::MemoryDirectory;
    use deuteron_epoch::Epochs;
    use deuteron_llama::{AccessMethod, FlushProgress, Llama, PageDescriptor, PageId};
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Weak};

    /// What a test has set.
    type Action = Rc<dyn Fn(Moment)>;

    thread_local! {
        static ACTION: RefCell<Option<Action>> = const { RefCell::new(None) };
    }

    pub(super) fn strike(moment: Moment) {
        let action = ACTION.with_borrow(Clone::clone);
        if let Some(action) = action {
            action(moment);
        }
    }

    /// Does `work`, and `action` at each moment of it, also at those of the action itself.
    pub(crate) fn interrupted_by<T>(action: Action, work: impl FnOnce() -> T) -> T {
        ACTION.set(Some(action));
        let done = work();
        ACTION.set(None);
        done
    }

    /// What a page that is read must be, as far as the tree knows.
    struct Checks(Weak<Tree>);

    impl AccessMethod for Checks {
        fn consolidate(&self, _: PageId) {}

        fn check_base(&self, descriptor: PageDescriptor<'_>, payload: &[u8]) -> Result<(), String> {
            check_base(payload, descriptor.low_key)
        }

        fn check_place(&self, _: u32, page: PageId, payload: &[u8]) -> Result<(), String> {
            self.0.upgrade().map_or(Ok(()), |tree| tree.check_place(page, payload))
        }
    }

    /// Has what `tree` reads checked, for as long as what is returned lives.
    pub(crate) fn checked(tree: &Arc<Tree>) -> Arc<dyn AccessMethod> {
        let method: Arc<dyn AccessMethod> = Arc::new(Checks(Arc::downgrade(tree)));
        tree.llama().set_access_method(Arc::downgrade(&method));
        method
    }

    /// A tree with small pages whose keys are numbers, and the stamp with which each has been written last; 0 if it was not, or was deleted.
    pub(crate) struct Bed {
        pub(crate) tree: Arc<Tree>,
        known: Arc<[AtomicU64]>,
        stamp: Arc<AtomicU64>,
    }

    impl Bed {
        pub(crate) fn new(keys: usize) -> Bed {
            let options = deuteron_llama::Options::default();
            let (llama, _) = Llama::open(Arc::new(MemoryDirectory::new()), options, Epochs::new()).unwrap();
            let tree = Arc::new(Tree::create(Arc::new(llama), 1, Options::tiny_for_tests()));
            let known = (0..keys).map(|_| AtomicU64::new(0)).collect();
            Bed { tree, known, stamp: Arc::new(AtomicU64::new(0)) }
        }

        fn put(&self, key: usize, value: Option<&[u8]>) -> u64 {
            let stamp = self.stamp.fetch_add(1, Ordering::Relaxed) + 1;
            self.tree.upsert(&[Upsert { key: &key.to_be_bytes(), value, stamp, lsn: stamp }]).unwrap();
            stamp
        }

        pub(crate) fn write(&self, key: usize) {
            let stamp = self.put(key, Some(&[key as u8; 8]));
            self.known[key].store(stamp, Ordering::Relaxed);
        }

        /// The lowest key that there is, or how many there may be.
        pub(crate) fn lowest(&self) -> usize {
            (0..self.known.len()).find(|&key| self.is_known(key)).unwrap_or(self.known.len())
        }

        pub(crate) fn is_known(&self, key: usize) -> bool {
            self.known.get(key).is_some_and(|stamp| stamp.load(Ordering::Relaxed) > 0)
        }

        /// Writes every key that there is again.
        pub(crate) fn rewrite(&self) {
            (0..self.known.len()).filter(|&key| self.is_known(key)).for_each(|key| self.write(key));
        }

        pub(crate) fn delete(&self, key: usize) {
            self.put(key, None);
            self.known[key].store(0, Ordering::Relaxed);
        }

        /// All tombstones may be forgotten.
        pub(crate) fn forget_tombstones(&self) {
            self.tree.forget_tombstones_below(self.stamp.load(Ordering::Relaxed) + 1);
        }

        pub(crate) fn flush(&self) {
            while let FlushProgress::Wrote { .. } = self.tree.llama.flush_step().unwrap() {}
        }

        /// Everything that can be flushed and evicted is.
        pub(crate) fn evict(&self) {
            for _ in 0..3 {
                self.flush();
                self.tree.llama.evict_step(u64::MAX);
            }
        }

        /// Has `action` happen whenever this thread has split a page or merged one, but not during itself.
        pub(crate) fn at_interruptions(&self, action: fn(&Bed)) {
            let (tree, known, stamp) = (Arc::downgrade(&self.tree), self.known.clone(), self.stamp.clone());
            ACTION.set(Some(Rc::new(move |moment| {
                if moment != Moment::Step {
                    let itself = ACTION.take();
                    action(&Bed {
                        tree: tree.upgrade().unwrap(),
                        known: known.clone(),
                        stamp: stamp.clone(),
                    });
                    ACTION.set(itself);
                }
            })));
        }

        /// Each key is as it was written last, and the tree is sound.
        pub(crate) fn verify(&self) {
            ACTION.set(None);
            for (key, stamp) in self.known.iter().enumerate() {
                let found = self.tree.get(&key.to_be_bytes(), |record| {
                    record.filter(|record| record.value.is_some()).map_or(0, |record| record.stamp)
                });
                assert_eq!(found.unwrap(), stamp.load(Ordering::Relaxed), "key {key}");
            }
            self.tree.check().unwrap();
        }
    }
}
