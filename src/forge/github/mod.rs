//! GitHub's runner, actions/runner.

pub mod output;
