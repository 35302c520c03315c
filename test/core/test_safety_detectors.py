"""Detectors of behaviour (D7 to D17): what each says of a chunk, what the guard makes of it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from chunkpilot_core import robot as robots
from chunkpilot_core import spaces
from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.safety.consistency import Consistency
from chunkpilot_core.safety.disagreement import Disagreement
from chunkpilot_core.safety.freeze import Freeze
from chunkpilot_core.safety.odd_chunk import OddChunk
from chunkpilot_core.safety.odd_observation import OddObservation
from chunkpilot_core.safety.oscillation import Oscillation
from chunkpilot_core.safety.perturbation import Perturbation
from chunkpilot_core.safety.progress import Progress
from chunkpilot_core.safety.runtime import calibration as calibrations
from chunkpilot_core.safety.runtime.calibration import GuardCalibration
from chunkpilot_core.safety.runtime.detector import Part
from chunkpilot_core.safety.runtime.guard import Guard
from chunkpilot_core.safety.runtime.hysteresis import Hysteresis
from chunkpilot_core.safety.runtime.moments import Moment, Record
from chunkpilot_core.safety.stac import discrepancy, Stac
from chunkpilot_core.types import (
    ActionChunk,
    ActionGroup,
    ActionSpace,
    ArmState,
    F32,
    Id,
    Kind,
    nanoseconds,
    Reaction,
)
import numpy as np
import pytest

ROBOT = robots.load('panda')
SPACE = spaces.ee_delta_space()
DT_S = 0.04
ROWS = 16
RANDOM = np.random.default_rng(5)


def rows(x: float = 0.1, grip: float = 1.0, noise: float = 0.0) -> F32:
    """Return rows that move along x."""
    made = np.tile([x, 0.02, -0.02, grip], (ROWS, 1))
    made[:, :3] += RANDOM.normal(0.0, noise + 1e-9, (ROWS, 3))
    return made.astype(np.float32)


def chunk(actions: F32, start_s: float = 1.0, seq: int = 1, **changes: Any) -> ActionChunk:
    start_ns = nanoseconds(start_s)
    values = {
        'id': Id(9, seq),
        'request_id': Id(7, seq),
        'arm_epoch': 1,
        'task_id': '',
        'observation_id': Id(3, seq),
        'observation_stamp_ns': start_ns,
        'start_ns': start_ns,
        'dt_s': DT_S,
        'actions': np.asarray(actions, np.float32),
        'space_hash': SPACE.hash,
        'policy': 'test',
        'policy_version': 0,
        'stamp_ns': start_ns,
    }
    return ActionChunk(**{**values, **changes})


def moment(
    actions: F32,
    before: ActionChunk | None = None,
    elapsed_s: float = 1.0,
    state: Any = (),
    **changes: Any,
) -> Moment:
    made = chunk(actions, elapsed_s, **changes)
    return Moment(made, before, SPACE, np.asarray(state, np.float32), elapsed_s)


def record(count: int = 8, noise: float = 0.01) -> Record:
    """Return a normal episode: along x, which the state says, then the gripper closes."""
    made: list[Moment] = []
    for i in range(count):
        x = 0.1 + 0.02 * i
        before = made[-1].chunk if made else None
        grip = 1.0 if i < count // 2 else -1.0
        state = [x + RANDOM.normal(0.0, 0.005), 1.0]
        made.append(moment(rows(x, grip, noise), before, 0.32 * i, state))
    return Record(tuple(made), 0.32 * count)


# ---- scores ------------------------------------------------------------------------------------


def test_overlapping_rows_that_are_the_same_score_0() -> None:
    path = RANDOM.normal(0.0, 0.3, (ROWS + 8, 4)).astype(np.float32)
    old = chunk(path[:ROWS], 1.0)
    same = Moment(chunk(path[8:], 1.0 + 8 * DT_S), old, SPACE, np.zeros(0, np.float32), 1.3)
    assert Consistency().score(same) == pytest.approx(0.0, abs=1e-7)
    turned = path[8:].copy()
    turned[:, :3] *= -1.0
    other = Moment(chunk(turned, 1.0 + 8 * DT_S), old, SPACE, np.zeros(0, np.float32), 1.3)
    assert Consistency().score(other) > 0.1


def test_chunks_that_do_not_overlap_have_no_score() -> None:
    late = Moment(chunk(rows(), 9.0), chunk(rows(), 1.0), SPACE, np.zeros(0, np.float32), 9.0)
    assert np.isnan(Consistency().score(late))
    assert np.isnan(Consistency().score(moment(rows())))


def test_stac_adds_up_what_changes_between_distributions() -> None:
    path = RANDOM.normal(0.0, 0.2, (8, ROWS + 8, 4)).astype(np.float32)
    old = chunk(path[0, :ROWS], 1.0, samples=path[:, :ROWS])
    same = chunk(path[0, 8:], 1.32, samples=path[:, 8:])
    odd = replace(same, samples=path[:, 8:] + np.float32(1.0))
    stac = Stac()
    calm = stac.score(Moment(same, old, SPACE, np.zeros(0, np.float32), 1.3))
    stac.reset()
    first = stac.score(Moment(odd, old, SPACE, np.zeros(0, np.float32), 1.3))
    again = stac.score(Moment(odd, old, SPACE, np.zeros(0, np.float32), 1.3))
    assert calm < 1e-6
    assert first > 0.5
    assert again == pytest.approx(2.0 * first)
    assert np.isnan(stac.score(moment(rows(), old)))


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_as_odd_as_can_be_and_forgotten(value: float) -> None:
    path = RANDOM.normal(0.0, 0.2, (8, ROWS + 8, 4)).astype(np.float32)
    old = chunk(path[0, :ROWS], 1.0, samples=path[:, :ROWS])
    same = chunk(path[0, 8:], 1.32, samples=path[:, 8:])
    broken = path[:, 8:].copy()
    broken[3, 2, 0] = value
    odd = Moment(replace(same, samples=broken), old, SPACE, np.zeros(0, np.float32), 1.3)
    stac = Stac()
    assert stac.score(odd) == np.inf
    assert stac.score(Moment(same, old, SPACE, np.zeros(0, np.float32), 1.3)) < 1e-6
    assert Disagreement().score(odd) == np.inf


def test_the_discrepancy_is_that_of_its_definition() -> None:
    one, other = RANDOM.normal(0.0, 1.0, (5, 3)), RANDOM.normal(0.5, 1.0, (4, 3))
    both = np.concatenate((one, other))
    width = np.median([np.sum((a - b) ** 2) for a in both for b in both])

    def mean(first: Any, second: Any) -> float:
        return float(
            np.mean([np.exp(-np.sum((a - b) ** 2) / width) for a in first for b in second])
        )

    wanted = mean(one, one) + mean(other, other) - 2.0 * mean(one, other)
    assert discrepancy(one, other) == pytest.approx(wanted)


def test_samples_that_disagree_score_their_spread() -> None:
    samples = np.zeros((4, ROWS, 4), np.float32)
    assert Disagreement().score(moment(rows(), samples=samples)) == 0.0
    samples[::2, :, 0] = 0.5
    assert Disagreement().score(moment(rows(), samples=samples)) > 0.1
    assert np.isnan(Disagreement().score(moment(rows())))


def fitted(detector: Any, count: int = 30) -> Any:
    detector.part = Part(statistics=detector.fit([record() for _ in range(count)]))
    return detector


def test_an_odd_observation_is_far_from_normal_ones() -> None:
    detector = fitted(OddObservation())
    assert detector.score(moment(rows(), state=[0.15, 1.0])) < 2.0
    assert detector.score(moment(rows(), state=[0.9, 1.0])) > 4.0
    assert detector.score(moment(rows(), state=[np.nan, 1.0])) == np.inf
    assert np.isnan(detector.score(moment(rows(), state=[0.1])))
    own = moment(rows(), state=[0.9, 1.0], diagnostics={'observation_novelty': 0.25})
    assert detector.score(own) == 0.25, 'the policy knows better'


def test_an_odd_chunk_is_one_that_does_not_go_with_what_is_seen() -> None:
    detector = fitted(OddChunk())
    normal = detector.score(moment(rows(0.2, -1.0), state=[0.2, 1.0]))
    elsewhere = detector.score(moment(rows(0.1, 1.0), state=[0.24, 1.0]))
    swapped = rows(0.2, -1.0)[:, [1, 0, 2, 3]]
    assert normal < 2.0
    assert elsewhere > 1.5 * normal
    assert detector.score(moment(swapped, state=[0.2, 1.0])) > 3.0 * normal
    assert detector.score(moment(rows(0.9), state=[0.2, 1.0])) == np.inf, 'out of range'
    nothing = np.zeros((ROWS, 4), np.float32)
    assert np.isnan(detector.score(moment(nothing, state=[0.2, 1.0]))), 'freeze says more of it'


def test_to_and_fro_is_a_share_of_turns_of_some_amplitude() -> None:
    detector = fitted(Oscillation())
    swing = rows()
    swing[:, 0] = 0.5 * (-1.0) ** np.arange(ROWS)
    assert detector.score(moment(swing)) == 1.0
    assert detector.score(moment(rows(noise=0.005))) == 0.0, 'noise turns too, but little'
    assert detector.score(moment(rows())) == 0.0


def test_the_way_of_a_chunk_counts_the_gripper() -> None:
    detector = fitted(Freeze())
    still = np.zeros((ROWS, 4), np.float32)
    assert detector.score(moment(still)) == 0.0
    closing = still.copy()
    closing[:, 3] = np.linspace(1.0, -1.0, ROWS)
    assert detector.score(moment(closing)) > 0.1
    assert detector.score(moment(rows())) > 0.3


def test_progress_counts_from_the_last_milestone() -> None:
    detector = fitted(Progress())
    longest = detector.part.statistics['longest_s']
    assert longest == pytest.approx(1.28, abs=0.33)
    assert detector.score(moment(rows(), elapsed_s=0.1)) < 0.2
    assert detector.score(moment(rows(), elapsed_s=2.0)) == pytest.approx(1.9 / longest)
    assert detector.score(moment(rows(grip=-1.0), elapsed_s=2.1)) == 0.0


def test_progress_is_complained_of_once_and_somebody_is_called_once() -> None:
    detector = fitted(Progress())
    found = [detector.judge(moment(rows(), elapsed_s=0.2 * i)) for i in range(40)]
    said = [entry for entry in found if entry is not None]
    assert [entry.reaction for entry in said] == [Reaction.REPLAN, Reaction.PASS]
    assert [entry.escalate for entry in said] == [False, True]


def test_the_perturbation_gap_is_the_policys_word() -> None:
    assert Perturbation().score(moment(rows(), diagnostics={'perturbation_gap': 0.7})) == 0.7
    assert np.isnan(Perturbation().score(moment(rows())))


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ('make', 'diagnostic'),
    [(OddObservation, 'observation_novelty'), (Perturbation, 'perturbation_gap')],
)
def test_a_diagnostic_that_is_no_number_is_as_odd_as_can_be(
    make: Any, diagnostic: str, value: float
) -> None:
    detector = make()
    detector.part = Part((5.0,))
    nonsense = moment(rows(), state=[0.15, 1.0], diagnostics={diagnostic: value})
    said = [detector.judge(nonsense) for _ in range(2)]
    assert said[0] is None
    assert said[1] is not None
    assert diagnostic in detector.status
    detector.judge(moment(rows(), state=[0.15, 1.0], diagnostics={diagnostic: 0.1}))
    assert diagnostic not in detector.status


def test_a_stage_that_is_no_number_is_no_milestone() -> None:
    detector = fitted(Progress())
    for i in range(20):
        nonsense = {'stage': np.nan if i else 1.0}
        detector.judge(moment(rows(), elapsed_s=0.2 * i + 0.2, diagnostics=nonsense))
    assert detector.newest > 2.0
    assert 'stage' in detector.status
    again = [moment(rows(), elapsed_s=0.2 * i, diagnostics={'stage': np.nan}) for i in range(9)]
    longest = Progress().fit([Record(tuple(again), 2.0)])['longest_s']
    assert longest == pytest.approx(2.0)


@pytest.mark.parametrize('make', [OddObservation, OddChunk])
@pytest.mark.parametrize('state', [(), (0.15,), (0.15, 1.0, 0.0)])
def test_an_observation_of_another_size_than_calibrated_is_complained_of(
    make: Any, state: Any
) -> None:
    detector = fitted(make())
    assert detector.judge(moment(rows(0.2, -1.0), state=state)) is None
    assert f'{len(state)} numbers, calibrated were 2' in detector.status


def test_hysteresis_takes_some_to_begin_and_some_to_end() -> None:
    alarm = Hysteresis(trigger=2, release=3)
    word = [alarm.update(bool(over)) for over in (1, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1)]
    assert word == [0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0]


# ---- the guard ---------------------------------------------------------------------------------


def calibration(**parts: Part) -> GuardCalibration:
    return GuardCalibration(
        robot=ROBOT.name,
        limits_hash=ROBOT.limits_hash,
        policy='mine',
        policy_version=0,
        policy_sha256='',
        space_hash=SPACE.hash,
        task='reach',
        horizon=ROWS,
        dt_s=DT_S,
        episodes=40,
        alpha=0.05,
        source='a test',
        data_sha256='',
        detectors=parts,
    )


@pytest.fixture
def calibrated(bench: Any, tmp_path: Path) -> Callable[..., Any]:
    """Return a function from parts of a calibration to an armed bench, within an episode."""

    def make(*, policy: str = 'mine', **parts: Part) -> Any:
        calibrations.save(calibration(**parts), tmp_path / 'guard.yaml')
        config = Guard.Config(calibration=str(tmp_path / 'guard.yaml')) if parts else None
        made = bench(config=config)
        made.guard.set_space(SPACE, DT_S, policy)
        made.armed()
        made.guard.set_episode(True, 'e', 't')
        return made

    return make


def feed(bench: Any, actions: F32, seq: int, **changes: Any) -> None:
    """Let a chunk come that starts now."""
    epoch = bench.guard.machine.epoch
    made = chunk(actions, bench.now_s, seq, arm_epoch=epoch, **changes)
    bench.guard.on_chunk(made, bench.now_ns())


def stay(bench: Any, seq: int) -> Any:
    """Return a command of a chunk, to stay."""
    return bench.joints(np.array(ROBOT.home), chunk_id=Id(9, seq), row=0)


def run_still(bench: Any, duration_s: float, actions: F32, **changes: Any) -> dict[str, float]:
    """Let equal chunks come at 4 Hz; returns when what was said first."""
    began_s, said = bench.now_s, {}
    for tick in range(round(duration_s / 0.01)):
        if tick % 25 == 0:
            feed(bench, actions, 1 + tick, **changes)
        answer = bench.tick(stay(bench, 1 + tick - tick % 25))
        for event in answer.events:
            if event.check == 'freeze':
                said.setdefault(event.kind, bench.now_s - began_s)
        if bench.state is not ArmState.ARMED:
            said.setdefault(bench.state.name, bench.now_s - began_s)
    return said


STILL = np.zeros((ROWS, 4), np.float32)
WAY = Part(statistics={'way': 3.0, 'pause_s': 0.0})


@pytest.mark.matrix(38)
def test_a_frozen_policy_is_asked_again_and_held_and_never_stopped(calibrated: Any) -> None:
    """Row 38."""
    bench = calibrated(freeze=WAY)
    said = run_still(bench, 12.0, STILL)
    assert said['replan'] == pytest.approx(3.0, abs=0.05)
    assert any(event.kind == 'replan' and event.escalate for event in bench.events)
    assert said['HOLD'] == pytest.approx(10.0, abs=0.05)
    assert 'STOPPED' not in said


@pytest.mark.matrix(39)
@pytest.mark.parametrize('how', ['episode over', 'policy says so'])
def test_a_policy_that_is_done_may_be_idle(calibrated: Any, how: str) -> None:
    """Row 39."""
    bench = calibrated(freeze=WAY)
    done = {}
    if how == 'episode over':
        bench.guard.set_episode(False)
    else:
        done = {'diagnostics': {'done': 1.0}}
    assert run_still(bench, 11.0, STILL, **done) == {}
    assert bench.state is ArmState.ARMED


def test_a_task_that_pauses_may_pause(calibrated: Any) -> None:
    bench = calibrated(freeze=Part(statistics={'way': 3.0, 'pause_s': 2.0}))
    assert run_still(bench, 5.5, STILL)['replan'] == pytest.approx(5.0, abs=0.05)


def test_a_gripper_that_moves_is_no_freeze(calibrated: Any) -> None:
    closing = STILL.copy()
    closing[:, 3] = np.linspace(1.0, -1.0, ROWS)
    assert run_still(calibrated(freeze=WAY), 4.0, closing) == {}


def test_without_a_calibration_it_is_told_and_that_is_all(calibrated: Any) -> None:
    bench = calibrated()
    said = run_still(bench, 11.0, STILL)
    assert set(said) == {'info'}
    assert bench.state is ArmState.ARMED


@pytest.mark.parametrize('known', [False, True])
@pytest.mark.parametrize('value', [np.nan, np.inf])
@pytest.mark.parametrize('diagnostic', ['observation_novelty', 'perturbation_gap', 'stage'])
def test_somebody_is_called_when_the_policy_says_what_is_no_number(
    calibrated: Any, known: bool, value: float, diagnostic: str
) -> None:
    parts = {'odd_observation': Part((5.0,)), 'progress': Part(statistics={'longest_s': 9.0})}
    bench = calibrated(**(parts if known else {}))
    feed(bench, rows(), 1, diagnostics={diagnostic: value})
    told = bench.tick(stay(bench, 1)).events
    assert [event.escalate for event in told if diagnostic in event.reason] == [True]
    assert bench.state is ArmState.ARMED


def test_somebody_is_called_when_what_is_odd_cannot_be_said(calibrated: Any) -> None:
    part = Part((5.0,), statistics=fitted(OddObservation()).part.statistics)
    bench = calibrated(odd_observation=part)
    feed(bench, rows(), 1)  # nothing was observed
    told = [event for event in bench.tick(stay(bench, 1)).events if event.escalate]
    assert [event.check for event in told] == ['odd_observation']
    assert 'calibrated were 2' in told[0].reason


def odd_part(threshold: float = 3.0) -> Part:
    detector = OddChunk()
    statistics = detector.fit(
        [
            Record(tuple(replace(m, state=np.zeros(0, np.float32)) for m in r.moments), 2.0)
            for r in (record() for _ in range(30))
        ]
    )
    return Part((threshold,), 0.0, 0.02, statistics)


@pytest.mark.matrix(40)
def test_an_odd_chunk_is_rejected_before_a_row_of_it_runs(calibrated: Any) -> None:
    """Row 40."""
    bench = calibrated(odd_chunk=odd_part())
    start = bench.measured.copy()
    feed(bench, rows(0.2, 1.0)[:, [1, 0, 2, 3]], 1)
    move = bench.joints(start[:7] + 0.2, chunk_id=Id(9, 1), row=0)
    tick = bench.tick(move)
    assert tick.verdict.reaction is Reaction.REJECT_CHUNK
    assert tick.verdict.check == 'odd_chunk'
    assert np.array_equal(bench.measured, start)
    assert any(event.kind == 'replan' for event in bench.events)
    feed(bench, rows(0.2, 1.0), 2)
    bench.tick(bench.joints(start[:7] + 0.01, chunk_id=Id(9, 2), row=0))
    assert not np.array_equal(bench.measured, start), 'the next one runs'


def test_a_calibration_for_another_policy_keeps_the_arm_disarmed(
    bench: Any, tmp_path: Path
) -> None:
    calibrations.save(calibration(freeze=WAY), tmp_path / 'guard.yaml')
    made = bench(config=Guard.Config(calibration=str(tmp_path / 'guard.yaml')))
    made.guard.set_space(SPACE, DT_S, 'another')
    made.ticks(2)
    done, message = made.guard.arm(made.now_ns())
    assert not done
    assert "for policy 'mine', in force is 'another'" in message
    made.guard.set_space(SPACE, DT_S, 'mine')
    assert made.guard.arm(made.now_ns())[0]


def test_a_calibration_for_other_limits_is_refused(tmp_path: Path) -> None:
    other = replace(calibration(freeze=WAY), limits_hash='0123')
    calibrations.save(other, tmp_path / 'guard.yaml')
    with pytest.raises(ConfigError, match="limits of the robot '0123', in force is"):
        Guard(ROBOT, Guard.Config(calibration=str(tmp_path / 'guard.yaml')))


def test_a_calibration_of_unknown_detectors_is_refused(tmp_path: Path) -> None:
    calibrations.save(calibration(freze=WAY), tmp_path / 'guard.yaml')
    with pytest.raises(UnknownNameError, match='freeze'):
        Guard(ROBOT, Guard.Config(calibration=str(tmp_path / 'guard.yaml')))


def test_it_says_what_it_looks_at_and_what_not(calibrated: Any) -> None:
    bench = calibrated(freeze=WAY)
    feed(bench, rows(), 1)
    bench.tick(stay(bench, 1))
    watched = bench.guard.watched()
    assert watched['calibration'] == 'mine, reach'
    assert watched['efforts'] == 'not checked: the robot file has no limit'
    assert watched['detector freeze'].endswith('quiet')
    assert watched['detector odd_chunk'] == 'no score, not calibrated'
    assert calibrated().guard.watched()['calibration'] == 'none: detectors only tell'


def test_contradiction_slows_and_agreement_ends_that(calibrated: Any) -> None:
    bench = calibrated(consistency=Part((0.01,), 0.0, 0.02, {}))
    for i in range(3):
        feed(bench, rows(0.2 * (-1.0) ** i), 1 + i)
        tick = bench.ticks(30, lambda: stay(bench, 1))
    assert tick.speed_scale == 0.5
    feed(bench, rows(-0.2), 9)  # while it is slow nothing follows from contradiction
    assert bench.ticks(60, lambda: stay(bench, 1)).speed_scale == 1.0
    feed(bench, rows(-0.2), 10)
    assert bench.ticks(60, lambda: stay(bench, 1)).speed_scale == 1.0


def test_a_threshold_by_time_is_that_of_the_time() -> None:
    part = Part((1.0, 2.0, 4.0), 0.5, 0.02, {})
    assert [part.at(t) for t in (-1.0, 0.0, 0.6, 1.2, 99.0)] == [1.0, 1.0, 2.0, 4.0, 4.0]


def test_oscillation_slows_first_and_is_rejected_when_it_goes_on(calibrated: Any) -> None:
    bench = calibrated(oscillation=Part(statistics={'amplitude': [0.01] * 3}))
    swing = rows()
    swing[:, 0] = 0.5 * (-1.0) ** np.arange(ROWS)
    reactions = []
    for i in range(4):
        feed(bench, swing, 1 + i)
        reactions.append(bench.tick(stay(bench, 1 + i)).verdict.reaction)
        bench.ticks(15, lambda: stay(bench, 1 + i))  # noqa: B023 - asked at once
    assert reactions[0] is Reaction.PASS
    assert reactions[1] is Reaction.SLOW
    assert reactions[2:] == [Reaction.REJECT_CHUNK] * 2


# ---- the seam (row 15) -------------------------------------------------------------------------


def joint_space() -> ActionSpace:
    """Return a space of absolute joint positions."""
    arm = ActionGroup(
        'arm',
        0,
        7,
        Kind.JOINT_POSITION,
        names=ROBOT.arm_joints,
        unit='rad',
        scale=(1.0,) * 7,
        offset=(0.0,) * 7,
    )
    return spaces.make(
        ActionSpace(
            (arm,), (-3.0,) * 7, (3.8,) * 7, (2.0,) * 7, (10.0,) * 7, (5e3,) * 7, (False,) * 7
        )
    )


@pytest.mark.matrix(15)
@pytest.mark.parametrize(
    ('jump', 'reaction'),
    [(0.005, None), (0.05, Reaction.CLAMP), (0.5, Reaction.REJECT_CHUNK)],
)
def test_a_seam_is_blended_or_rejected(bench: Any, jump: float, reaction: Any) -> None:
    space = joint_space()
    made = bench()
    made.guard.set_space(space, 0.01)
    made.armed()
    actions = np.tile(np.array(ROBOT.home, np.float32), (ROWS, 1))
    actions[:, 2] += jump
    feed(made, actions, 1, space_hash=space.hash, dt_s=0.01)
    tick = made.tick(made.home(chunk_id=Id(9, 1), row=0))
    seams = [event for event in made.events if event.check == 'seam']
    if reaction is None:
        assert not seams
        return
    assert tick.verdict.reaction is reaction
    assert seams[0].joint == 'panda_joint3'
    assert seams[0].value == pytest.approx(jump, abs=1e-6)


def test_rows_of_relative_spaces_have_no_seam(calibrated: Any) -> None:
    bench = calibrated()
    feed(bench, rows(1.0), 1)
    bench.tick(stay(bench, 1))
    assert not [event for event in bench.events if event.check == 'seam']


def test_each_episode_has_its_own_clock(calibrated: Any) -> None:
    bench = calibrated(progress=Part(statistics={'longest_s': 0.5}))
    for i in range(12):
        if i % 4 == 0:
            bench.guard.set_episode(True, f'e{i}', 't')
        feed(bench, rows(), 1 + i)
        bench.ticks(15, lambda: stay(bench, 1 + i))  # noqa: B023 - asked at once
    assert not [event for event in bench.events if event.check == 'progress']
    for i in range(12, 20):
        feed(bench, rows(), 1 + i)
        bench.ticks(15, lambda: stay(bench, 1 + i))  # noqa: B023 - asked at once
    late = [event for event in bench.events if event.check == 'progress']
    assert [event.kind for event in late] == ['replan', 'info'], 'once each'
