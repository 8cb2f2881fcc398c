//! Replays every corpus, and fuzzes each target shortly.

use remuda_fuzz::{Finding, Limit, TARGETS, Target, corpus, drive, replay};

/// Always the same inputs: a test must not fail because of its luck. Long runs take another seed each.
const SEED: u64 = 25;

fn fail(target: &Target, what: &str, Finding { input, message }: &Finding) -> ! {
    panic!("{}: {what}: {message}\ninput: {:?}", target.name, String::from_utf8_lossy(input))
}

fn check(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.unwrap_or_else(|| panic!("there is no target {name}"));
    let inputs = corpus(target).unwrap_or_else(|error| panic!("{name} has no corpus: {error}"));
    assert!(!inputs.is_empty(), "{name} has an empty corpus");
    for (path, input) in &inputs {
        replay(target, input).unwrap_or_else(|finding| fail(target, &path.display().to_string(), &finding));
    }
    let inputs: Vec<Vec<u8>> = inputs.into_iter().map(|(_, input)| input).collect();
    let report = drive(target, &inputs, SEED, Limit::Inputs(target.inputs));
    let report = report.unwrap_or_else(|finding| fail(target, "found by fuzzing", &finding));
    assert!(report.kinds > 1, "{name} does the same with every input");
}

macro_rules! targets {
    ($($test:ident: $name:literal,)*) => {
        $(#[test] fn $test() { check($name); })*

        #[test]
        fn every_target_has_a_test() {
            let tested = [$($name),*];
            assert!(TARGETS.iter().map(|target| target.name).eq(tested), "a target is missing, or in another place");
        }
    };
}

targets! {
    supervisor_frames: "supervisor-frames",
    copier_frames: "copier-frames",
    sse: "sse",
    openai_stream: "openai-stream",
    anthropic_stream: "anthropic-stream",
    frontmatter: "frontmatter",
    yaml: "yaml",
    json: "json",
    workspace_files: "workspace-files",
    shell_verdicts: "shell-verdicts",
    shell_execution: "shell-execution",
    proto_requests: "proto-requests",
    http_bodies: "http-bodies",
    bus_messages: "bus-messages",
    grant_batches: "grant-batches",
}
