//! What can go wrong, and what is not an error: a [`Miss`].

use deuteron_llama::{LlamaError, PageId};

/// The page is not in memory, or not all of it. Not an error: let go of the guard, load the page and try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the operation has not been done"]
pub struct Miss(pub PageId);

/// What can go wrong in a tree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BwTreeError {
    /// A key is empty or too long.
    #[error("key of {found} bytes; a key has between 1 and {limit} bytes")]
    KeySize {
        /// The key's length in bytes.
        found: usize,
        /// The longest key in bytes.
        limit: usize,
    },
    /// A value is too long.
    #[error("value of {found} bytes; the limit is {limit} bytes")]
    ValueSize {
        /// The value's length in bytes.
        found: usize,
        /// The longest value in bytes.
        limit: usize,
    },
    /// The store failed while a page was loaded. Nothing has been changed by the operation that needed the page.
    #[error("cannot load {page}")]
    Load {
        /// The page.
        page: PageId,
        /// Why.
        #[source]
        source: LlamaError,
    },
    /// What was recovered, or what a check found, is not a tree. Repeating does not help.
    #[error("tree {tree}, {page}: {found}")]
    Structure {
        /// The tree.
        tree: u32,
        /// The page where it was found.
        page: PageId,
        /// What is wrong.
        found: String,
    },
    /// A setting cannot be.
    #[error("the option {setting} must be {requirement}")]
    Options {
        /// The setting.
        setting: &'static str,
        /// What it must be.
        requirement: &'static str,
    },
}
