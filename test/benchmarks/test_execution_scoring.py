"""What the execution benchmark scores, against values computed by hand."""

from benchmarks.execution import record, reference, report, scoring
from benchmarks.execution.reference import AMPLITUDE, Case, DT_S, FakePolicy
import numpy as np
import pytest

GRID = DT_S * np.arange(90)
CASE = Case('chunkpilot', 'fixed', 50, 0.3)


def trace(values: np.ndarray, starved: tuple[int, ...] = ()) -> scoring.Trace:
    at = GRID[: len(values)]
    return scoring.Trace(at, at, values, np.isin(np.arange(len(values)), starved), 3, 5.0)


def column(values: np.ndarray) -> np.ndarray:
    """Return six joints of which only the first moves."""
    return np.pad(np.asarray(values, float)[:, None], ((0, 0), (0, 5)))


def test_a_hold_of_perfect_commands_costs_half_a_period_and_no_more() -> None:
    fine = np.arange(0.0, 10.0, DT_S)
    speed = np.diff(reference.positions(fine), axis=0) / DT_S
    expected = (
        float(np.sqrt(np.mean(speed**2) / 3.0)) * DT_S / AMPLITUDE
    )  # of a ramp that is held for DT_S
    found = scoring.rms_error(fine, reference.positions(fine))
    assert found == pytest.approx(expected, rel=0.1)
    assert found < 0.02


def test_a_constant_offset_is_the_error() -> None:
    dense = np.arange(0.0, 5.0, DT_S / 100)
    assert scoring.rms_error(
        dense, reference.positions(dense) + 0.25 * AMPLITUDE
    ) == pytest.approx(0.25, abs=1e-3)


def test_largest_step_is_one_joint_of_one_tick() -> None:
    values = np.zeros((4, 6))
    values[2, 3], values[2, 5] = -0.3 * AMPLITUDE, 0.2 * AMPLITUDE
    values[3] = values[2]
    assert scoring.largest_step(values) == pytest.approx(0.3)
    assert scoring.largest_step(values[:1]) is None


def test_jerk_of_a_cubic_is_six_times_its_coefficient_whatever_the_ticks() -> None:
    times = np.array([0.0, 0.03, 0.07, 0.1, 0.13, 0.17, 0.2])
    jerk = scoring.rms_jerk(times, column(2.0 * AMPLITUDE * times**3))
    assert jerk == pytest.approx(12.0 / np.sqrt(6.0))
    assert scoring.rms_jerk(times[:3], column(times[:3])) is None


def test_starved_ticks_count_from_the_first_command() -> None:
    found = scoring.scores(trace(np.zeros((90, 6)), starved=(10, 11, 12)), [0.0, 0.5])
    assert found['starved_pct'] == pytest.approx(100.0 * 3 / 90)
    assert (found['first_action_s'], found['policy_calls'], found['cpu_pct']) == (0.0, 3, 5.0)
    assert scoring.starved_after(trace(np.zeros((90, 6)), (10,)), 20 * DT_S) == 0.0
    assert scoring.starved_after(trace(np.zeros((90, 6)), (10,)), 1e9) is None


def test_accuracy_counts_from_half_a_second_after_the_second_chunk() -> None:
    values = np.zeros((90, 6))
    values[:20] = AMPLITUDE  # a jump down at 0.67 s
    answers_s = [0.0, 0.1]
    assert scoring.scores(trace(values), answers_s)['largest_step'] == pytest.approx(1.0)
    assert scoring.scores(trace(values), [0.0, 0.3])['largest_step'] == 0.0


def test_who_never_commands_has_starved_and_nothing_else() -> None:
    recorder = record.Recorder()
    recorder.tick(0.3, None)
    found = scoring.scores(recorder.trace(seconds=20.0, calls=7, cpu_pct=1.0), [])
    assert found['starved_pct'] == 100.0
    assert found['policy_calls'] == 7
    assert found['rms_error'] is found['largest_step'] is found['first_action_s'] is None


def test_the_recorder_holds_what_was_sent_last_and_ignores_the_time_before() -> None:
    recorder = record.Recorder()
    recorder.tick(0.0, None)
    np.testing.assert_allclose(recorder.pose(0.4), reference.positions(0.4))
    recorder.tick(0.1, np.full(6, 0.5))
    recorder.tick(0.2, None)
    recorder.tick(5.0, np.full(6, 0.7))
    found = recorder.trace(seconds=2.0, calls=1, cpu_pct=0.0)
    assert found.sent_s.tolist() == [0.1, 0.2]
    assert found.values[:, 0].tolist() == [0.5, 0.5]
    assert found.starved.tolist() == [False, True]
    np.testing.assert_allclose(found.meant_s, [0.0, DT_S])


def test_the_conventions_of_rows_differ_by_one_interval() -> None:
    at_end = FakePolicy(CASE, reference.END).rows(1.0, 0)
    at_start = FakePolicy(CASE, reference.START).rows(1.0, 0)
    assert at_end.shape == (50, 6)
    np.testing.assert_allclose(at_start[0], reference.positions(1.0))
    np.testing.assert_allclose(at_end[:-1], at_start[1:])


def test_latencies_and_offsets_depend_on_seed_and_call_alone() -> None:
    case = Case('any', 'any', 16, 0.3, jitter_s=0.1, noise=0.1, cold_start_s=1.0)
    same = Case('another', 'one', 50, 0.3, jitter_s=0.1, noise=0.1)
    one, two = FakePolicy(case, reference.END), FakePolicy(same, reference.START)
    assert one.latency_s(0) == pytest.approx(two.latency_s(0) + 1.0)
    assert [one.latency_s(k) for k in range(1, 9)] == [two.latency_s(k) for k in range(1, 9)]
    np.testing.assert_array_equal(one.offset(5), two.offset(5))
    many = np.array([one.latency_s(k) for k in range(1, 2000)])
    assert many.mean() == pytest.approx(0.3, abs=0.01)
    assert many.std() == pytest.approx(0.1, abs=0.01)
    assert many.min() >= 0.03
    spread = np.array([one.offset(k) for k in range(500)]).std() / AMPLITUDE
    assert spread == pytest.approx(0.1, abs=0.005)


def test_the_law_of_one_request_in_flight() -> None:
    assert report.law_pct(50, 1.0) == pytest.approx(100.0 / 3.0)
    assert report.law_pct(50, 0.6) == 0.0
    assert report.law_pct(10, 1.0) == 100.0


ROW = {
    'system': 'chunkpilot', 'strategy': 'fixed', 'in_flight': 1, 'cold_start_s': 0.0, 'H': 50,
    'latency_s': 0.3, 'jitter_s': 0.0, 'noise': 0.0, 'starved_pct': 0.0, 'rms_error': 0.02,
    'largest_step': 0.1, 'rms_jerk': 11.0, 'policy_calls': 18, 'first_action_s': 0.33,
    'cpu_pct': 4.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ('changes', 'words'),
    [
        ({}, []),
        ({'starved_pct': 0.2}, ['starved % 0.2, at most 0']),
        ({'starved_pct': 0.2, 'jitter_s': 0.1}, []),
        ({'rms_error': 0.06, 'largest_step': 0.13}, ['rms error 0.06, at most 0.05',
                                                     'largest step 0.13, at most 0.12']),
        ({'rms_error': 0.1, 'largest_step': 0.19, 'noise': 0.1}, []),
        ({'largest_step': 0.21, 'noise': 0.1}, ['largest step 0.21, at most 0.2']),
        ({'latency_s': 1.0, 'starved_pct': 33.0, 'rms_error': 0.5}, []),
        ({'latency_s': 1.0, 'starved_pct': 34.0}, ['starved % 34, at most 33.3']),
        ({'strategy': 'upcycling', 'latency_s': 0.6, 'starved_pct': 9.0}, []),  # 25 rows: 61 %
        ({'rms_error': None}, ['rms error nothing, at most 0.05']),
    ],
)  # fmt: skip
def test_targets(changes, words) -> None:
    assert report.missed({**ROW, **changes}) == words


def test_a_cold_start_may_starve_but_is_forgotten_within_five_chunks() -> None:
    cold = {**ROW, 'cold_start_s': 1.0, 'starved_pct': 8.0}
    assert report.missed(cold, 0.0) == []
    assert report.missed(cold, 2.0) == ['starved % 2, at most 0']


def test_the_summary_has_the_promised_keys(tmp_path) -> None:
    detail = {'case': 'one', 'starved_after_5_chunks_pct': 0.0}
    results = [{'row': ROW, 'details': detail}, {'row': {**ROW, 'rms_error': None},
                                                 'details': detail}]  # fmt: skip
    text = report.write(tmp_path, results, full=False)
    assert '| chunkpilot | fixed | 1 | 0 | 50 | 0.3 |' in text
    assert 'met in 1 of 2 cases' in text
    import json

    rows = json.loads((tmp_path / 'summary.json').read_text())['rows']
    assert tuple(rows[0]) == report.KEYS
    assert (tmp_path / 'summary.png').stat().st_size > 1000
