"""Tests that do once more what another one does, on another fabric, by another user, at another rate, or with another
fault of its kind, and the most expensive tests of what others test in parts.

They take longer than all others, so they are left out unless asked for: `sudo script/test thorough`.
"""

from typing import Final

_LOCALES: Final = ("LC_ALL PYTHONCOERCECLOCALE PYTHONUTF8", "PYTHONIOENCODING", "TERM COLUMNS", "LC_ALL PYTHONUTF8")
OTHER_LOCALES: Final = {
    "list": _LOCALES[1:],
    "predict slowdown": (_LOCALES[0], *_LOCALES[2:]),
    "describe quickstart": (*_LOCALES[:2], _LOCALES[3]),
}
"""Each command in locales and terminals in which another command is tried."""
VARIANTS: Final = (
    "test_hosts_compared.py::",
    "test_beside_others.py::",
    "test_background.py::test_no_route_change_moves_the_background[rail-optimized-pxn-loads2]",
    "test_background.py::test_no_route_change_moves_the_background[rail-optimized-spine-loads1]",
    "test_disturbance.py::test_two_hundred_disturbed_intervals",
    "test_docs_examples.py::test_examples_of_short_runs_write_a_report",
    *(
        f"test_environments.py::test_a_lack_is_named_by_a_run[{lack}]"
        for lack in ("32 files", "300 MB", "12 processes", "tun is null")
    ),
    "test_environments.py::test_records_are_kept_elsewhere_when_the_disk_fails[",
    *(
        f"test_environments.py::test_a_stdout_that_fails_is_one_line[{case}]"
        for case in ("describe quickstart-/dev/full", "--help-&-", "list-&-")
    ),
    "test_environments.py::test_a_user_without_a_home_folder_can_predict[['HOME=/nowhere']]",
    *(
        f"test_environments.py::test_text_is_shown_in_any_locale_and_terminal[{command}-{variables}]"
        for command, others in OTHER_LOCALES.items()
        for variables in others
    ),
    "test_environments.py::test_a_run_with_an_unusable_tmp_and_a_full_stdout_is_kept[",
    "test_environments.py::test_a_crash_has_a_report_and_keeps_records[code0-in the sandbox]",
    "test_sandbox.py::test_a_signal_reaches_the_inner_which_puts_things_away[user-1-129]",
    "test_sandbox.py::test_a_signal_reaches_the_inner_which_puts_things_away[user-15-143]",
    "test_api.py::test_killed_script_leaves_nothing[9-",
    "test_api.py::test_killed_script_leaves_nothing[2-2]",
    "test_api.py::test_killed_script_leaves_nothing[15-",
    "test_api.py::test_figures_of_a_script_equal_the_command_lines",
    "test_cli.py::test_fabric_of_a_shell_is_seen_from_another_terminal[root]",
    "test_cli.py::test_kill_9_at_any_moment_leaves_nothing_of_a_fabric[user]",
    "test_controller_remote.py::test_stock_mininet_with_the_app_on_os_ken[rail-only,2,2,optical=rail+hb]",
    "test_controller_remote.py::test_stock_mininet_with_the_app_on_os_ken[rail-optimized,2,2]",
    "test_controller_remote.py::test_stock_mininet_with_the_app_on_os_ken[single-switch,2,2,policy=rd]",
    "test_front_process.py::test_ctrl_c_at_twenty_moments_is_one_line",
    "test_experiment_small.py::test_kill_9_of_a_run_at_random_moments_leaves_nothing",
    "test_fabric_reach.py::test_all_reach_all_by_the_policys_path[2-2-",
    "test_failure_recovery.py::test_rerouting_recovers_each_fault_before_its_repair[rail-optimized-3]",
    "test_failure_recovery.py::test_without_rerouting_traffic_waits_for_repair_losslessly[rail-opt",
    "test_faults.py::test_a_gray_link_loses_its_share_at_random_both_ways[0.5]",
    *(f"test_labs.py::test_a_labs_commands_run_and_are_checked[{lab:02}-" for lab in (1, *range(3, 12))),
    *(f"test_notebooks.py::test_cells_run_without_errors[{lab:02}-" for lab in range(1, 12)),
    "test_api_examples.py::test_example_prints_its_expected_output[",
    "test_api_examples.py::test_user_tests_pass_or_are_inconclusive",
    "test_docs_examples.py::test_doctor_measures_the_switches[doctor]",
    "test_api_pytest.py::test_workers_take_the_same_auto_rate",
    "test_api_script.py::test_script_has_types",
    "test_api_script.py::test_script_runs",
    "test_presence.py::test_interval_of_a_dead_process_is_invalid_by_name[the traffic process]",
    "test_interruptions.py::test_each_process_in_each_phase_is_named[",
    "test_killed_run.py::test_a_whole_run_gives_its_outputs_for_ci",
    "test_killed_run.py::test_a_run_killed_at_ten_random_moments_is_reported",
    "test_heartbeats.py::test_full_tcp_load_on_all_rails_causes_no_false_alarm[100Mbit]",
    "test_replay_collectives.py::test_only_experts_send_between_rails[rail-optimized]",
    "test_replay_collectives.py::test_every_collective_arrives_as_its_matrix_says[2-",
    "test_replay_collectives.py::test_every_collective_arrives_as_its_matrix_says[3-rail-optimized]",
    "test_replay_collectives.py::test_every_collective_arrives_as_its_matrix_says[3-single-switch]",
    "test_replay_collectives.py::test_uneven_experts_and_transfers_go_directly_between_rails[rail-only]",
    "test_steering.py::test_packets_go_as_chosen_where_spines_join_rails[pxn]",
    "test_steering.py::test_packets_go_as_chosen_with_etcd_too",
    "test_compare_pairs.py::",
    "test_hosts.py::test_a_machine_that_dies_ends_the_run_and_leaves_nothing[agent]",
    "test_hosts.py::test_workers_of_a_dask_cluster_start_the_agents",
    "test_hosts.py::test_process_missing_elsewhere_is_named_within_5_s",
    "test_hosts.py::test_a_machine_that_dies_ends_the_run_and_leaves_nothing[part]",
    *(
        f"test_sweep.py::test_machines_that_do_not_answer_give_one_line[{where}]"
        for where in ("tcp://nowhere.invalid:8786", "tls://127.0.0.1:9", "ssh:,")
    ),
    "test_sweep.py::test_a_sweep_of_this_machine_has_every_run_once",
    "test_sweep.py::test_workers_on_one_machine_do_the_same_runs_one_at_a_time",
    "test_sweep.py::test_runs_on_three_workers_equal_a_plain_loop",
    "test_sweep_cluster.py::test_every_run_is_there_once_whatever_is_killed[",
    "test_sweep_cluster.py::test_a_sweep_with_a_silent_scheduler_ends_in_one_line",
    "test_sweep_cluster.py::test_processes_of_ssh_end_after_a_killed_sweep",
    "test_sweep_cluster.py::test_three_machines_do_twelve_runs_faster_than_one",
    "test_steering.py::test_traffic_flows_without_registry_and_scores_return[embedded]",
    *(
        f"test_training.py::test_training_ends_with_the_weights_of_one_without_faults[{p}]"
        for p in ("gloo", "torchft-ddp")
    ),
    "test_training.py::test_defect_of_torchft_shows_without_a_fabric",
    *(f"test_training.py::test_users_test_passes[{example}-" for example in ("ddp", "gloo", "mpi")),
    "test_trace.py::test_every_pair_goes_as_chosen_before_and_after_a_cut[rail-only-rd]",
    "test_trace.py::test_every_pair_goes_as_chosen_before_and_after_a_cut[rail-optimized-rd]",
    "test_trace.py::test_every_pair_goes_as_chosen_before_and_after_a_cut[single-switch-",
    "test_trace.py::test_the_command_on_a_fabric_of_ones_own[as_root]",
    "test_wheel.py::test_quickstart_runs_from_the_wheel[",
    "test_plugin_recovery.py::test_graph_of_a_plugin_recovers",
    "test_wheel.py::test_users_test_passes_and_beside_burners_is_inconclusive[",
)
"""Beginnings of their names."""


def is_variant(nodeid: str) -> bool:
    """Return whether a test is one, by the name that pytest has for it."""
    file, _, test = nodeid.partition("::")
    return f"{file.rpartition('/')[2]}::{test}".startswith(VARIANTS)
