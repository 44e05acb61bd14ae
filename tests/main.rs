//! All integration tests in one binary, so that they link once.
mod ledger;
mod tidy;

mod model_files;
