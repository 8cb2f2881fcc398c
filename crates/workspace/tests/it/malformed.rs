//! All kinds of invalid definitions, each with the position and message of its problem.

use remuda_workspace::Severity::{self, Error, Warning};

use crate::support::{GOOD, Workspace, listed};

/// Files and the problem they must cause: severity, file, line and a part of the message.
struct Case {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    severity: Severity,
    file: &'static str,
    line: usize,
    message: &'static str,
}

const AGENT: &str = ".openharness/agents/bad.md";
const MODELS: &str = ".openharness/models/m.yaml";
const SETTINGS: &str = ".openharness/settings.yaml";
const PROMPTS: &str = ".openharness/prompts.yaml";
const TOOLS: &str = ".openharness/tools/settings.yaml";
const ACTION: &str = ".openharness/actions/a/ACTION.yaml";
const SKILL: &str = ".openharness/skills/s/SKILL.md";
const OPENCODE: &str = ".opencode/agents/bad.md";
const JSON: &str = "opencode.json";
const CODINGCODE: &str = ".codingcode/agents/bad.md";

macro_rules! cases {
    ($($name:literal: $severity:ident $file:ident:$line:literal $message:literal <= $text:expr;)*) => {
        &[$(Case { name: $name, files: &[($file, $text)], severity: $severity, file: $file, line: $line, message: $message },)*]
    };
}

const CASES: &[Case] = cases! {
    // The text itself.
    "frontmatter is not closed": Error AGENT:1 "is not closed" <= "---\nmode: all\n\nPrompt.\n";
    "a tab": Error AGENT:3 "is not valid YAML" <= "---\npolicy:\n\tmax_steps: 3\n---\nPrompt.\n";
    "a bracket that never closes": Error AGENT:3 "is not valid YAML" <= "---\nmode: all\nswitch: [a, b\n---\nPrompt.\n";
    "a colon too many": Error AGENT:2 "is not valid YAML" <= "---\ndescription: finds: bugs\n---\nPrompt.\n";
    "a key twice": Error AGENT:4 "duplicate key `mode`, already set in line 2" <= "---\nmode: all\nhidden: true\nmode: primary\n---\nPrompt.\n";
    "a number as a key": Error AGENT:3 "found 7: put it in quotes" <= "---\nmode: all\n7: x\n---\nPrompt.\n";
    "a list as a key": Error AGENT:2 "expected text as a key" <= "---\n[a, b]: x\n---\nPrompt.\n";
    "nothing as a key": Error AGENT:2 "expected text as a key" <= "---\n~: x\n---\nPrompt.\n";
    "a tag": Error AGENT:2 "tags are not supported" <= "---\nmode: !mine all\n---\nPrompt.\n";
    "an alias of nothing": Error AGENT:3 "is not valid YAML" <= "---\nmode: all\nswitch: *nobody\n---\nPrompt.\n";
    "an alias of itself": Error AGENT:2 "a value that contains it" <= "---\nswitch: &x [*x]\n---\nPrompt.\n";
    "a merge key": Error AGENT:3 "merge keys" <= "---\nx: &x {mode: all}\n<<: *x\n---\nPrompt.\n";
    "a list for frontmatter": Error AGENT:2 "expected a map, found a list" <= "---\n- mode\n---\nPrompt.\n";
    "no prompt": Error AGENT:0 "has no prompt" <= "---\nmode: all\n---\n\n  \n";
    "an empty file": Error AGENT:0 "has no prompt" <= "";

    // Fields of agents.
    "an unknown mode": Error AGENT:2 "mode: expected primary, subagent or all, found `main`" <= "---\nmode: main\n---\nPrompt.\n";
    "a mode that is a list": Error AGENT:2 "mode: expected primary, subagent or all, found a list" <= "---\nmode: [all]\n---\nPrompt.\n";
    "a description that is a number": Error AGENT:3 "description: expected text, found 12: put it in quotes" <= "---\nmode: all\ndescription: 12\n---\nPrompt.\n";
    "a description that is a boolean": Error AGENT:2 "description: expected text, found true" <= "---\ndescription: true\n---\nPrompt.\n";
    "too few steps": Error AGENT:4 "policy.max_steps: expected a whole number from 2 to 10000, found 0" <= "---\nmode: all\npolicy:\n  max_steps: 0\n---\nPrompt.\n";
    "a fraction of steps": Error AGENT:3 "found 2.5" <= "---\npolicy:\n  max_steps: 2.5\n---\nPrompt.\n";
    "steps as text": Error AGENT:3 "found `many`" <= "---\npolicy:\n  max_steps: many\n---\nPrompt.\n";
    "steps in quotes": Error AGENT:3 "a whole number from 2 to 10000, found `20`" <= "---\npolicy:\n  max_steps: \"20\"\n---\nPrompt.\n";
    "a timeout of zero": Error AGENT:3 "policy.run_timeout_seconds: expected a number from" <= "---\npolicy:\n  run_timeout_seconds: 0\n---\nPrompt.\n";
    "a negative timeout": Error AGENT:3 "policy.tool_timeout_seconds: expected a number from" <= "---\npolicy:\n  tool_timeout_seconds: -5\n---\nPrompt.\n";
    "an infinite timeout": Error AGENT:3 "policy.run_timeout_seconds" <= "---\npolicy:\n  run_timeout_seconds: .inf\n---\nPrompt.\n";
    "yes instead of true": Error AGENT:3 "policy.parallel_tool_calls: expected true or false, found `yes`" <= "---\npolicy:\n  parallel_tool_calls: yes\n---\nPrompt.\n";
    "on instead of true": Error AGENT:2 "hidden: expected true or false, found `on`" <= "---\nhidden: on\n---\nPrompt.\n";
    "no concurrent sub-agents": Error AGENT:3 "max_concurrent_subagents: expected a whole number from 1 to 100" <= "---\npolicy:\n  max_concurrent_subagents: 0\n---\nPrompt.\n";
    "a policy that is text": Error AGENT:2 "policy: expected a map, found text" <= "---\npolicy: strict\n---\nPrompt.\n";
    "temperature too high": Error AGENT:4 "model.temperature: expected a number from 0 to 2, found 2.5" <= "---\nmodel:\n  model_ref: platform/m\n  temperature: 2.5\n---\nPrompt.\n";
    "not a number": Error AGENT:2 "temperature: expected a number from 0 to 2, found .nan" <= "---\ntemperature: .nan\n---\nPrompt.\n";
    "top_p above 1": Error AGENT:2 "top_p: expected a number from 0 to 1, found 1.1" <= "---\ntop_p: 1.1\n---\nPrompt.\n";
    "a model without a name": Error AGENT:3 "model.model_ref: is missing" <= "---\nmodel:\n  temperature: 1\n---\nPrompt.\n";
    "a model that is a list": Error AGENT:2 "model: expected the name of a model" <= "---\nmodel: [a]\n---\nPrompt.\n";
    "one name where a list is expected": Error AGENT:2 "switch: expected a list, found `plan`" <= "---\nswitch: plan\n---\nPrompt.\n";
    "a number in a list of names": Error AGENT:4 "subagents[1]: expected text, found 3" <= "---\nsubagents:\n  - explore\n  - 3\n---\nPrompt.\n";
    "an invalid name": Error AGENT:3 "switch: expected a name, found `a b`" <= "---\nswitch:\n  - a b\n---\nPrompt.\n";
    "tools that are a number": Error AGENT:2 "tools: expected a map, found a number" <= "---\ntools: 3\n---\nPrompt.\n";
    "native tools that are text": Error AGENT:3 "tools.native: expected a list, found `Read`" <= "---\ntools:\n  native: Read\n---\nPrompt.\n";
    "an invalid color": Error AGENT:2 "color: expected a word or #rrggbb, found `#12`" <= "---\ncolor: '#12'\n---\nPrompt.\n";
    "an invalid permission": Error AGENT:4 "permission.bash.git *: expected allow, ask or deny, found `maybe`" <= "---\npermission:\n  bash:\n    git *: maybe\n---\nPrompt.\n";
    "permissions as a list": Error AGENT:2 "permission: expected allow, ask or deny, found a list" <= "---\npermission: [allow]\n---\nPrompt.\n";
    "an unknown mode of an agent": Error AGENT:2 "permission_mode: expected default, plan or full_auto, found `acceptEdits`" <= "---\npermission_mode: acceptEdits\n---\nPrompt.\n";
    "an unknown mode in a policy": Error AGENT:3 "policy.permission_mode: expected default, plan or full_auto, found true" <= "---\npolicy:\n  permission_mode: true\n---\nPrompt.\n";
    "no sub-agents at all": Error AGENT:3 "policy.max_subagents: expected a whole number from 1 to 1000, found 0" <= "---\npolicy:\n  max_subagents: 0\n---\nPrompt.\n";
    "too many switches": Error AGENT:3 "policy.max_switches: expected a whole number from 0 to 100, found 101" <= "---\npolicy:\n  max_switches: 101\n---\nPrompt.\n";
    "a rule without effect": Warning AGENT:3 "the rule `edit: *` has no effect: the later rule `*: *` says deny" <= "---\npermission:\n  edit: allow\n  '*': deny\n---\nPrompt.\n";
    "an unknown key": Warning AGENT:2 "the key `descripton` is unknown and ignored; did you mean `description`?" <= "---\ndescripton: x\n---\nPrompt.\n";
    "an unknown key within": Warning AGENT:3 "the key `maxsteps` of policy is unknown and ignored; did you mean `max_steps`?" <= "---\npolicy:\n  maxsteps: 4\n---\nPrompt.\n";
    "an empty field": Warning AGENT:2 "mode: is empty and ignored" <= "---\nmode:\n---\nPrompt.\n";
    "an unknown agent to switch to": Warning AGENT:3 "there is no agent `bulid`; did you mean `build`?" <= "---\nswitch:\n  - bulid\n---\nPrompt.\n";
    "switching to itself": Warning AGENT:2 "switch: the agent names itself" <= "---\nswitch: [bad]\n---\nPrompt.\n";
    "switching to a sub-agent": Warning AGENT:2 "switch: the agent `explore` only works for other agents" <= "---\nswitch: [explore]\n---\nPrompt.\n";
    "delegating to a primary agent": Warning AGENT:2 "subagents: the agent `plan` only leads sessions" <= "---\nsubagents: [plan]\n---\nPrompt.\n";
    "an unknown tool": Warning AGENT:3 "there is no native tool `bash`; did you mean `Bash`?" <= "---\ntools:\n  native: [bash]\n---\nPrompt.\n";
    "an unknown skill": Warning AGENT:2 "there is no skill `poetry`" <= "---\nskills: [poetry]\n---\nPrompt.\n";
    "an unknown model": Warning AGENT:2 "model: there is no model `platform/nothing`" <= "---\nmodel: platform/nothing\n---\nPrompt.\n";
    "a variable that may not be read": Error AGENT:3 "the variable SECRET may not be read" <= "---\nmode: all\ndescription: ${env.SECRET}\n---\nPrompt.\n";
    "a variable that is not set": Error AGENT:3 "the variable TEAM_NOPE is not set" <= "---\nswitch:\n  - ${env.TEAM_NOPE}\n---\nPrompt.\n";
    "an unclosed variable": Error AGENT:2 "expected the name of a variable after ${env." <= "---\ndescription: ${env.TEAM_KEY\n---\nPrompt.\n";

    // Models.
    "a model of an unknown provider": Error MODELS:2 "provider: expected openai, openai-compatible, anthropic or scripted, found `opnai`" <= "m:\n  provider: opnai\n  name: x\n";
    "a model without provider": Error MODELS:1 "provider: is missing" <= "m:\n  name: x\n";
    "a model without name": Error MODELS:2 "name: is missing" <= "m:\n  provider: openai\n";
    "a compatible model without URL": Error MODELS:1 "url: is missing" <= "m:\n  provider: openai-compatible\n  name: x\n";
    "an invalid URL": Error MODELS:4 "url: expected https://… or http://…" <= "m:\n  provider: openai\n  name: x\n  url: ftp://a\n";
    "a URL with a password": Error MODELS:4 "url: expected no user or password" <= "m:\n  provider: openai\n  name: x\n  url: https://me:secret@host/v1\n";
    "a key that is a number": Error MODELS:4 "key: expected text in quotes, found a number" <= "m:\n  provider: openai\n  name: x\n  key: 12345\n";
    "a model that is text": Error MODELS:1 "m: expected a map, found text" <= "m: gpt\n";
    "models that are a list": Error MODELS:1 "expected a map of models by name, found a list" <= "- m\n";
    "a name with a space": Error MODELS:1 "the model's name: expected" <= "my model:\n  provider: openai\n  name: x\n";
    "a duplicate model that differs in case": Error MODELS:4 "the model `M` is defined already, as `m` in .openharness/models/m.yaml" <= "m:\n  provider: openai\n  name: x\nM:\n  provider: openai\n  name: y\n";
    "a scenario that is missing": Error MODELS:3 "name: the scenario `nope.yaml` does not exist" <= "m:\n  provider: scripted\n  name: nope.yaml\n";
    "a scenario outside": Error MODELS:3 "leads out of the workspace" <= "m:\n  provider: scripted\n  name: ../../../platform/x.yaml\n";

    "no window": Error MODELS:4 "context_window: expected a whole number from 1 to 100000000, found 0" <= "m:\n  provider: openai\n  name: x\n  context_window: 0\n";
    "a window above the limit": Error MODELS:4 "context_window: expected a whole number from 1 to 100000000" <= "m:\n  provider: openai\n  name: x\n  context_window: 100000001\n";
    "a window in words": Error MODELS:4 "context_window: expected a whole number from 1 to 100000000, found `128k`" <= "m:\n  provider: openai\n  name: x\n  context_window: 128k\n";
    "an output limit above the window": Error MODELS:5 "max_output_tokens: expected less than context_window (100), found 100" <= "m:\n  provider: openai\n  name: x\n  context_window: 100\n  max_output_tokens: 100\n";
    "a negative price": Error MODELS:4 "price.input: expected dollars for a million tokens, such as 3.00, at most 1000000, found -1" <= "m:\n  provider: openai\n  name: x\n  price: {input: -1, output: 2}\n";
    "a price in words": Error MODELS:4 "price.output: expected dollars for a million tokens, such as 3.00, at most 1000000, found `$15`" <= "m:\n  provider: openai\n  name: x\n  price: {input: 3, output: $15}\n";
    "a price in quotes": Error MODELS:4 "price.input: expected dollars" <= "m:\n  provider: openai\n  name: x\n  price: {input: '3', output: 15}\n";
    "an infinite price": Error MODELS:4 "price.cache_write: expected dollars" <= "m:\n  provider: openai\n  name: x\n  price: {input: 3, output: 15, cache_write: .inf}\n";
    "a price above the limit": Error MODELS:4 "price.cached_input: expected dollars" <= "m:\n  provider: openai\n  name: x\n  price: {input: 3, output: 15, cached_input: 1000000.000001}\n";
    "a price without output": Error MODELS:4 "price.output: is missing, expected dollars for a million tokens" <= "m:\n  provider: openai\n  name: x\n  price: {input: 3}\n";
    "a price that is a number": Error MODELS:4 "price: expected a map, found a number" <= "m:\n  provider: openai\n  name: x\n  price: 3\n";
    "an unknown key of a price": Warning MODELS:4 "the key `cache_read` of price is unknown and ignored" <= "m:\n  provider: openai\n  name: x\n  price: {input: 3, output: 15, cache_read: 1}\n";

    // Settings and prompts.
    "settings that are text": Error SETTINGS:1 "settings: expected a map, found text" <= "hello\n";
    "an unknown kind": Error SETTINGS:1 "kind: expected project or chat, found `server`" <= "kind: server\n";
    "an unknown default agent": Error SETTINGS:2 "default_agent: there is no agent `nobody`" <= "kind: project\ndefault_agent: nobody\n";
    "a sub-agent as default agent": Error SETTINGS:1 "default_agent: the agent `explore` only works for other agents" <= "default_agent: explore\n";
    "an alias of an unknown model": Warning SETTINGS:2 "models: there is no model `platform/nope`" <= "models:\n  fast: platform/nope\n";
    "an alias without reference": Error SETTINGS:3 "models.fast.model_ref: is missing" <= "models:\n  fast:\n    temperature: 1\n";
    "an unknown backend": Error SETTINGS:2 "execution.backend: expected none, local or docker, found `podman`" <= "execution:\n  backend: podman\n";
    "an unknown mode of permissions": Error SETTINGS:2 "permissions.mode: expected default, plan or full_auto, found `bypass`" <= "permissions:\n  mode: bypass\n";
    "an unknown value of unattended": Error SETTINGS:2 "permissions.unattended: expected wait, refuse or fail, found `allow`" <= "permissions:\n  unattended: allow\n";
    "a rule with an unknown action": Error SETTINGS:3 "permissions.rules.bash: expected allow, ask or deny, found `no`" <= "permissions:\n  rules:\n    bash: no\n";
    "a rule without an action": Error SETTINGS:3 "permissions.rules[0].action: is missing, expected allow, ask or deny" <= "permissions:\n  rules:\n    - permission: bash\n";
    "a rule without permission and tool": Error SETTINGS:3 "permissions.rules[0]: expected either `permission` or `tool`" <= "permissions:\n  rules:\n    - action: deny\n";
    "a rule with permission and tool": Error SETTINGS:3 "permissions.rules[0]: expected either `permission` or `tool`" <= "permissions:\n  rules:\n    - {permission: bash, tool: Bash, action: deny}\n";
    "a rule that is text": Error SETTINGS:3 "permissions.rules[0]: expected a map, found text" <= "permissions:\n  rules:\n    - bash\n";
    "a rule with an empty pattern": Error SETTINGS:3 "permissions.rules: expected a permission and a pattern of 1 to 512 bytes" <= "permissions:\n  rules:\n    - {permission: bash, pattern: '', action: deny}\n";
    "path rules as a map": Error SETTINGS:2 "permissions.path_rules: expected a list, found a map" <= "permissions:\n  path_rules: {a: b}\n";
    "a path rule that neither allows nor denies": Error SETTINGS:3 "permissions.path_rules[0].allow: is missing, expected true or false" <= "permissions:\n  path_rules:\n    - pattern: a\n";
    "a path rule without a path": Error SETTINGS:3 "permissions.path_rules[0].pattern: is missing" <= "permissions:\n  path_rules:\n    - allow: false\n";
    "one denied command": Error SETTINGS:2 "permissions.denied_commands: expected a list, found `rm`" <= "permissions:\n  denied_commands: rm\n";
    "permissions that are text": Error SETTINGS:1 "permissions: expected a map, found text" <= "permissions: strict\n";
    "an unknown key of permissions": Warning SETTINGS:2 "the key `rule` of permissions is unknown and ignored; did you mean `rules`?" <= "permissions:\n  rule: deny\n";
    "memory.enabled that is no boolean": Error SETTINGS:2 "memory.enabled: expected true or false, found `maybe`" <= "memory:\n  enabled: maybe\n";
    "memory file outside": Error SETTINGS:1 "memory.file: `../MEMORY.md` is not a path inside the workspace" <= "memory: {enabled: true, file: ../MEMORY.md}\n";
    "memory directory outside": Error SETTINGS:1 "memory.directory: `/etc` is not a path inside the workspace" <= "memory: {enabled: true, directory: /etc}\n";
    "no bytes of memory": Error SETTINGS:1 "memory.max_bytes: expected a whole number from 1 to 262144, found 0" <= "memory: {max_bytes: 0}\n";
    "memory that is a list": Error SETTINGS:1 "memory: expected a map, found a list" <= "memory: [MEMORY.md]\n";
    "an unknown model for summaries": Warning SETTINGS:1 "context.model: there is no model `tiny`" <= "context: {model: tiny}\n";
    "summarize that is no boolean": Error SETTINGS:1 "context.summarize: expected true or false, found `often`" <= "context: {summarize: often}\n";
    "skills outside": Error SETTINGS:2 "skill_dirs: `../elsewhere` is not a path inside the workspace" <= "skill_dirs:\n  - ../elsewhere\n";
    "skills nowhere": Warning SETTINGS:1 "skill_dirs: `team` does not exist" <= "skill_dirs: [team]\n";
    "a prompt with inline and file": Error SETTINGS:3 "system_prompt.base: expected either `inline` or `file`" <= "system_prompt:\n  base:\n    inline: x\n    file: y.md\n";
    "a prompt file outside": Error PROMPTS:2 "base.file: `/etc/passwd` is not a path inside the workspace" <= "base:\n  file: /etc/passwd\n";
    "a prompt file nowhere": Error PROMPTS:2 "base.file: `p.md` does not exist" <= "base:\n  file: p.md\n";
    "an unknown segment": Error PROMPTS:4 "compose.order: `agents` is not a prompt segment; did you mean `agent`?" <= "compose:\n  order:\n    - base\n    - agents\n";
    "a segment twice": Error PROMPTS:2 "compose.order: `base` is listed twice" <= "compose:\n  order: [base, agent, base]\n";
    "a prompt for a model of no registry": Error PROMPTS:3 "expected platform/<name> or workspace/<name> as key" <= "llm_optimized:\n  models:\n    gpt: x\n";

    // Tool servers, actions, skills.
    "a server with command and URL": Error TOOLS:1 "expected either `command` or `url`" <= "s:\n  command: x\n  url: https://x\n";
    "a server with an invalid URL": Error TOOLS:2 "url: expected https://… or http://…" <= "s:\n  url: x\n";
    "a server with a password": Error TOOLS:2 "url: expected no user or password" <= "s:\n  url: https://me:secret@host\n";
    "a key that is empty": Warning MODELS:1 "key: is empty and ignored" <= "m:\n  provider: openai\n  name: x\n  key: ''\n";
    "a server with a login": Error TOOLS:3 "oauth: is not supported" <= "s:\n  command: x\n  oauth: true\n";
    "an action without command": Error ACTION:3 "entry.command: is missing" <= "name: a\nentry:\n  cwd: x\n";
    "an action without entry": Error ACTION:1 "entry: is missing" <= "name: a\n";
    "an action with a cwd outside": Error ACTION:4 "entry.cwd: `../..` leads out of the action" <= "name: a\nentry:\n  command: x\n  cwd: ../..\n";
    "an action with an invalid name": Error ACTION:1 "name: expected letters" <= "name: a b\nentry: {command: x}\n";
    "an empty skill": Error SKILL:0 "is empty" <= "---\nname: s\n---\n";
    "a skill with an invalid name": Error SKILL:2 "name: expected letters" <= "---\nname: a b\n---\nText.\n";

    // OpenCode.
    "an unknown mode of OpenCode": Error OPENCODE:2 "mode: expected primary, subagent or all" <= "---\nmode: main\n---\nPrompt.\n";
    "a tool of OpenCode that is text": Error OPENCODE:3 "tools.bash: expected true or false, found `no`" <= "---\ntools:\n  bash: no\n---\nPrompt.\n";
    "an option for a provider": Warning OPENCODE:2 "the key `reasoningEffort` is unknown and ignored" <= "---\nreasoningEffort: high\n---\nPrompt.\n";
    "a model of OpenCode's": Warning OPENCODE:2 "there is no model `anthropic/claude`: the agent uses the default model" <= "---\nmodel: anthropic/claude\n---\nPrompt.\n";
    "invalid JSON": Error JSON:3 "is not valid JSON: expected , or }" <= "{\n  \"agent\": {}\n  \"model\": \"x\"\n}\n";
    "an agent in JSON that is text": Error JSON:3 "bad: expected a map, found text" <= "{\n  \"agent\": {\n    \"bad\": \"x\"\n  }\n}\n";
    "steps in JSON": Error JSON:2 "steps: expected a whole number from 1 to 10000, found -1" <= "{\"agent\": {\"bad\": {\n  \"steps\": -1\n}}}\n";
    "a prompt in JSON that is missing": Error JSON:2 "prompt: the file does not exist" <= "{\"agent\": {\"bad\": {\n  \"prompt\": \"{file:./nope.txt}\"\n}}}\n";
    "a prompt in JSON that is outside": Error JSON:2 "prompt: the file is not inside the workspace" <= "{\"agent\": {\"bad\": {\n  \"prompt\": \"{file:../../x}\"\n}}}\n";
    "a default agent in JSON": Error JSON:2 "default_agent: there is no agent `nobody`" <= "{\n  \"default_agent\": \"nobody\"\n}\n";

    // CodingCode.
    "a profile without frontmatter": Error CODINGCODE:1 "expected frontmatter" <= "Just text.\n";
    "a profile without name": Error CODINGCODE:2 "name: is missing" <= "---\ndescription: x\n---\nPrompt.\n";
    "a profile without description": Error CODINGCODE:2 "description: is missing" <= "---\nname: bad\n---\nPrompt.\n";
    "a profile with a number for a name": Error CODINGCODE:2 "name: expected text, found 5" <= "---\nname: 5\ndescription: x\n---\nPrompt.\n";
    "a profile that is maybe readonly": Error CODINGCODE:4 "readonly: expected true or false, found `maybe`" <= "---\nname: bad\ndescription: x\nreadonly: maybe\n---\nPrompt.\n";
    "a profile with an unknown tool": Warning CODINGCODE:4 "there is no native tool `fly`" <= "---\nname: bad\ndescription: x\ntools: [\"fly\"]\n---\nPrompt.\n";
    "a profile with no steps": Error CODINGCODE:4 "maxSteps: expected a whole number from 1 to 10000" <= "---\nname: bad\ndescription: x\nmaxSteps: 0\n---\nPrompt.\n";
};

#[test]
fn invalid_definition_is_reported_with_its_position_and_others_work() {
    assert!(CASES.len() >= 40);
    let mut wrong = String::new();
    for case in CASES {
        let workspace = Workspace::with(case.files);
        workspace.write(".openharness/agents/good.md", GOOD);
        workspace.write("platform:x.yaml", "steps: []");
        let definitions = workspace.load();
        let found = definitions.problems.iter().any(|problem| {
            problem.file == case.file
                && problem.line == case.line
                && problem.severity == case.severity
                && problem.message.contains(case.message)
        });
        let others = definitions.problems.iter().filter(|problem| problem.file != case.file).count();
        if !found || others > 0 || definitions.problems.len() > 2 {
            let problems = listed(&definitions.problems);
            wrong.push_str(&format!(
                "{}: expected {}:{}: {}\n{problems}\n",
                case.name, case.file, case.line, case.message
            ));
        }
        // Other definitions work.
        assert_eq!(definitions.agent("good").unwrap().prompt, "You work.", "{}", case.name);
        assert!(definitions.agents.contains_key("build"), "{}", case.name);
        // The invalid definition does not work, and the error says why.
        let is_agent = [AGENT, OPENCODE, CODINGCODE].contains(&case.file);
        if is_agent && case.severity == Error {
            let refusal = definitions.agent("bad").unwrap_err();
            assert!(refusal.message().contains(case.message), "{}: {refusal}", case.name);
        } else if is_agent {
            assert!(definitions.agent("bad").is_ok(), "{}", case.name);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn invalid_utf8_is_reported_with_its_line() {
    let workspace = Workspace::with(&[(".openharness/agents/good.md", GOOD)]);
    workspace.write(AGENT, b"---\nmode: all\n---\nPrompt \xff\n");
    workspace.write("AGENTS.md", b"one\ntwo\n\xc3");
    let definitions = workspace.load();
    let shown = listed(&definitions.problems);
    assert!(shown.contains("Error .openharness/agents/bad.md:4: is not UTF-8 text"), "{shown}");
    assert!(shown.contains("Error AGENTS.md:3: is not UTF-8 text"), "{shown}");
    assert!(definitions.agent("good").is_ok());
    assert_eq!(definitions.instructions, None);
}

#[test]
fn byte_order_mark_and_crlf_are_accepted() {
    let workspace = Workspace::new();
    workspace.write(
        AGENT,
        "\u{feff}---\r\nmode: subagent\r\npolicy:\r\n  max_steps: 9\r\ntools: {native: []}\r\n---\r\n\r\nOne\r\ntwo.\r\n",
    );
    let definitions = workspace.load();
    crate::support::assert_no_problems(&definitions);
    let agent = definitions.agent("bad").unwrap();
    assert_eq!((agent.prompt.as_str(), agent.policy.max_steps), ("One\ntwo.", 9));
}

#[test]
fn duplicate_definition_names_both_files() {
    let workspace = Workspace::with(&[
        (".openharness/agents/Twin.md", GOOD),
        (".openharness/agents/twin.md", GOOD),
        (".openharness/models/a.yaml", "one:\n  provider: openai\n  name: x\n"),
        (
            ".openharness/models/b.yaml",
            "other:\n  provider: openai\n  name: x\none:\n  provider: openai\n  name: y\n",
        ),
        (".openharness/skills/a/SKILL.md", "---\nname: s\n---\nOne.\n"),
        (".openharness/skills/b/SKILL.md", "---\nname: s\n---\nTwo.\n"),
        (".openharness/actions/a/ACTION.yaml", "name: act\nentry: {command: one}\n"),
        (".openharness/actions/b/ACTION.yaml", "name: act\nentry: {command: two}\n"),
        (".opencode/agent/double.md", "---\ndescription: d\n---\nOne.\n"),
        (".opencode/agents/double.md", "---\ndescription: d\n---\nTwo.\n"),
    ]);
    let definitions = workspace.load();
    let shown = listed(&definitions.problems);
    for expected in [
        "Error .openharness/agents/twin.md: the agent `twin` is defined already, as `Twin` in .openharness/agents/Twin.md",
        "Error .openharness/models/b.yaml:4:1: the model `one` is defined already, as `one` in .openharness/models/a.yaml",
        "Error .openharness/skills/b/SKILL.md: the skill `s` is defined already, in .openharness/skills/a/SKILL.md",
        "Error .openharness/actions/b/ACTION.yaml: the action `act` is defined already, in .openharness/actions/a/ACTION.yaml",
        "Error .opencode/agents/double.md: the agent `double` is defined already, as `double` in .opencode/agent/double.md",
    ] {
        assert!(shown.contains(expected), "{expected}\n---\n{shown}");
    }
    assert_eq!(definitions.problems.len(), 5, "{shown}");
    assert_eq!(definitions.actions["act"].command, "one");
    assert_eq!(definitions.skills["s"].body, "One.");
    assert_eq!(definitions.model("one").unwrap().name, "x");
    assert_eq!(definitions.model("other").unwrap().name, "x");
}
