//! The conformance suite: what every store must do, run on each of them.
//!
//! A case is an async function over a [`lab::Lab`], which holds an `Arc<dyn Store>` on a fresh database.
//! [`store_suite!`] makes one test of it per backend. PostgreSQL is the server that `REMUDA_TEST_POSTGRES_URL` names.

mod approvals;
mod below;
mod budgets;
mod cancel;
mod children;
mod claim;
mod commit;
mod concurrency;
mod events;
mod family;
mod fleet;
mod identity;
mod lab;
mod messages;
mod model;
mod overview;
mod paging;
mod plans;
mod recover;
mod retention;
mod retention_workers;
mod sandboxes;
mod schema;
mod sessions;
mod stand_by;
mod stubborn;
mod submit;
mod time;
mod trees;
mod views;
mod views_document;
mod views_roles;
mod webhooks;
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
                    crate::$module::$case(&crate::lab::Lab::$backend().await?).await
                }
            )+}
        )+}
    };
}

store_suite! {
    schema: migrating_twice_changes_nothing, migrating_from_two_places_at_once_is_fine,
        an_older_database_keeps_what_it_has,
        an_unmigrated_database_is_refused_with_advice, a_newer_schema_is_refused;
    identity: a_tenant_is_created_once_with_its_workspace, keys_are_found_until_they_expire_or_are_revoked,
        workspaces_belong_to_their_tenant;
    sessions: a_session_is_found_by_id_and_by_name, names_are_unique_per_tenant,
        other_tenants_sessions_do_not_exist, a_title_is_changed_with_an_event, closing_twice_appends_one_event,
        a_deleted_session_leaves_nothing,
        a_session_needs_a_workspace_of_its_tenant, only_what_is_given_is_changed,
        a_model_stays_once_there_are_runs;
    workspaces: a_workspace_is_found_by_its_name_and_used, names_of_workspaces_are_unique_per_tenant,
        workspaces_are_listed_by_name;
    messages: messages_are_in_the_order_of_their_commits, messages_keep_what_they_say,
        contents_are_stored_once_and_belong_to_their_tenant, contents_of_many_sessions_do_not_collide,
        an_end_can_change_who_leads, a_message_run_has_an_answer, a_lost_message_run_is_settled;
    retention: old_runs_go_with_all_that_hangs_on_them, what_is_not_over_stays, a_key_that_holds_keeps_its_run,
        what_is_still_to_be_told_stays, idle_sessions_go_whole, sessions_below_and_above_wait_for_each_other,
        the_last_use_is_known_without_history, a_large_session_goes_too, others_go_on_without_a_broken_one,
        two_at_once_delete_each_once, a_used_session_is_left_alone_while_its_old_runs_go;
    retention_workers: long_gone_workers_are_forgotten, an_owner_is_not_forgotten;
    sandboxes: a_sandbox_is_recorded_until_it_is_gone, an_owner_learns_where_to_execute, a_tenant_is_found_by_id;
    paging: sessions_come_newest_first_and_pages_survive_inserts, runs_are_filtered_and_paged,
        a_queue_is_paged_in_order, a_bad_page_token_is_named;
    submit: runs_get_their_place_and_their_event, who_waits_for_a_run_is_known_to_whoever_executes_it, refusals_say_why, a_full_queue_refuses,
        interrupting_cancels_what_waits_and_marks_what_executes, a_retry_gets_the_first_run,
        a_retry_is_answered_after_the_session_closed, interrupting_retries_are_answered,
        odd_values_survive, a_repeated_id_fails_alone;
    claim: the_head_run_is_granted_in_order, a_live_owner_is_not_overruled, claiming_again_fences_the_first_claim,
        a_takeover_after_the_lease_resumes_the_run, a_retired_owner_is_taken_over_at_once,
        one_of_many_claims_is_granted, claims_of_a_lost_worker_are_refused, nothing_to_do_is_said;
    stand_by: a_first_run_is_granted_with_its_submit, runs_that_come_together_stay_in_order,
        who_cannot_take_it_is_not_granted_it, what_an_owner_does_not_know_of_is_found;
    commit: progress_is_visible_and_handed_on, an_end_leads_to_the_next_run, ends_are_taken_together, ends_behind_a_stopped_run_are_not_taken,
        the_line_is_told_as_far_as_wanted, runs_behind_others_start_where_these_end, giving_up_releases_though_more_wait,
        an_old_fence_writes_nothing, only_the_current_run_is_written, an_end_is_final_and_complete,
        a_repeated_step_keeps_its_last_version, terminal_events_are_the_stores, releasing_keeps_the_run_at_the_head;
    cancel: a_waiting_run_ends_at_once, an_executing_run_is_marked, a_finished_run_stays_finished,
        unknown_and_foreign_runs_are_not_found, asking_twice_appends_nothing, a_released_run_ends_at_once,
        cancel_and_end_make_one_terminal_event;
    events: any_cursor_can_be_resumed, limits_and_ends_are_reported, other_tenants_streams_do_not_exist,
        long_streams_are_read_from_anywhere, ends_of_many_streams_are_told_at_once, old_events_of_finished_runs_are_trimmed,
        unfinished_runs_keep_their_events, sessions_are_trimmed_some_at_a_time;
    fleet: workers_come_and_go, a_drain_order_reaches_its_worker, ended_leases_cannot_be_renewed,
        runnable_sessions_are_those_without_a_live_owner, stats_count_what_is_there, depths_count_what_is_there,
        a_wait_for_something_else_is_no_wait_for_a_worker, one_leads_at_a_time,
        expired_keys_are_deleted, a_situation_explains_the_wait;
    overview: a_view_shows_pools_and_workers, what_happens_is_counted,
        what_is_told_again_is_counted_once, the_longest_running_come_first,
        the_longest_waiting_come_first, an_outlook_knows_what_is_ahead, an_outlook_knows_how_long_others_took,
        a_silent_worker_is_noticed_before_its_lease_ends;
    concurrency: one_key_makes_one_run, every_session_counts_without_holes, many_sessions_commit_together,
        two_stores_share_sessions_and_keys, dropped_calls_leave_nothing_open;
    recover: a_lost_workers_sessions_are_taken_back, a_live_workers_sessions_stay,
        a_run_that_loses_too_many_workers_fails, a_hand_over_is_no_lost_attempt, a_repeated_commit_is_done_once,
        a_parked_run_holds_no_worker_and_its_time_stands_still, a_parked_run_is_cancelled_at_once,
        a_cancel_leaves_receipts, a_lost_workers_run_is_cancelled_at_once, a_handed_over_run_ends_when_cancelled,
        a_tree_is_cancelled_whole, runs_without_an_owner_run_out_of_time, tasks_show_their_last_round,
        sessions_with_work_are_counted, the_next_lease_end_is_known;
    children: a_commit_makes_children_once, depth_counts_for_callers_too, a_task_is_gone_on_with,
        a_parent_goes_on_when_its_children_have_ended, what_has_come_is_not_waited_for, nobody_has_to_tell,
        no_wake_up_is_lost, a_cancelled_child_wakes_its_parent, parents_learn_what_became_of_children,
        one_worker_works_off_a_tree;
    time: waiting_for_children_costs_what_they_work, a_parked_child_that_ends_did_not_work,
        work_beside_a_parent_is_no_wait, work_is_paid_for_once, work_below_a_child_is_work_of_the_child;
    below: cancelling_the_root_reaches_all, cancelling_a_session_reaches_what_works_for_it,
        interrupting_reaches_what_is_below, an_executing_root_is_asked_and_its_children_stopped, orphans_are_found,
        orphans_are_found_some_at_a_time,
        what_is_made_with_the_last_breath_is_stopped_too, lost_children_wake_their_parent,
        children_that_run_out_of_time_wake_their_parent, a_run_alone_has_nobody;
    approvals: a_decision_lets_the_run_go_on, a_decision_is_made_once_and_by_the_right_one,
        two_answers_at_once_make_one_decision, all_answers_are_waited_for, an_ended_run_withdraws_its_questions,
        questions_expire, always_is_remembered, approvals_are_listed, waiting_for_people_costs_no_time;
    budgets: what_is_held_is_counted, a_dead_hold_is_not_waited_for, only_an_owner_reserves, an_end_gives_back, children_share, a_run_waits_for_money,
        a_raise_reaches_down,
        room_that_is_left_is_found, a_limit_can_be_made_later, totals_add_up;
    stubborn: others_go_on, other_orphans_are_stopped, a_cancel_is_told, a_raise_reaches_the_others;
    webhooks: a_webhook_starts_where_it_is_made, other_tenants_webhooks_do_not_exist, a_session_has_only_so_many,
        deliveries_move_a_webhook_on, a_receiver_that_is_gone_is_left_alone, what_dies_can_be_delivered_again,
        the_oldest_dead_letters_make_room, secrets_change_with_a_time_for_both;
    views: runs_are_shown_in_each_state, queues_and_sessions_are_shown, costs_are_summed_by_session_and_day,
        workers_and_sandboxes_are_shown, what_a_lost_worker_had_is_runnable, ids_are_printed_as_the_api_does;
    views_document: no_contents_are_shown, the_document_names_all_columns, the_documents_questions_have_answers,
        nobody_writes_through_a_view;
    trees: random_trees_come_to_an_end;
    model: random_histories_keep_the_invariants;
}
