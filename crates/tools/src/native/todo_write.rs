//! `TodoWrite`: stores the session's todo list.

use std::sync::LazyLock;

use async_trait::async_trait;
use remuda_domain::{
    error::{Error, Result},
    tool::{
        CallSubject, DisplayFields, Effects, Emphasis, ForeignFormat, ResultBody, ResultDisplay,
        ToolDescriptor,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    arguments::{field, parse, schema_of},
    context::ToolContext,
    state,
    tool::{CallResult, Tool},
};

const MAX_TODOS: usize = 200;
const MAX_TEXT_BYTES: usize = 2000;

#[derive(Clone, Copy, Debug)]
pub struct TodoWrite;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The whole list, in order. It replaces the one before.
    #[schemars(length(max = MAX_TODOS))]
    todos: Vec<Todo>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Todo {
    /// What is to be done, like `Run the tests`.
    #[schemars(length(min = 1))]
    content: String,
    /// How far it is.
    status: TodoStatus,
    /// The same while it is being done, like `Running the tests`.
    #[serde(rename = "activeForm")]
    #[schemars(length(min = 1))]
    active_form: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum TodoStatus {
    Pending,
    InProgress,
    Completed,
}

impl Arguments {
    fn parse(arguments: &Value) -> Result<Self> {
        let arguments: Self = parse(arguments)?;
        let todos = &arguments.todos;
        if todos.len() > MAX_TODOS {
            return Err(Error::invalid(field("todos"), format!("expected at most {MAX_TODOS}")));
        }
        for (index, todo) in todos.iter().enumerate() {
            for (name, text) in [("content", &todo.content), ("activeForm", &todo.active_form)] {
                if text.trim().is_empty() || text.len() > MAX_TEXT_BYTES {
                    let message = format!("expected 1 to {MAX_TEXT_BYTES} bytes, not only spaces");
                    return Err(Error::invalid(field(&format!("todos[{index}].{name}")), message));
                }
            }
        }
        let active = todos.iter().filter(|todo| todo.status == TodoStatus::InProgress).count();
        if active != 1 && !arguments.is_done() {
            let message = format!("expected exactly one in_progress unless all are completed, got {active}");
            return Err(Error::invalid(field("todos"), message));
        }
        Ok(arguments)
    }

    fn is_done(&self) -> bool {
        self.todos.iter().all(|todo| todo.status == TodoStatus::Completed)
    }
}

fn for_people(output: DisplayFields<'_>) -> ResultDisplay {
    let todo = |todo: &Value| {
        let text = DisplayFields(todo).text("content").unwrap_or_default();
        match todo["status"].as_str() {
            Some("completed") => (Emphasis::Weak, format!("☒ {text}")),
            Some("in_progress") => (Emphasis::Strong, format!("▸ {text}")),
            _ => (Emphasis::Normal, format!("☐ {text}")),
        }
    };
    let todos = output.list("todos").map(|todos| ResultBody::Checklist(todos.iter().map(todo).collect()));
    ResultDisplay::new([], todos.unwrap_or_default())
}

#[async_trait]
impl Tool for TodoWrite {
    fn descriptor(&self) -> &ToolDescriptor {
        static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
            permission: "todowrite".into(),
            subject: |_| CallSubject::WholeCall,
            allowed_in_plan_mode: true,
            foreign_names: &[
                (ForeignFormat::OpenHarness, "todo_write"),
                (ForeignFormat::CodingCode, "todo_write"),
            ],
            headline: |arguments| arguments.length("todos", "task"),
            result: for_people,
            ..ToolDescriptor::new("TodoWrite", Effects::Idempotent)
        });
        &DESCRIPTOR
    }

    fn description(&self) -> &str {
        "Keeps the session's list of what is to be done. Exactly one item is in_progress, until all are completed, which \
         clears the list."
    }

    fn schema(&self) -> Value {
        static SCHEMA: LazyLock<Value> = LazyLock::new(schema_of::<Arguments>);
        SCHEMA.clone()
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        Arguments::parse(arguments).map(drop)
    }

    async fn call(&self, arguments: &Value, context: &ToolContext) -> CallResult {
        let arguments = Arguments::parse(arguments)?;
        let sandbox = context.within_limits(context.sandbox.get()).await?;
        let path = state::path("todos", context.session);
        let cleared = arguments.is_done();
        // Not cancellable, like every file change.
        if cleared {
            state::delete(&*sandbox, &path).await?;
        } else {
            state::save(&*sandbox, &path, &arguments.todos).await?;
        }
        Ok(json!({ "todos": arguments.todos, "cleared": cleared }))
    }
}
