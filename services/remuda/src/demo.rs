use crate::output::Output;
use remuda_domain::error::Result;
use std::process::ExitCode;
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {}
pub(crate) async fn execute(_: DemoArgs, _: Output) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
