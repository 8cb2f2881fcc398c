//! Version control, connections, archives, texts, editors.

use super::{ALIAS, ARGUMENT, CODE, FILTER, OPTION, SETTING, TRANSPORT};
use crate::shell::executors::{
    Row,
    When::{Always, Argument, Begins, Bundled, Contains, Option, Special},
    git, sed,
};

pub(super) const ROWS: &[Row] = &[
    // Version control.
    (&["git"], Special(git::alias), ALIAS),
    (&["git"], Special(git::settings), SETTING),
    (&["git"], Special(git::transport), TRANSPORT),
    (&["git"], Special(git::expanded_option), OPTION),
    (&["git"], Argument(&["--ext-diff"]), SETTING),
    (&["hg"], Option { letters: "", long: &["config", "config-file"] }, SETTING),
    (
        &["hg", "svn", "cvs", "bzr", "jj"],
        Option {
            letters: "",
            long: &["ssh", "remotecmd", "diff-cmd", "diff3-cmd", "editor-cmd", "config-option"],
        },
        OPTION,
    ),
    // Connections.
    (&["ssh", "scp", "sftp"], Option { letters: "FI", long: &[] }, OPTION),
    (&["wget", "wget2"], Option { letters: "e", long: &["execute", "config"] }, OPTION),
    (&["curl"], Option { letters: "K", long: &["config"] }, OPTION),
    (&["socat"], Contains(&["exec:", "system:", "shell:", "exec,", "system,"]), ARGUMENT),
    (&["nc", "ncat", "netcat"], Option { letters: "ec", long: &["exec", "sh-exec", "lua-exec"] }, OPTION),
    (&["openvpn", "pppd"], Always, OPTION),
    (&["ip"], Argument(&["exec"]), ARGUMENT),
    (&["nmap"], Option { letters: "", long: &["script", "datadir", "servicedb"] }, OPTION),
    (&["nmap"], Argument(&["-sC", "-A"]), CODE),
    (&["tcpdump"], Option { letters: "z", long: &[] }, OPTION),
    (&["tshark", "wireshark"], Option { letters: "X", long: &[] }, OPTION),
    // Archives and files.
    (&["tar", "gtar", "bsdtar"], Bundled("IF"), OPTION),
    (
        &["tar", "gtar", "bsdtar"],
        Option {
            letters: "IF",
            long: &[
                "use-compress-program",
                "info-script",
                "new-volume-script",
                "to-command",
                "rsh-command",
                "checkpoint-action",
            ],
        },
        OPTION,
    ),
    (&["cpio"], Option { letters: "", long: &["rsh-command"] }, OPTION),
    (&["rsync"], Option { letters: "e", long: &["rsh", "rsync-path", "config"] }, OPTION),
    (&["zip"], Begins(&["-TT", "--unzip-command"]), OPTION),
    (&["sort"], Option { letters: "", long: &["compress-program"] }, OPTION),
    (&["split"], Option { letters: "", long: &["filter"] }, OPTION),
    (&["install"], Option { letters: "", long: &["strip-program"] }, OPTION),
    (&["diff3"], Option { letters: "", long: &["diff-program"] }, OPTION),
    (&["patch"], Option { letters: "e", long: &["ed"] }, ARGUMENT),
    (&["rg"], Option { letters: "", long: &["pre", "hostname-bin"] }, OPTION),
    (
        &["ag", "ack", "bat", "batcat", "delta"],
        Option { letters: "", long: &["pager", "output-filter"] },
        OPTION,
    ),
    (&["fzf", "sk"], Option { letters: "", long: &["preview", "bind", "with-shell", "cmd"] }, OPTION),
    (&["logrotate", "run-parts", "debootstrap"], Always, CODE),
    // Text.
    (&["sed", "gsed"], Special(sed::position), FILTER),
    (
        &["awk", "gawk", "mawk", "nawk"],
        Option { letters: "fEilv", long: &["file", "exec", "include", "load", "assign"] },
        FILTER,
    ),
    (&["awk", "gawk", "mawk", "nawk"], Contains(&["system", "|", "getline", "@"]), FILTER),
    (&["m4", "gnuplot", "octave", "R", "maxima", "latexmk"], Always, CODE),
    (
        &["tex", "latex", "pdftex", "pdflatex", "xetex", "xelatex", "luatex", "lualatex"],
        Begins(&["-shell", "--shell", "-enable-w", "--enable-w", "-cnf", "--cnf", "\\"]),
        ARGUMENT,
    ),
    (&["gs", "ghostscript", "ps2pdf"], Contains(&["%pipe%", "nosafer", "-c"]), ARGUMENT),
    (&["convert", "magick", "identify", "mogrify"], Begins(&["|", "msl:", "ephemeral:", "mvg:"]), ARGUMENT),
    (&["exiftool"], Begins(&["-config", "-if", "-@", "-p"]), ARGUMENT),
    (&["dc"], Contains(&["!"]), ARGUMENT),
    // Editors, pagers, help.
    (
        &[
            "vi",
            "vim",
            "nvim",
            "view",
            "vimdiff",
            "gvim",
            "ex",
            "rvim",
            "emacs",
            "emacsclient",
            "ed",
            "red",
            "pico",
            "kak",
            "hx",
        ],
        Always,
        CODE,
    ),
    (&["nano"], Option { letters: "s", long: &["speller", "rcfile"] }, OPTION),
    (&["less", "more", "most"], Begins(&["+", "-k", "--lesskey", "-P", "--+"]), ARGUMENT),
    (&["man"], Option { letters: "PHC", long: &["pager", "html", "config-file", "preprocessor"] }, OPTION),
    (&["man", "groff", "troff", "nroff"], Option { letters: "UT", long: &["unsafe"] }, OPTION),
    (
        &["xdg-open", "open", "code", "sensible-editor", "sensible-browser", "select-editor", "expect"],
        Always,
        CODE,
    ),
];
