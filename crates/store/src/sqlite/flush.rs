//! Batches as they are: with one writer at a time there is nobody to wait for, and nothing to compare.

pub(super) use super::{
    claim::claim_batch as claims, commit::commit_batch as commits, submit::submit_batch as submits,
};
