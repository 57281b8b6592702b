//! From the errors of the parts to those of the contract. Context is added where it is known.

use deuteron_bwtree::BwTreeError;
use deuteron_contract::DcError;
use deuteron_device::with_causes;
use deuteron_llama::LlamaError;

/// An error of the store while `context` was going on.
pub(crate) fn store(context: &str, error: LlamaError) -> DcError {
    match error {
        LlamaError::Poisoned { reason } => DcError::Poisoned { reason: reason.to_string() },
        LlamaError::Corrupt { file, offset, expected, found } => {
            DcError::Corrupt { file, offset, expected, found }
        }
        LlamaError::Device(full) if full.is_full() => {
            DcError::DiskFull { context: format!("{context} ({})", with_causes(&full)) }
        }
        other => DcError::Device { context: context.to_owned(), source: Box::new(other) },
    }
}

/// An error of a tree while `context` was going on.
pub(crate) fn tree(context: &str, error: BwTreeError) -> DcError {
    match error {
        BwTreeError::KeySize { found, limit } => DcError::KeySize { found, limit },
        BwTreeError::ValueSize { found, limit } => DcError::ValueSize { found, limit },
        BwTreeError::Load { page, source } => store(&format!("{context}, {page}"), source),
        BwTreeError::Structure { tree, page, found } => DcError::Corrupt {
            file: format!("table {tree}, {page}"),
            offset: 0,
            expected: "a well-formed tree".to_owned(),
            found,
        },
        other => DcError::Device { context: context.to_owned(), source: Box::new(other) },
    }
}
