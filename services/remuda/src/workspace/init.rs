//! `remuda workspace init`: creates a workspace from a template.

use std::{path::Path, process::ExitCode};

use remuda_config::Config;
use remuda_domain::{Error, error::Result};
use remuda_workspace::{InitReport, Template};
use serde_json::json;

use crate::output::{Output, Style, one_line};

pub(super) async fn init(dir: &Path, template: &str, config: &Config, output: Output) -> Result<ExitCode> {
    // Names contain no slash, so a template with a slash is a path.
    let template = if template.contains('/') || matches!(template, "." | "..") {
        Template::directory(Path::new(template))?
    } else {
        Template::named(template, remuda_node::templates(config).as_deref())?
    };
    let path = dir.to_owned();
    let result = tokio::task::spawn_blocking(move || remuda_workspace::init(&path, &template)).await;
    let report = result
        .map_err(|error| Error::internal("the workspace could not be created").with_source(error))??;
    print_report(dir, &report, output);
    Ok(ExitCode::SUCCESS)
}

fn print_report(dir: &Path, report: &InitReport, output: Output) {
    if output.json {
        return output.json_line(&json!({
            "root": dir,
            "template": report.template,
            "created": report.created,
            "kept": report.kept,
        }));
    }
    let sink = output.out;
    for file in &report.created {
        sink.line(&format!("{} {}", sink.paint(Style::Good, "+"), one_line(&file.display().to_string())));
    }
    for file in &report.kept {
        let line = format!("= {} (exists, not changed)", one_line(&file.display().to_string()));
        sink.line(&sink.paint(Style::Dim, &line));
    }
    let dir = one_line(&dir.display().to_string());
    output.note(&format!(
        "next: describe a model in .openharness/models, then\n  remuda workspace check {dir}\n  remuda run \"what is this?\" --dir {dir}"
    ));
}
