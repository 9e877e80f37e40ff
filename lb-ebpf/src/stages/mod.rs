//! The stages of the packet path. They do not call one another: the pipeline
//! hands each the results of those before it.

pub mod classify;
pub mod emit;
pub mod find;
pub mod lookup;
pub mod open;
pub mod rewrite;
