//! Pointer stability for latch-free structures.
