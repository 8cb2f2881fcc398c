use remuda_domain::Code;
use serde_json::{Value, json};

use crate::fixture::{ToolFixture, rejection};

fn todo(content: &str, status: &str) -> Value {
    json!({ "content": content, "status": status, "activeForm": format!("{content}ing") })
}

#[tokio::test]
async fn todo_list_is_stored_until_all_are_completed() {
    let fixture = ToolFixture::new();
    let todos = json!([todo("plan", "completed"), todo("test", "in_progress"), todo("ship", "pending")]);
    let answer = fixture.call("TodoWrite", json!({ "todos": todos })).await.unwrap();
    assert_eq!(answer, json!({ "todos": todos, "cleared": false }));
    let file = fixture.workspace().join(format!(".openharness/state/todos/{}.json", fixture.context.session));
    let kept: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(kept, todos);
    assert!(fixture.workspace().join(".openharness/state/.gitignore").is_file());

    let done = json!([todo("plan", "completed"), todo("test", "completed")]);
    for _twice in 0..2 {
        let answer = fixture.call("TodoWrite", json!({ "todos": done })).await.unwrap();
        assert_eq!(answer, json!({ "todos": done, "cleared": true }));
        assert!(!file.try_exists().unwrap());
    }
}

#[tokio::test]
async fn invalid_todo_lists_are_rejected() {
    let many = vec![todo("x", "completed"); 201];
    for (todos, field) in [
        (json!([todo("a", "pending")]), "arguments.todos"),
        (json!([todo("a", "in_progress"), todo("b", "in_progress")]), "arguments.todos"),
        (json!(many), "arguments.todos"),
        (json!([todo(" ", "completed")]), "arguments.todos[0].content"),
        (json!([todo("a", "done")]), "arguments.todos[0].status"),
        (
            json!([todo("a", "in_progress"), { "content": "b", "status": "pending", "activeForm": "" }]),
            "arguments.todos[1].activeForm",
        ),
        (
            json!([{ "content": "a", "status": "completed", "activeForm": "b", "id": 1 }]),
            "arguments.todos[0].id",
        ),
        (json!("text"), "arguments.todos"),
    ] {
        let rejected = rejection("TodoWrite", json!({ "todos": todos })).await;
        assert_eq!(rejected, (Code::InvalidArgument, field.to_owned()), "{todos}");
    }
}
