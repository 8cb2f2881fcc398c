//! The part of a tool call that permission rules decide about.

/// What rules match their patterns against. `None` stands for an argument that the call lacks: it fails anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallSubject<'a> {
    /// A file or directory, as the call writes its path.
    Path(Option<&'a str>),
    /// A search beneath a path. The filter may name paths as well.
    Search { path: &'a str, filter: Option<&'a str> },
    /// A shell script. Each of its commands and redirections is a subject of its own.
    Script { argument: &'static str, script: Option<&'a str> },
    /// Any other text, such as a URL or the name of an agent.
    Text { text: Option<&'a str>, similar: SimilarCalls },
    /// The call as a whole: no argument matters to rules.
    WholeCall,
    /// The meaning of the arguments is unknown.
    Unknown,
}

/// Which calls the decision `always` allows besides calls with the same text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimilarCalls {
    None,
    /// Those with URLs of the same site.
    SameSite,
    /// All calls of the permission.
    All,
}
