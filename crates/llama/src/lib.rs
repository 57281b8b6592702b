//! Pages: mapping table, cache, flush, log-structured store, checkpoint.
