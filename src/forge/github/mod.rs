//! GitHub's actions/runner.

pub mod configure;
pub mod files;
