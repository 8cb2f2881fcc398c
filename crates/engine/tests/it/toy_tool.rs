//! A tool that exists only here. It takes this file and one line, its registration: permission rules, plan mode,
//! workspaces and screens know it by its descriptor.

use std::sync::Arc;

use async_trait::async_trait;
use remuda_domain::{
    error::{Error, Result},
    tool::{CallSubject, Effects, ResultBody, ResultDisplay, SimilarCalls, ToolDescriptor},
};
use remuda_tools::{CallResult, Registry, Tool, ToolContext, ToolOptions};
use remuda_workspace::{EnvironmentAccess, Loader, PlatformDirectories};
use serde_json::{Value, json};

use crate::{
    harness::{Harness, OperatorSettings},
    inspect::statuses_and_codes,
};

/// Switches the lamp of a room.
#[derive(Debug)]
struct Lamp(ToolDescriptor);

impl Lamp {
    fn new(effects: Effects) -> Self {
        Self(ToolDescriptor {
            permission: "light".into(),
            subject: |arguments| CallSubject::Text {
                text: arguments["room"].as_str(),
                similar: SimilarCalls::None,
            },
            headline: |arguments| arguments.text("room"),
            result: |output| {
                let state = output.text("room").map(|room| format!("{room} is lit"));
                ResultDisplay::new([state], ResultBody::Nothing)
            },
            ..ToolDescriptor::new("Lamp", effects)
        })
    }
}

#[async_trait]
impl Tool for Lamp {
    fn descriptor(&self) -> &ToolDescriptor {
        &self.0
    }

    fn description(&self) -> &str {
        "Switches the lamp of a room."
    }

    fn schema(&self) -> Value {
        json!({ "type": "object", "properties": { "room": { "type": "string" } }, "required": ["room"] })
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        let room =
            arguments["room"].as_str().ok_or_else(|| Error::invalid("arguments.room", "expected text"));
        room.map(drop)
    }

    fn needs_sandbox(&self) -> bool {
        false
    }

    async fn call(&self, arguments: &Value, _context: &ToolContext) -> CallResult {
        Ok(json!({ "room": arguments["room"] }))
    }
}

const TURNS: &str = r#"
turns:
  - when: { turn: 1 }
    call:
      - { tool: Lamp, arguments: { room: kitchen } }
      - { tool: Lamp, arguments: { room: vault } }
  - say: done
"#;

async fn harness(effects: Effects) -> Harness {
    let tool: Arc<dyn Tool> = Arc::new(Lamp::new(effects));
    Harness::with_settings(TURNS, OperatorSettings { tool: Some(tool), ..OperatorSettings::default() }).await
}

#[tokio::test]
async fn rules_plan_mode_and_tool_lists_know_a_registered_tool() {
    let (done, denied) = ("completed", "failed call_denied");
    for (effects, frontmatter, expected) in [
        (Effects::Mutating, "tools: [Lamp]", [done, done]),
        (Effects::Mutating, "permission: { light: { vault: deny } }", [done, denied]),
        (Effects::Mutating, "permission: { light: { '*': deny, 'kit*': allow } }", [done, denied]),
        (Effects::Mutating, "permission: { Lamp: { vault: deny } }", [done, denied]),
        (Effects::Mutating, "permission_mode: plan", [denied, denied]),
        (Effects::ReadOnly, "permission_mode: plan", [done, done]),
        (Effects::ReadOnly, "tools: [Read]", ["failed unknown_tool"; 2]),
        (Effects::ReadOnly, "permission: { light: deny }", ["failed unknown_tool"; 2]),
    ] {
        let harness = harness(effects).await;
        harness.write_agent(frontmatter);
        let run = harness.run_message("light").await;
        assert_eq!(statuses_and_codes(&run), expected, "{frontmatter}");
        let offered = harness.offered(&harness.requests(run.id).await.remove(0)).await;
        assert_eq!(
            offered.contains(&"Lamp".to_owned()),
            expected[0] != "failed unknown_tool",
            "{frontmatter}"
        );
    }
}

#[tokio::test]
async fn workspaces_and_screens_know_a_registered_tool() {
    let tools =
        Registry::native(&ToolOptions::default()).with(Arc::new(Lamp::new(Effects::Mutating))).unwrap();
    let catalog = remuda_engine::tool_catalog(&tools);
    let harness = harness(Effects::Mutating).await;
    harness.write_agent("tools: [Lamp, Lump]\npermission: { light: deny, lump: deny }");
    let loader = Loader::new(PlatformDirectories::default(), EnvironmentAccess::default(), catalog.clone());
    let definitions = loader.load(harness.directory.path());
    let problems: Vec<&str> = definitions.problems.iter().map(|problem| problem.message.as_str()).collect();
    assert_eq!(problems, ["there is no native tool `Lump`; did you mean `Lamp`?"]);
    let disallowed = &definitions.agents["tested"].disallowed;
    assert_eq!(
        (disallowed.native.as_slice(), disallowed.external.as_slice()),
        (["Lamp"].map(str::to_owned).as_slice(), ["lump"].map(str::to_owned).as_slice())
    );

    let lamp = catalog.describe("Lamp");
    assert_eq!(lamp.headline(&json!({ "room": "kitchen", "reason": "dark" })), "kitchen");
    assert_eq!(lamp.result(&json!({ "room": "kitchen" })).summary, ["kitchen is lit"]);
    let unknown = catalog.describe("github.search");
    assert_eq!(unknown.headline(&json!({ "query": "x", "limit": 3 })), "limit=3 query=x");
    assert_eq!(unknown.result(&json!("text")), ResultDisplay::default());
}
