//! What can go wrong in a measurement.

use std::fmt;

/// A measurement could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum BenchError {
    /// The store failed.
    Store {
        /// What was being done.
        context: &'static str,
        /// The store's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The workload or the driver asks for something impossible.
    Settings(String),
}

impl BenchError {
    /// Wraps a store's error with what was being done.
    pub fn store<E>(context: &'static str) -> impl FnOnce(E) -> BenchError
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        move |source| BenchError::Store { context, source: source.into() }
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Store { context, .. } => write!(formatter, "cannot {context}"),
            BenchError::Settings(reason) => formatter.write_str(reason),
        }
    }
}

impl std::error::Error for BenchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BenchError::Store { source, .. } => Some(source.as_ref()),
            BenchError::Settings(_) => None,
        }
    }
}
