//! The TC Proxy: reads stable log buffers, decides outcomes, posts blind upserts, reports progress.
