//! The Bw-tree data component, and the stand-alone key-value store that it is.
