//! The latch-free ordered access method.
mod page;
/// The longest key in bytes.
pub const KEY_BYTES_MAX: usize = 4096;
