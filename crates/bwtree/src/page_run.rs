//! [`PageRun`]: the records of a page's node, for those who read pages without a tree.

use crate::page::run::{RecordRef, Run};

/// The records of one node of a page, checked.
#[derive(Clone, Copy)]
pub struct PageRun<'a> {
    run: Run<'a>,
}

impl<'a> PageRun<'a> {
    /// The run in a node's payload; everything that its format promises is checked.
    ///
    /// # Errors
    /// What is wrong, in words.
    ///
    /// ```
    /// assert!(deuteron_bwtree::PageRun::new(b"no run").is_err());
    /// ```
    pub fn new(payload: &'a [u8]) -> Result<PageRun<'a>, String> {
        Run::verify(payload).map(|run| PageRun { run })
    }

    /// Of a base the bounds of its page: the lowest key, and the key behind it unless it is the last page of its tree.
    ///
    /// ```
    /// # fn example(run: deuteron_bwtree::PageRun<'_>) {
    /// let is_base = run.bounds().is_some();
    /// # let _ = is_base;
    /// # }
    /// ```
    pub fn bounds(&self) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        self.run.is_base().then(|| (self.run.low(), self.run.high()))
    }

    /// The records in the order of their keys.
    ///
    /// ```
    /// # fn example(run: deuteron_bwtree::PageRun<'_>) -> usize {
    /// run.records().filter(|record| record.value.is_none()).count()
    /// # }
    /// ```
    pub fn records(&self) -> impl DoubleEndedIterator<Item = RecordRef<'a>> + use<'a> {
        let run = self.run;
        (0..run.count()).map(move |index| run.record(index))
    }
}
