//! The transaction component: timestamps, versions, commit, conflicts.
