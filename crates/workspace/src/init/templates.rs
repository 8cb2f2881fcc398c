//! The built-in templates.

use super::copy::NewFile;

pub(super) const NAMES: [&str; 2] = ["default", "chat"];

pub(super) fn files(name: &str) -> Vec<NewFile> {
    let files: &[(&str, &str)] = match name {
        "chat" => &[
            ("AGENTS.md", include_str!("../templates/chat/AGENTS.md")),
            (super::SETTINGS, include_str!("../templates/chat/settings.yaml")),
            (".openharness/agents/guide.md", include_str!("../templates/chat/guide.md")),
        ],
        _ => &[
            ("AGENTS.md", include_str!("../templates/default/AGENTS.md")),
            (super::SETTINGS, include_str!("../templates/default/settings.yaml")),
            (".openharness/agents/developer.md", include_str!("../templates/default/developer.md")),
            (".openharness/models/models.yaml", include_str!("../templates/default/models.yaml")),
        ],
    };
    files.iter().map(|(path, text)| NewFile::text(path, text)).collect()
}
