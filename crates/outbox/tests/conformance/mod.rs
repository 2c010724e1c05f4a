//! The one suite that every database passes. A thin file per database (`tests/<database>.rs`) runs
//! it; a test is a function here and a name in the list of the macro.

pub(crate) mod any_language;
pub(crate) mod batches;
pub(crate) mod boundaries;
pub(crate) mod bounds;
pub(crate) mod crashes;
pub(crate) mod delivery;
mod dialect;
pub(crate) mod haste;
pub(crate) mod hostile;
pub(crate) mod kit;
pub(crate) mod leases;
pub(crate) mod load;
pub(crate) mod meddling;
pub(crate) mod misuse;
pub(crate) mod operations;
pub(crate) mod operators;
pub(crate) mod outcomes;
pub(crate) mod peers;
pub(crate) mod producers;
pub(crate) mod schema;
pub(crate) mod several;
pub(crate) mod stage;
pub(crate) mod storm;
pub(crate) mod trouble;
pub(crate) mod watching;
pub(crate) mod zombies;

pub(crate) use dialect::Dialect;
pub(crate) use stage::{Collector, Stage};

/// Makes a `#[tokio::test]` of every test in the suite.
macro_rules! suite {
    ($database:ty, $server:expr) => {
        /// Not a test: the worker process that the tests in `crashes` start and kill.
        #[tokio::test]
        #[ignore = "started by the tests that kill it"]
        async fn worker_process() {
            $crate::conformance::crashes::worker::<$database>().await;
        }

        $crate::conformance::suite!(@tests $database, $server,
            any_language: [
                a_key_has_the_partition_the_library_gives_it,
                what_is_said_arrives_as_it_was_said,
                what_the_library_refuses_is_refused,
                a_call_is_part_of_its_transaction,
                an_open_call_delays_nobody,
                a_call_is_noticed_within_the_documented_time,
            ],
            batches: [
                a_rejected_transactional_batch_is_undone_and_comes_one_at_a_time,
                a_rejected_leased_batch_keeps_its_acks,
                a_handler_that_ends_its_transaction_settles_nothing_and_runs_again,
                a_hanging_transaction_is_stopped_and_undone,
                the_last_attempt_of_a_batchs_head_is_its_own,
                a_take_over_from_a_batch_that_rests_buries_nobody,
            ],
            crashes: [
                a_killed_process_is_replaced_when_its_lease_runs_out,
                a_killed_transaction_leaves_one_effect_each,
                a_message_that_kills_its_process_ends_in_the_dead_letters,
            ],
            delivery: [
                committed_messages_are_delivered_in_order,
                rolled_back_messages_are_never_delivered,
                messages_of_one_transaction_keep_their_order,
                keys_and_headers_travel_with_the_message,
                any_bytes_arrive_as_they_were_enqueued,
                an_empty_batch_writes_nothing,
                one_invalid_message_refuses_the_whole_batch,
                a_late_commit_is_delivered_and_delays_nobody,
                a_plain_transaction_is_found_within_a_moment,
                a_backlog_larger_than_every_batch_is_drained,
                settled_messages_leave_nothing_behind,
                what_another_vacuum_was_at_is_removed_by_the_next,
            ],
            outcomes: [
                a_retry_comes_again_with_its_attempts_counted,
                a_rejected_message_is_dead_lettered_alone,
                the_last_attempt_ends_in_the_dead_letters,
                a_gap_in_the_acks_comes_again,
                a_panicking_handler_is_a_failed_attempt,
                a_handler_that_panics_before_it_waits_is_a_failed_attempt,
                a_handler_that_panics_when_it_is_stopped_is_a_failed_attempt,
                a_handler_slower_than_its_lease_is_stopped,
                a_transactional_effect_happens_exactly_once,
                a_transactional_retry_undoes_its_writes_alone,
                a_transactional_reject_undoes_its_writes_alone,
                a_sql_error_in_a_handler_is_survived,
                any_error_text_fits,
                new_arrivals_do_not_cut_a_backoff_short,
            ],
            hostile: [text_is_never_taken_for_a_statement],
            haste: [
                what_was_acked_is_settled_although_the_next_one_is_slow,
                a_retry_behind_what_is_not_settled_yet_keeps_its_number,
                a_stop_settles_what_was_handled,
                every_connection_of_the_pool_can_still_be_had,
                a_batch_with_large_headers_fits,
                a_flush_wakes_for_its_own_task_only,
            ],
            kit: [
                a_drain_delivers_what_is_due_and_nothing_else,
                a_test_sees_what_its_own_transaction_has_enqueued,
                a_handler_fails_on_command,
                a_lease_runs_out_when_the_clock_says_so,
                claims_on_dead_letters_run_out_when_the_clock_says_so,
                backoffs_double_up_to_the_last_attempt,
                a_clock_that_jumps_back_strands_nobody,
                a_clock_that_jumps_ahead_doubles_no_effect,
            ],
            operators: [
                a_skip_ends_the_backoff_of_what_is_gone,
                a_skipped_message_is_dead_lettered_and_the_next_one_comes,
                a_paused_partition_can_be_skipped_and_stays_paused,
                stats_tell_what_waits_what_fails_and_who_holds_it,
                a_peek_shows_what_waits_and_changes_nothing,
                a_tool_knows_the_queues_of_others,
            ],
            leases: [
                an_idle_lease_is_renewed_and_kept,
                a_locked_partition_does_not_keep_others_from_being_renewed,
                a_long_handler_keeps_its_lease_while_it_is_renewed,
                renewal_has_an_end,
                a_long_transaction_is_not_cut_off_by_its_lease,
                a_long_handler_is_stopped_when_its_lease_is_lost,
                a_row_that_is_locked_for_a_while_is_no_lost_lease,
                a_stop_gives_idle_partitions_back_at_once_and_keeps_the_busy_one,
                a_stop_beside_a_locked_partition_gives_the_others_back,
                a_handler_stuck_in_a_statement_gives_its_partition_back,
            ],
            schema: [
                migrations_go_up_and_down_and_up_again,
                plain_sql_makes_the_same_schema,
                a_removal_gives_way_to_producers,
            ],
            operations: [
                dead_letters_are_listed_and_counted_by_every_filter,
                a_claimed_dead_letter_belongs_to_one_operator,
                cleanup_removes_only_what_has_ended,
                what_nobody_came_back_for_can_be_discarded,
                a_requeued_dead_letter_is_delivered_with_its_history,
                a_paused_partition_waits_and_resumes_where_it_stood,
            ],
            producers: [
                every_isolation_level_will_do,
                a_savepoint_takes_its_messages_with_it,
                a_pool_of_one_connection_is_enough,
                order_follows_the_enqueue_not_the_transactions_begin,
                the_strictest_sessions_will_do,
            ],
            several: [
                processes_that_have_gone_are_forgotten_whatever_the_clock_said,
                two_processes_share_a_queue_without_doubling,
                a_stopped_process_is_replaced_at_once,
                another_process_hears_of_new_work_at_once,
                a_cursor_never_moves_back,
                a_zombie_settles_nothing,
                lost_connections_are_survived,
                ten_processes_start_at_once_on_an_empty_schema,
                another_partition_count_is_refused,
                bad_configuration_is_refused_before_anything_runs,
            ],
            bounds: [
                the_vacuum_keeps_up_while_messages_flow,
                memory_does_not_grow_with_the_backlog,
                a_payload_far_over_the_limit_leaves_the_transaction_usable,
                pauses_restarts_and_idle_looks_charge_nobody,
                attempts_never_overflow,
                statements_that_nobody_waits_for_do_not_pile_up_behind_a_locked_table,
            ],
            peers: [
                two_real_processes_share_a_queue,
            ],
            load: [
                producers_are_never_hurt,
                four_processes_number_a_partition_without_holes,
                a_queue_changes_its_mode_in_a_rolling_deployment,
                rows_that_a_stranger_has_locked_take_no_producers_connection,
                rows_that_a_stranger_has_locked_stop_no_other_partition,
                handlers_that_hang_leave_connections_to_others,
            ],
            storm: [
                a_storm_of_deadlocks_hurts_nobody_who_only_enqueues,
            ],
            meddling: [
                a_transaction_that_ends_in_the_middle_of_a_batch_costs_the_others_one_run,
                ddl_in_a_handler_works_or_runs_again,
                an_error_that_a_handler_hides_costs_no_effect,
                savepoints_left_open_change_nothing,
                a_handler_that_deadlocks_leaves_one_effect_each,
            ],
            misuse: [
                no_misuse_of_a_batch_moves_the_cursor_too_far,
                rejects_in_the_middle_of_a_batch_are_exact,
            ],
            trouble: [
                trouble_in_one_partition_stops_no_other,
                trouble_in_one_transaction_stops_no_other,
                poison_of_every_kind_is_buried_after_its_attempts,
                transactional_poison_is_buried_after_its_attempts,
                what_the_commit_refuses_is_a_failed_attempt,
                a_handler_whose_connection_is_gone_every_time_has_failed,
                any_reason_for_a_retry_fits,
            ],
            watching: [
                everything_that_happens_is_counted,
                what_fails_and_what_is_paused_shows,
                a_process_says_where_it_is,
                what_was_done_by_hand_is_written_down,
                a_list_can_do_without_payloads,
            ],
            zombies: [
                a_zombie_that_wakes_up_settles_nothing,
                a_zombie_transaction_leaves_no_effect,
                waiting_for_a_turn_is_no_failed_attempt,
                waiting_for_a_connection_is_no_failed_attempt,
            ],
        );
    };
    (@tests $database:ty, $server:expr, $($module:ident: [$($test:ident),* $(,)?]),* $(,)?) => {$(
        mod $module {
            $(
                $crate::conformance::suite!(@test $database, $server, $test,
                    [$crate::conformance::$module::$test]);
            )*
        }
    )*};
    (@test $database:ty, $server:expr, $test:ident, [$($path:tt)*]) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            testbed::with_database($server, async |database| {
                let stage = $crate::conformance::Stage::<$database>::set(database).await;
                $($path)*(&stage).await;
            })
            .await;
        }
    };
}
pub(crate) use suite;
