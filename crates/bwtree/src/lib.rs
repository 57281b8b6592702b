//! The latch-free ordered access method.
