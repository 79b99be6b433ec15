"""Every rule taken out once: its test fails. A mutant that nobody notices means that a rule is only written down."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.simulation import test_rules_effects as effects
from tests.simulation import test_rules_ownership as ownership
from tests.simulation import test_rules_restore as restore
from tests.simulation import test_rules_runs as runs
from tests.simulation.loop_mutants import MUTANTS, Mutated, caught
from tests.simulation.loop_process import TOPICS
from turnlog.kafka.port import NotOwner

Catcher = Callable[[], None]
"""The test of the rule."""

_NOT_OWNER = NotOwner("no", "UNKNOWN_MEMBER_ID")
CATCHERS: dict[str, Catcher] = {
    "J01_any_number_and_hash_follow": ownership.test_j01_a_step_names_number_and_hash_of_the_one_before,
    "J01_prev_forgotten": ownership.test_j02_a_run_goes_on_behind_repeats_of_its_steps,
    "J02_repeats_are_steps": ownership.test_j02_a_repeat_is_skipped_and_counted,
    "J02_one_producer_for_everything": ownership.test_j02_the_journals_producer_writes_nothing_else,
    "J03_unmoved_positions_expire": ownership.test_j03_positions_are_committed_again_daily_also_unmoved,
    "J03_stays_although_its_id_was_taken": ownership.test_j03_who_lost_its_instance_id_ends_every_ownership_and_goes,
    "J04_fence_unconfirmed": partial(ownership.test_j04_a_fence_without_an_accepted_commit_opens_nothing, _NOT_OWNER),
    "J04_token_used_before_its_acknowledgement": ownership.test_j04_nothing_names_a_token_before_its_fence_is_acknowledged,
    "J05_two_in_flight": ownership.test_j05_one_unacknowledged_record_a_run_and_what_waited_is_decided_together,
    "J06_gap_not_read": ownership.test_j06_a_foreign_fence_in_a_gap_ends_the_ownership_and_a_void_step_does_not,
    "J06_released_while_a_gap_is_read": ownership.test_j06_a_higher_offset_releases_nothing_until_the_gap_is_read,
    "J06_later_acks_released_while_a_gap_is_read": ownership.test_j06_a_higher_offset_releases_nothing_until_the_gap_is_read,
    "J06_foreign_fence_ignored": ownership.test_j06_a_foreign_fence_in_a_gap_ends_the_ownership_and_a_void_step_does_not,
    "J06_released_before_the_acknowledgement": ownership.test_j06_requests_and_projections_wait_for_the_acknowledgement,
    "J07_unknown_fate_is_success": partial(
        ownership.test_j07_an_unknown_fate_ends_every_ownership_of_the_producer, "ack_unknown"
    ),
    "J07_errors_end_nothing": partial(ownership.test_j07_an_unknown_fate_ends_every_ownership_of_the_producer, "fail"),
    "J07_reports_of_the_old_producer_count": ownership.test_j07_what_a_dead_producer_still_reports_counts_for_nothing,
    "J07_fenced_again_without_asking": ownership.test_j07_who_met_a_foreign_fence_asks_whether_it_owns_before_the_next_fence,
    "J08_floor_ignores_open_runs": restore.test_j08_the_floor_is_the_least_base_of_the_runs_that_go_on,
    "J08_floor_ignores_unacknowledged_effects": restore.test_j08_an_unacknowledged_effect_holds_the_floor,
    "J08_floor_ignores_what_is_not_resent_yet": restore.test_j08_what_a_restore_has_still_to_send_holds_the_floor_while_runs_are_loaded,
    "J08_floor_runs_ahead_of_a_gap": restore.test_j08_the_pointer_does_not_run_ahead_of_a_gap,
    "J08_bases_grow_old": restore.test_j08_the_floor_moves_beside_a_run_that_waits_for_ever,
    "J08_steps_outgrow_their_base": restore.test_j08_a_run_is_snapshotted_when_its_steps_outgrow_four_times_its_base,
    "J09_plain_commit": restore.test_j09_every_commit_carries_the_pointer,
    "J09_floor_without_its_token": restore.test_j09_the_token_in_the_pointer_is_the_one_in_force_at_the_floor,
    "J09_effects_not_sent_again": restore.test_j09_effects_that_never_left_are_sent_again_and_requests_only_where_unanswered,
    "J09_overtaken_steps_are_forgotten": restore.test_j09_effects_of_steps_that_a_snapshot_overtook_are_sent_again,
    "J09_repeated_steps_stand_where_they_first_were": restore.test_j09_effects_of_a_repeated_step_are_sent_again,
    "J09_everything_is_read": restore.test_j09_a_restore_reads_from_the_floor_and_not_what_lies_before,
    "J09_last_fence_not_asked": restore.test_j09_without_offsets_the_last_fence_tells_positions_and_epoch,
    "J10_parked_with_effects_under_way": runs.test_j10_a_run_with_effects_under_way_is_not_parked,
    "J10_loading_sends_everything_again": runs.test_j10_an_idle_run_leaves_memory_and_comes_back,
    "J10_hashes_unchecked": runs.test_j10_loading_checks_the_hashes_of_the_chain,
    "J11_seen_not_checked": runs.test_j11_what_stands_in_the_runs_steps_is_ignored_when_it_comes_again,
    "J11_committed_before_it_is_dealt_with": runs.test_j11_the_committed_offset_is_the_lowest_message_not_dealt_with,
    "J11_the_word_about_repetitions_is_lost": runs.test_j11_the_word_about_a_repetition_survives_its_owner,
    "J12_known_runs_not_awaited": runs.test_j12_until_known_runs_are_streamed_everything_of_unknown_runs_waits_in_order,
    "J12_ended_runs_unknown": runs.test_j12_a_start_for_a_run_that_exists_or_ended_makes_nothing_happen_but_an_outcome,
    "J12_ended_runs_unknown_until_read_back": runs.test_j12_a_run_is_known_from_its_end_on_although_its_summary_was_not_read_back_yet,
    "J13_old_projections_stay": effects.test_j13_an_old_projection_over_a_new_one_is_written_over_byte_for_byte,
    "J13_unsure_repairs_are_dropped": effects.test_j13_a_projection_is_repaired_also_when_the_owner_was_unsure_as_it_read_it,
    "J13_refused_requests_forgotten": effects.test_j13_a_request_that_kafka_refuses_for_good_becomes_an_event,
    "J13_refusals_hold_nothing": effects.test_j13_a_refused_request_holds_the_floor_until_the_refusal_is_journaled,
    "J14_trimmed_to_the_floor": effects.test_j14_the_owner_deletes_what_no_restore_needs_and_the_log_begins_with_a_fence,
    "J14_trimmed_beyond_open_runs": effects.test_j14_the_owner_deletes_what_no_restore_needs_and_the_log_begins_with_a_fence,
    "J15_ids_not_compared": partial(effects.test_j15_a_topic_made_anew_stops_the_partition, TOPICS.results),
    "J15_pointers_end_not_compared": effects.test_j15_a_journal_that_was_cut_is_not_appended_to,
    "J15_lower_offsets_are_fine": effects.test_j15_a_lower_offset_at_run_time_ends_the_ownership_and_it_stays_closed,
    "J15_a_cut_is_forgotten": effects.test_j15_a_lower_offset_at_run_time_ends_the_ownership_and_it_stays_closed,
    "J15_epochs_begin_anew": effects.test_j15_adopting_opens_a_new_input_epoch_in_which_old_offsets_mean_nothing,
    "J16_the_owners_clock_for_messages": effects.test_j16_a_message_has_the_time_of_its_record,
    "J16_timers_before_the_backlog": effects.test_j16_what_arrived_before_a_deadline_counts_although_it_was_read_after,
    "J16_sleep_goes_unnoticed": effects.test_j16_a_process_that_slept_reads_before_its_timers_fire,
}
SEEDS: dict[str, range] = {
    "J01_prev_forgotten": range(10),
    "J05_two_in_flight": range(5),
    "J06_gap_not_read": range(150),
    "J06_released_before_the_acknowledgement": range(5),
    "J08_floor_ignores_open_runs": range(10),
    "J09_effects_not_sent_again": range(10),
    "J11_committed_before_it_is_dealt_with": range(20),
    "J12_ended_runs_unknown": range(100),
    "J14_trimmed_to_the_floor": range(10),
}
"""What the simulation must notice by itself, too, within these seeds."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_every_mutant_has_a_catcher_and_every_rule_a_mutant() -> None:
    assert set(CATCHERS) == set(MUTANTS)
    assert {name[:3] for name in CATCHERS} == {f"J{n:02}" for n in range(1, 17)}


@pytest.mark.parametrize("name", CATCHERS)
def test_the_rules_own_test_fails_without_it(name: str) -> None:
    catcher = CATCHERS[name]
    catcher()
    with Mutated(name):
        assert _fails(catcher), f"nobody noticed {name}"


def _fails(catcher: Catcher) -> bool:
    try:
        catcher()
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 - a mutant may break anything in any way
        return True
    return False


@pytest.mark.parametrize("name", SEEDS)
def test_the_simulation_notices_too(name: str) -> None:
    assert caught(name, SEEDS[name]) is not None
