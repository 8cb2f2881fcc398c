//! The conformance suite of backends, and what only one of them does.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod bench;
mod commands;
mod directories;
mod docker;
mod files;
mod hardening;
mod local;
mod search;

/// Makes a test of every function of the suite, for one backend. `$make` is an async function that returns a `Bench`.
macro_rules! backend_suite {
    ($make:path) => {
        crate::backend_suite!($make; commands:
            echo_exit_code_and_streams,
            argv_is_not_interpreted,
            a_program_that_does_not_exist,
            signal_is_reported,
            environment_is_only_what_is_allowed,
            runs_in_the_workspace_or_beneath,
            bad_commands_are_refused,
            input_is_closed,
            timeout_kills_grandchildren,
            timeout_ends_a_process_that_ignores_sigterm,
            cancel_is_quick,
            cancelled_before_it_began,
            dropping_the_call_kills,
            large_output_is_bounded,
            endless_output_ends_with_the_timeout,
            background_child_does_not_outlive_the_call,
            a_daemon_does_not_outlive_the_call,
            usage_is_reported,
            input_is_given,
            long_output_is_kept_in_a_file,
            output_is_not_kept_outside_the_workspace,
            invalid_utf8_and_nul_are_replaced,
            live_output_arrives_before_the_end,
            many_at_once,
        );
        crate::backend_suite!($make; files:
            write_then_read,
            ranges,
            missing_file,
            overwrite_keeps_the_mode,
            create_new_does_not_overwrite,
            links_within_the_workspace_work,
            links_do_not_lead_out,
            dots_and_absolute_paths_do_not_lead_out,
            only_regular_files_are_read,
            only_regular_files_are_replaced,
            hard_link_keeps_the_old_contents,
            bad_paths_are_refused,
            swapped_directories_do_not_lead_out,
            sparse_file_is_not_read_whole,
            stat_says_what_is_there,
        );
        crate::backend_suite!($make; directories:
            lists_a_directory,
            a_large_directory_is_listed_in_part,
            removes_what_is_named_and_nothing_else,
            devices_are_not_read,
            new_files_have_the_owner_of_the_workspace,
            a_full_disk_loses_nothing,
            a_read_only_directory_is_refused,
        );
        crate::backend_suite!($make; search:
            glob_finds_the_newest_first,
            glob_leaves_out_what_is_not_named,
            bad_questions_are_refused,
            grep_shows_lines_and_context,
            grep_names_and_counts_files,
            grep_leaves_out_what_ripgrep_does,
            odd_files_are_no_trouble,
            searches_are_bounded,
            thousands_of_files,
            swapped_directories_are_not_searched,
        );
    };
    ($make:path; $group:ident: $($name:ident,)*) => {
        mod $group {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    crate::$group::$name($make().await).await;
                }
            )*
        }
    };
}
pub(crate) use backend_suite;
