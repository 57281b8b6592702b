//! The sizes of everything in the components: buffers, pages, tables, limits.
//!
//! A database derives them from its [memory](crate::Options::memory). Tests set them, so that what is rare becomes common.

pub use deuteron_dc::DcOptions;
pub use deuteron_log::LogOptions;
pub use deuteron_proxy::Options as ProxyOptions;
pub use deuteron_tc::TcOptions;

/// See the [module](self). What the database decides by itself counts for nothing here: where the clock starts, whether the past
/// is kept, compression, the longest value.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Of the transaction component.
    pub tc: TcOptions,
    /// Of the recovery log.
    pub log: LogOptions,
    /// Of the proxy.
    pub proxy: ProxyOptions,
    /// Of the data component, its pages and its store.
    pub dc: DcOptions,
}

impl Sizes {
    /// The smallest that work.
    ///
    /// ```
    /// assert!(deuteron::sizes::Sizes::tiny().log.ring_bytes < 1 << 20);
    /// ```
    pub fn tiny() -> Sizes {
        Sizes {
            tc: TcOptions {
                key_bytes_max: TcOptions::default().key_bytes_max,
                ..TcOptions::tiny_for_tests()
            },
            log: LogOptions::tiny_for_tests(),
            proxy: ProxyOptions::tiny_for_tests(),
            dc: DcOptions::tiny_for_tests(),
        }
    }
}
