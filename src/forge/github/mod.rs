//! GitHub's runner, actions/runner.

pub mod configure;
pub mod diag;
pub mod files;
pub mod output;
pub mod remove;
