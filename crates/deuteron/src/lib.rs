//! A transactional record store: serializable, durable, larger than memory.
