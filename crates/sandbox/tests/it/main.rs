//! Conformance suite of all backends, and tests of single backends.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod attacks;
mod commands;
mod directories;
mod docker;
mod files;
mod fixture;
mod hardening;
mod local;
mod search;
mod toy;

/// Turns every function of the suite into a test of one backend. `$make` is an async function that returns a
/// `SandboxFixture`.
macro_rules! backend_suite {
    ($make:path) => {
        crate::backend_suite!($make; commands:
            exit_code_and_output_streams_are_reported,
            argv_is_not_interpreted,
            missing_program_fails_or_exits_with_127,
            signal_is_reported,
            environment_contains_only_allowed_variables,
            working_directory_must_be_in_the_workspace,
            invalid_commands_are_rejected,
            stdin_is_empty_by_default,
            timeout_kills_grandchildren,
            timeout_ends_a_process_that_ignores_sigterm,
            cancel_kills_within_a_second,
            cancelled_command_never_starts,
            dropping_the_call_kills_the_command,
            large_output_is_bounded,
            endless_output_ends_with_the_timeout,
            background_child_does_not_outlive_the_call,
            daemon_does_not_outlive_the_call,
            usage_is_reported,
            stdin_is_delivered,
            long_output_is_spilled_to_a_file,
            output_is_not_spilled_outside_the_workspace,
            invalid_utf8_and_nul_are_replaced,
            live_output_arrives_before_the_end,
            many_commands_run_concurrently,
        );
        crate::backend_suite!($make; files:
            write_then_read,
            byte_ranges_are_read,
            missing_file_is_reported_with_its_path,
            overwrite_keeps_the_mode,
            create_new_does_not_overwrite,
            links_within_the_workspace_are_followed,
            links_out_of_the_workspace_are_rejected,
            paths_out_of_the_workspace_are_rejected,
            only_regular_files_are_read,
            only_regular_files_are_replaced,
            overwrite_leaves_hard_links_unchanged,
            invalid_paths_are_rejected,
            swapped_directories_are_not_followed,
            sparse_file_is_not_read_whole,
            stat_reports_kind_and_size,
        );
        crate::backend_suite!($make; directories:
            directory_is_listed_by_name,
            large_directory_listing_is_truncated,
            remove_affects_only_the_named_entry,
            devices_are_not_read,
            new_files_belong_to_the_owner_of_the_workspace,
            failed_write_on_a_full_disk_keeps_the_old_file,
            writes_to_a_read_only_directory_are_denied,
        );
        crate::backend_suite!($make; search:
            glob_finds_the_newest_first,
            glob_skips_hidden_and_ignored_files_unless_named,
            invalid_queries_are_rejected,
            grep_shows_lines_and_context,
            grep_lists_files_and_counts,
            grep_applies_the_ignore_rules_of_ripgrep,
            special_and_binary_files_are_skipped,
            expensive_searches_are_bounded,
            thousands_of_files_are_searched,
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
