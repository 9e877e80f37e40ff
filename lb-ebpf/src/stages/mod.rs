//! The stages of the packet path. They do not call one another: the pipeline
//! hands each the results of those before it.

pub(crate) mod answer;
pub(crate) mod classify;
pub(crate) mod emit;
pub(crate) mod find;
pub(crate) mod fragment;
pub(crate) mod lookup;
pub(crate) mod open;
pub(crate) mod relay;
pub(crate) mod rewrite;
