//! What the store asks of the trees: to consolidate a page before it is written in full, which keys a delta holds, what deltas say together, and whether what was read is a node of a tree.

use crate::BwTreeDc;
use deuteron_llama::{AccessMethod, Filter, PageDescriptor, PageId};

impl AccessMethod for BwTreeDc {
    fn consolidate(&self, page: PageId) {
        let guard = self.llama().pin();
        let snapshot = self.llama().snapshot(page, &guard);
        let base = std::iter::successors(snapshot.head(), |node| node.next()).last();
        // A page that has left memory meanwhile, or a tree that is just being made: there is no harm in not doing it.
        let Some(descriptor) = base.and_then(|base| base.descriptor()) else { return };
        if let Some(tree) = self.tree_of(descriptor.tree) {
            tree.consolidate(descriptor.low_key, &guard);
        }
    }

    fn check_base(&self, descriptor: PageDescriptor<'_>, payload: &[u8]) -> Result<(), String> {
        deuteron_bwtree::check_base(payload, descriptor.low_key)
    }

    fn check_place(&self, tree: u32, page: PageId, payload: &[u8]) -> Result<(), String> {
        // There is none yet of a table that is being loaded. The cleaner may move its pages all the same.
        self.tree_of(tree).map_or(Ok(()), |tree| tree.check_place(page, payload))
    }

    fn check_delta(&self, payload: &[u8], base: Option<&[u8]>) -> Result<(), String> {
        deuteron_bwtree::check_delta(payload, base)
    }

    fn unite(&self, deltas: &[&[u8]]) -> Option<Vec<u8>> {
        deuteron_bwtree::unite_deltas(deltas)
    }

    fn filter(&self, delta: &[u8]) -> Filter {
        deuteron_bwtree::filter_of_delta(delta)
    }
}
