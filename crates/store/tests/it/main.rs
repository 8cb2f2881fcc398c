//! The conformance suite: every case runs against each backend.
//!
//! A case is an async function over a [`fixture::Fixture`], which has an `Arc<dyn Store>` on a fresh database.
//! [`store_suite!`] generates one test per backend. PostgreSQL is the server in `REMUDA_TEST_POSTGRES_URL`.

mod approvals;
mod backup;
mod budgets;
mod bus_keys;
mod cancel;
mod children;
mod claim;
mod commit;
mod concurrency;
mod descendants;
mod events;
mod fixture;
mod fleet;
mod foreign_ids;
mod full_disk;
mod golden;
mod identity;
mod labels;
mod messages;
mod model;
mod operator_keys;
mod overview;
mod paging;
mod partial_failure;
mod query_plans;
mod recover;
mod retention;
mod retention_workers;
mod sandboxes;
mod schema;
mod sessions;
mod slot_grants;
mod submit;
mod tree_helpers;
mod trees;
mod views;
mod views_document;
mod views_roles;
mod webhooks;
mod worked_time;
mod workspaces;

/// Instantiates every case for every backend.
macro_rules! store_suite {
    ($($module:ident: $($case:ident),+ $(,)?;)+) => {
        store_suite!(@backend sqlite: $($module: $($case),+;)+);
        store_suite!(@backend postgres: $($module: $($case),+;)+);
    };
    (@backend $backend:ident: $($module:ident: $($case:ident),+;)+) => {
        mod $backend {$(
            mod $module {$(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() -> anyhow::Result<()> {
                    crate::$module::$case(&crate::fixture::Fixture::$backend().await?).await
                }
            )+}
        )+}
    };
}

store_suite! {
    schema: migrating_twice_changes_nothing, concurrent_migrations_succeed,
        migration_keeps_existing_rows,
        unmigrated_database_is_refused_with_advice, newer_schema_is_refused;
    identity: tenant_is_created_once_with_its_default_workspace, api_key_is_found_until_it_expires_or_is_revoked,
        workspace_is_invisible_to_other_tenants;
    operator_keys: operator_key_belongs_to_no_tenant, database_refuses_a_key_that_mixes_operator_and_tenant,
        key_is_revoked_by_its_id_whoever_owns_it, keys_from_before_the_operator_scope_stay_with_their_tenants;
    sessions: session_is_found_by_id_and_by_name, session_names_are_unique_per_tenant,
        sessions_of_other_tenants_are_not_found, changing_the_title_appends_an_event, closing_twice_appends_one_event,
        deleting_a_session_deletes_all_its_rows,
        session_requires_a_workspace_of_its_tenant, update_changes_only_the_given_fields,
        model_is_locked_after_the_first_run;
    foreign_ids: foreign_run_takes_no_longer_than_an_unknown_one;
    backup: changed_or_missing_migration_is_refused;
    workspaces: workspace_is_found_by_name_and_can_be_used, workspace_names_are_unique_per_tenant,
        workspaces_are_listed_by_name, workspaces_of_all_tenants_are_listed_for_operators;
    messages: messages_are_listed_in_commit_order, message_contents_survive_a_round_trip,
        contents_are_stored_once_per_tenant, concurrent_commits_of_the_same_contents_do_not_deadlock,
        end_can_change_the_active_agent, message_run_has_an_answer, lost_message_run_gets_settled_steps;
    retention: old_runs_are_deleted_with_dependent_rows, unfinished_runs_and_their_trees_are_kept, run_with_a_valid_idempotency_key_is_kept,
        runs_with_undelivered_webhook_events_are_kept, idle_sessions_are_deleted_completely, parent_and_child_sessions_are_kept_while_either_is_in_use,
        last_activity_is_known_after_history_was_deleted, large_session_is_deleted_in_several_transactions, corrupt_session_does_not_block_the_deletion_of_others,
        concurrent_sweeps_delete_each_run_once, old_runs_of_an_active_session_are_deleted_and_the_session_is_kept;
    retention_workers: rows_of_long_gone_workers_are_deleted, row_of_a_recorded_owner_is_kept;
    sandboxes: sandbox_is_recorded_until_it_is_forgotten, grant_contains_the_execution_choice, tenant_is_found_by_id;
    paging: sessions_are_listed_newest_first_and_pages_are_stable_under_inserts, runs_are_filtered_and_paged,
        queue_is_paged_in_execution_order, invalid_page_token_error_names_the_field;
    labels: labels_are_returned_wherever_the_run_is, runs_are_listed_by_all_given_labels,
        children_inherit_the_labels_of_their_parent, deleted_session_leaves_no_labels;
    submit: submit_assigns_a_sequence_number_and_appends_an_event, grant_contains_the_waiting_control_plane, refused_submit_says_why, full_queue_refuses_submits,
        interrupt_cancels_queued_runs_and_marks_the_executing_one, retry_with_the_same_key_returns_the_first_run,
        retry_returns_the_first_run_after_the_session_closed, interrupting_retry_returns_the_first_run,
        unusual_values_survive_a_round_trip, duplicate_run_id_fails_only_its_own_submit;
    claim: head_runs_are_granted_in_queue_order, claim_is_refused_while_the_owner_is_alive, second_claim_of_the_same_worker_fences_the_first,
        expired_lease_is_taken_over_and_the_run_resumes, session_of_a_retired_worker_is_taken_over_at_once,
        one_of_many_concurrent_claims_is_granted, claim_of_a_worker_without_a_lease_is_refused, claim_without_runnable_runs_returns_nothing_to_do,
        session_of_another_pool_is_not_granted;
    slot_grants: first_run_is_granted_in_its_submit, concurrently_submitted_runs_are_executed_in_order,
        submit_grants_nothing_without_an_eligible_slot, grant_missing_from_the_heartbeat_is_reported_as_lost;
    commit: committed_progress_is_visible_and_passed_to_the_next_owner, end_grants_the_next_run, successor_ends_are_committed_together, successors_after_a_cancelled_run_are_not_accepted,
        next_grant_contains_the_prefetched_runs, successors_start_when_their_predecessor_ends, release_flag_releases_a_session_with_more_runs,
        outdated_fence_writes_nothing, commit_for_a_run_that_is_not_current_is_refused, end_is_final_and_contains_all_outcomes,
        last_version_of_a_repeated_step_is_stored, commit_with_a_terminal_event_is_refused, released_run_stays_at_the_head_of_the_queue;
    cancel: cancelled_queued_run_ends_at_once, cancelled_executing_run_is_marked, cancelling_an_ended_run_changes_nothing,
        cancelling_unknown_or_foreign_runs_fails_with_not_found, second_cancel_request_appends_no_event, cancelled_released_run_ends_at_once,
        concurrent_cancel_and_end_append_one_terminal_event;
    events: stream_can_be_read_from_any_cursor, read_respects_the_limit_and_returns_the_stream_end, streams_of_other_tenants_are_not_found,
        long_trimmed_streams_are_read_from_any_cursor, last_cursors_returns_the_ends_of_many_streams, old_events_of_finished_runs_are_trimmed,
        events_of_unfinished_runs_are_kept, trim_scans_sessions_page_by_page;
    fleet: worker_registers_renews_and_retires, drain_request_reaches_the_worker_with_its_heartbeat, expired_lease_cannot_be_renewed,
        runnable_sessions_are_those_without_a_live_owner, queue_stats_count_sessions_runs_and_workers, queue_depths_count_sessions_and_runs,
        parked_time_does_not_count_as_waiting_for_a_worker, one_holder_has_the_leader_lease_at_a_time,
        expired_idempotency_keys_are_deleted, diagnostics_explain_why_a_run_waits;
    overview: fleet_view_shows_pools_and_workers, counters_count_runs_and_spending,
        spending_reported_twice_is_counted_once, longest_running_runs_are_listed_first,
        longest_waiting_runs_are_listed_first, estimate_inputs_contain_the_queue_position, estimate_inputs_contain_execution_times_of_earlier_runs,
        estimate_inputs_show_the_age_of_the_last_heartbeat;
    concurrency: concurrent_submits_with_one_key_create_one_run, concurrent_submits_get_consecutive_sequence_numbers, many_sessions_commit_together,
        two_stores_share_sessions_and_keys_without_deadlock, dropped_calls_leave_no_open_transaction;
    recover: sessions_of_a_lost_worker_are_reclaimed, sessions_of_a_live_worker_are_not_reclaimed,
        run_fails_after_too_many_lost_attempts, hand_over_is_not_a_lost_attempt, repeated_commit_takes_effect_once,
        parked_run_needs_no_worker_and_does_not_use_up_its_time, parked_run_is_cancelled_at_once,
        cancel_records_delivery_and_stop_times, run_of_a_lost_worker_is_cancelled_at_once, hand_over_of_a_cancelled_run_ends_it,
        cancelling_a_session_tree_cancels_all_its_runs, run_ends_after_its_executed_time_and_not_by_the_clock, background_tasks_show_their_last_round,
        sessions_with_work_are_counted, next_lease_expiry_is_known;
    children: repeated_commit_creates_children_once, depth_counts_for_sessions_created_by_callers, child_session_can_be_continued_while_idle,
        parent_resumes_when_enough_children_have_ended, satisfied_wait_does_not_park_the_run, resume_ready_resumes_parents_without_notification,
        concurrent_child_ends_and_parking_lose_no_wake_up, cancelled_child_resumes_its_parent, child_reports_contain_states_and_answers,
        one_worker_executes_a_whole_tree;
    worked_time: waiting_for_children_uses_only_the_time_they_work, time_of_a_cancelled_parked_child_does_not_count,
        child_work_during_the_parents_work_is_not_counted_again, child_work_over_several_waits_is_counted_once, work_of_grandchildren_counts_as_work_of_the_child;
    descendants: cancelling_the_root_cancels_all_descendants, cancelling_a_session_cancels_descendants_of_its_runs,
        interrupt_cancels_descendants, cancelling_an_executing_root_marks_it_and_ends_its_children, orphans_are_cancelled,
        orphan_scan_continues_page_by_page,
        children_created_by_the_last_commit_of_a_cancelled_run_are_cancelled, lost_child_resumes_its_parent,
        child_that_used_up_its_time_resumes_its_parent, run_without_relatives_has_no_descendants;
    approvals: decision_resumes_the_run, approval_is_decided_once_and_by_an_authorized_caller,
        concurrent_decisions_yield_one, run_waits_for_all_its_approvals, ended_run_withdraws_its_pending_approvals,
        approvals_expire, always_adds_rules_to_the_session, approvals_are_listed, waiting_for_approvals_uses_no_time;
    budgets: reservations_and_spending_are_counted, obsolete_reservation_of_a_run_does_not_block_it, reserve_requires_ownership, end_releases_reservations, children_share_the_budgets_of_their_ancestors, run_parks_for_budget_and_resumes_after_a_raise,
        raise_resumes_all_covered_runs,
        freed_budget_resumes_waiting_runs, budget_created_later_starts_with_previous_spending, totals_sum_over_trees;
    partial_failure: corrupt_session_does_not_block_other_resumes, corrupt_session_does_not_block_the_cancellation_of_other_orphans, cancel_succeeds_although_a_descendant_is_corrupt, corrupt_session_does_not_block_other_runs_after_a_raise;
    bus_keys: migrated_database_has_one_key, worker_key_is_listed_while_its_lease_lives,
        rotated_key_is_accepted_for_a_while, forced_rotation_retires_the_old_key_at_once;
    webhooks: webhook_starts_at_the_cursor_of_its_creation, webhooks_of_other_tenants_are_not_found, number_of_webhooks_per_session_is_limited,
        delivery_reports_advance_the_cursor, gone_receiver_disables_the_webhook, dead_letters_can_be_redelivered,
        oldest_dead_letters_are_dropped_at_the_limit, rotation_keeps_the_previous_secret_for_a_while;
    views: view_shows_runs_in_each_state, views_show_queues_and_sessions, view_sums_costs_by_session_and_day,
        views_show_workers_and_sandboxes, session_of_a_lost_worker_is_shown_as_runnable, views_print_ids_like_the_api;
    views_document: views_show_no_contents, documentation_names_all_columns, documented_queries_run,
        views_are_read_only;
    trees: random_trees_terminate;
    model: random_histories_keep_the_invariants;
}
