//! `Write`: replaces or creates a file.

use async_trait::async_trait;
use remuda_domain::{error::Result, tool::Effects};
use remuda_sandbox::{WriteMode, path};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    arguments::{field, parse, rename},
    context::ToolContext,
    tool::{CallResult, Tool},
};

#[derive(Clone, Copy, Debug)]
pub struct Write;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    file_path: String,
    content: String,
}

impl Arguments {
    fn parse(arguments: &Value) -> Result<Self> {
        let arguments: Self = parse(arguments)?;
        path::check(&field("file_path"), &arguments.file_path)?;
        Ok(arguments)
    }
}

#[async_trait]
impl Tool for Write {
    fn name(&self) -> &str {
        "Write"
    }

    fn description(&self) -> &str {
        "Writes a file in the workspace, replacing what it held. Missing directories are made."
    }

    fn effects(&self) -> Effects {
        Effects::Idempotent
    }

    fn schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "file_path": { "type": "string", "minLength": 1, "description": "a path within the workspace" },
                "content": { "type": "string", "description": "everything the file is to hold" }
            },
            "required": ["file_path", "content"],
            "additionalProperties": false
        })
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        Arguments::parse(arguments).map(drop)
    }

    async fn call(&self, arguments: &Value, context: &ToolContext) -> CallResult {
        let Arguments { file_path, content } = Arguments::parse(arguments)?;
        let bytes = content.len();
        let sandbox = context.within_limits(context.sandbox.get()).await?;
        // From here on to its end, which is near: a write given up midway could still happen after the call.
        let written = sandbox
            .write_file(&file_path, content.into_bytes(), WriteMode::Overwrite)
            .await
            .map_err(rename("path", "file_path"))?;
        Ok(json!({ "bytes_written": bytes, "created": written.created }))
    }
}
