//! What backends share whose commands run in instances that one byte stream connects to this process.

pub(crate) mod connection;
pub(crate) mod instance;
pub(crate) mod instance_limit;
pub(crate) mod instance_record;
pub(crate) mod labels;
pub(crate) mod pool;
pub(crate) mod sandbox;
pub(crate) mod workspace_copy;
