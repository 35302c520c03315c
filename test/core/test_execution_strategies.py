"""Fixed horizons and Action Upcycling: hand-computed decisions, pool, gates, calibration file."""

from dataclasses import replace
import json

from chunkpilot_core import registry, spaces
from chunkpilot_core.config import build
from chunkpilot_core.errors import CapabilityError, ConfigError
from chunkpilot_core.execution.base import ExecutionState, Strategy
from chunkpilot_core.execution.fixed import Fixed
from chunkpilot_core.execution.runtime import calibration
from chunkpilot_core.execution.upcycling import Upcycling
from chunkpilot_core.types import ActionChunk, ActionGroup, ActionSpace, Id, Kind, PolicySpec
import numpy as np
import pytest

SPACE = spaces.ee_delta_space()
SPEC = PolicySpec('fake', 'fake_pick', 1, SPACE, 8, 0.04)
UNIT = 0.8  # row units that are the velocity limit: 0.8 * 0.05 m / 0.04 s = 1 m/s
STATE = ExecutionState(0, np.zeros(4, np.float32), 0, 0.05, 0.0)


def chunk(velocities, gripper=None, spec: PolicySpec = SPEC, seq: int = 1) -> ActionChunk:
    """Return a chunk that moves along x with these fractions of the velocity limit."""
    rows = np.zeros((len(velocities), spec.space.size), np.float32)
    rows[:, 0] = np.multiply(velocities, UNIT)
    rows[:, -1] = 1.0 if gripper is None else gripper
    return ActionChunk(
        Id(2, seq), Id(1, 1), 1, 't', Id(), 0, 0, 0.04, rows, spec.space.hash, 'fake', 1
    )


def upcycling(spec: PolicySpec = SPEC, **options) -> Upcycling:
    strategy = Upcycling(build(Upcycling.Config, options))
    strategy.configure(spec)
    return strategy


# c_3..c_8 = .1 .2 .3 .4 .5 .6 for h = 2
RAMP = [0.2, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]


def test_fixed_runs_h_rows() -> None:
    strategy = Fixed(Fixed.Config(5))
    strategy.configure(SPEC)
    decision = strategy.horizon(chunk(RAMP), STATE)
    assert (decision.chosen, decision.base, decision.reason) == (5, 5, 'fixed')


@pytest.mark.parametrize('name', registry.names('execution'))
def test_a_base_horizon_longer_than_the_chunks_is_refused(name: str) -> None:
    plugin = registry.get('execution', name)
    strategy = plugin(build(plugin.Config, {'horizon': 9}))
    with pytest.raises(ConfigError, match=r'base horizon 9 is longer than .* 8 rows'):
        strategy.configure(replace(SPEC, capabilities=plugin.needs))


class Sampler(Strategy):
    """Needs what the policy does not have."""

    needs = ('samples', 'guidance')

    def horizon(self, chunk, state):
        raise NotImplementedError


def test_a_missing_capability_is_refused_by_name() -> None:
    with pytest.raises(CapabilityError, match=r"needs guidance from .*'fake_pick' offers samples"):
        Sampler('sampler', 4).configure(replace(SPEC, capabilities=('samples',)))
    Sampler('sampler', 4).configure(replace(SPEC, capabilities=('samples', 'guidance')))


def test_the_pool_sets_the_threshold_online() -> None:
    strategy = upcycling(horizon=2, ratio=2.0, min_pool=2, pool=5)
    first = strategy.horizon(chunk(RAMP), STATE)
    second = strategy.horizon(chunk(RAMP), STATE)
    assert [first.chosen, second.chosen] == [2, 2]
    assert {first.reason, second.reason} == {'calibrating'}
    # pool: .1 .1 .2 .2 .3 .3 .4 .4 .5 .5 .6 .6; N = 2: ceil(1 * 2 * 2) = 4th smallest = .2
    third = strategy.horizon(chunk(RAMP), STATE)
    assert third.chosen == 4
    assert third.reason == 'fluctuation'
    assert third.threshold == pytest.approx(0.2)
    assert third.fluctuation == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])


def test_the_pool_forgets_the_oldest() -> None:
    strategy = upcycling(horizon=2, ratio=2.0, min_pool=1, pool=5)
    for _ in range(5):
        strategy.horizon(chunk(RAMP), STATE)
    calm = [0.2, 0.2, 0.2, 0.21, 0.21, 0.21, 0.21, 0.21]
    for _ in range(5):
        strategy.horizon(chunk(calm), STATE)
    # only calm chunks are left: signals 0 and .01; the 10th smallest of 30 is .01
    assert strategy.horizon(chunk(RAMP), STATE).threshold == pytest.approx(0.01, abs=1e-6)


def filled(**options) -> Upcycling:
    """Return a strategy whose pool holds nothing but ramps."""
    strategy = upcycling(**{'horizon': 2, 'min_pool': 1, 'pool': 5, **options})
    for _ in range(5):
        strategy.horizon(chunk(RAMP), STATE)
    return strategy


@pytest.mark.parametrize(('ratio', 'rows'), [(0.5, 2), (1.0, 2), (1.5, 3), (3.0, 6), (4.0, 8)])
def test_the_ratio_is_the_mean_horizon_over_h(ratio: float, rows: int) -> None:
    assert filled(ratio=ratio).horizon(chunk(RAMP), STATE).chosen == rows


def test_a_ratio_beyond_the_chunks_runs_them_whole() -> None:
    decision = filled(ratio=100.0).horizon(chunk(RAMP), STATE)
    assert (decision.chosen, decision.threshold) == (8, np.inf)
    assert decision.reason == 'end of chunk'


def test_a_uniform_tail_runs_to_its_end_at_any_ratio_above_one() -> None:
    assert filled(ratio=1.1).horizon(chunk([0.3] * 8), STATE).chosen == 8


def test_at_ratio_one_even_a_uniform_tail_is_not_extended() -> None:
    assert filled(ratio=1.0).horizon(chunk([0.3] * 8), STATE).chosen == 2


def test_base_horizon_of_the_whole_chunk() -> None:
    strategy = upcycling(horizon=8, ratio=2.0, min_pool=1)
    assert [strategy.horizon(chunk(RAMP), STATE).chosen for _ in range(3)] == [8, 8, 8]


def test_chunks_of_one_row() -> None:
    spec = replace(SPEC, horizon=1)
    strategy = upcycling(spec, horizon=1, ratio=2.0, min_pool=1)
    assert [strategy.horizon(chunk([0.5]), STATE).chosen for _ in range(3)] == [1, 1, 1]


def test_a_chunk_without_motion_runs_h_only_and_stays_out_of_the_pool() -> None:
    strategy = filled(ratio=3.0)
    decision = strategy.horizon(chunk([0.0] * 8), STATE)
    assert (decision.chosen, decision.reason) == (2, 'no motion')
    assert strategy.horizon(chunk(RAMP), STATE).threshold == pytest.approx(0.4)


def test_the_gripper_is_no_motion_but_its_change_ends_the_extension() -> None:
    closing = [1, 1, 1, 1, 1, -1, -1, -1]  # row 6 of 8 is the first that closes
    gated = filled(ratio=4.0).horizon(chunk(RAMP, closing), STATE)
    assert (gated.chosen, gated.reason) == (5, 'gripper')
    assert gated.fluctuation == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    free = filled(ratio=4.0, gripper_gate=False).horizon(chunk(RAMP, closing), STATE)
    assert free.chosen == 8


def test_a_gripper_change_within_the_base_horizon_or_beyond_the_smooth_rows_gates_nothing() -> (
    None
):
    early = [1, -1, -1, -1, -1, -1, -1, -1]
    assert filled(ratio=4.0).horizon(chunk(RAMP, early), STATE).chosen == 8
    late = [1, 1, 1, 1, 1, 1, 1, -1]
    decision = filled(ratio=2.0).horizon(chunk(RAMP, late), STATE)
    assert (decision.chosen, decision.reason) == (4, 'fluctuation')


def test_gripper_noise_is_no_change_but_slow_closing_is() -> None:
    noise = [1, 0.9, 1, 0.8, 1, 0.9, 1, 0.8]
    assert filled(ratio=4.0).horizon(chunk(RAMP, noise), STATE).chosen == 8
    slow = [1, 0.9, 0.7, 0.5, 0.3, 0.1, -0.1, -0.3]  # from row 2: more than 0.4 away at row 5
    assert filled(ratio=4.0).horizon(chunk(RAMP, slow), STATE).chosen == 4


def absolute_spec() -> PolicySpec:
    group = ActionGroup(
        'arm', 0, 1, Kind.JOINT_POSITION, names=('j',), unit='rad', scale=(1.0,), offset=(0.0,)
    )
    one = (1.0,)
    space = spaces.make(ActionSpace((group,), (-9.0,), (9.0,), one, one, one, (False,)))
    return PolicySpec('fake', 'fake', 1, space, 4, 1.0)


def test_absolute_rows_start_from_the_last_executed_command() -> None:
    """With h = 1 the first change is from the last executed velocity, not from a padded zero."""
    spec = absolute_spec()
    strategy = upcycling(spec, horizon=1, ratio=1.5, min_pool=1)
    rows = np.array([[5.1], [5.2], [5.3], [5.5]], np.float32)
    given = replace(chunk([0.0]), actions=rows, space_hash=spec.space.hash)
    from_5 = replace(STATE, last_row=np.array([5.0], np.float32))
    decision = strategy.horizon(given, from_5)
    assert decision.fluctuation == pytest.approx([0.0, 0.0, 0.1], abs=1e-6)


def joints_spec() -> PolicySpec:
    """Return two joints and a gripper in radians; a difference of 1 is the velocity limit."""
    names, two, three = ('j1', 'j2'), (1.0, 1.0), (1.0,) * 3
    arm = ActionGroup(
        'arm', 0, 2, Kind.JOINT_POSITION, names=names, unit='rad', scale=two, offset=(0.0, 0.0)
    )
    gripper = ActionGroup('gripper', 2, 3, Kind.GRIPPER, scale=(1.0,), offset=(0.0,))
    space = spaces.make(
        ActionSpace((arm, gripper), (-9.0,) * 3, (9.0,) * 3, three, three, three, (False,) * 3)
    )
    return PolicySpec('fake', 'fake', 1, space, 5, 1.0)


def test_the_papers_algorithm_on_absolute_joints_by_hand() -> None:
    """
    From (1, 1): v = (.1, 0) (.1, 0) (.1, 0) (.4, .4) (.4, .4), so |dv| = 0 0 .5 0 and, with h = 2,
    c = 0 .5 .5. The gripper jumps each row and counts for nothing.
    """
    spec = joints_spec()
    rows = np.array(
        [[1.1, 1, 0.5], [1.2, 1, 0], [1.3, 1, 0.5], [1.7, 1.4, 0], [2.1, 1.8, 0.5]], np.float32
    )
    given = replace(chunk([0.0]), actions=rows, space_hash=spec.space.hash)
    state = replace(STATE, last_row=np.array([1.0, 1.0, 0.0], np.float32))
    strategy = upcycling(spec, horizon=2, ratio=1.5, min_pool=1, gripper_gate=False)
    strategy.horizon(given, state)
    # pool 0 .5 .5, N = 1: ceil(.5 * 2 * 1) = 1st smallest = 0, the uniform row 3 still runs
    second = strategy.horizon(given, state)
    assert second.fluctuation == pytest.approx([0.0, 0.5, 0.5], abs=1e-6)
    assert (second.chosen, second.threshold) == (3, pytest.approx(0.0, abs=1e-6))


def test_ties_at_the_threshold_run_as_far_as_they_go() -> None:
    """With c = .1 .1 .1 .3 .3 .3 and tau = .1 three ties run, at tau = .3 all rows."""
    plateaus = [0.2, 0.2, 0.3, 0.3, 0.3, 0.5, 0.5, 0.5]
    for ratio, rows in ((1.5, 5), (2.0, 5), (2.5, 5), (3.0, 8)):
        strategy = upcycling(horizon=2, ratio=ratio, min_pool=1)
        strategy.horizon(chunk(plateaus), STATE)
        assert strategy.horizon(chunk(plateaus), STATE).chosen == rows


def test_with_one_chunk_of_one_row_the_ratio_changes_nothing() -> None:
    for ratio in (0.0, 1.0, 1.5, 100.0):
        strategy = upcycling(replace(SPEC, horizon=1), horizon=1, ratio=ratio, min_pool=1)
        for _ in range(2):
            assert strategy.horizon(chunk([0.5]), STATE).chosen == 1


def test_the_pool_outlives_a_new_version_but_not_another_policy() -> None:
    strategy = filled(ratio=2.0)
    strategy.configure(replace(SPEC, version=2))
    assert strategy.horizon(chunk(RAMP), STATE).chosen == 4
    strategy = filled(ratio=2.0, min_pool=3)
    strategy.configure(replace(SPEC, name='other'))
    assert strategy.horizon(chunk(RAMP), STATE).reason == 'calibrating'


def test_calibration_file_round_trip(tmp_path) -> None:
    file = tmp_path / 'c.json'
    calibration.save(filled(ratio=1.0).calibration(), file)
    strategy = upcycling(horizon=2, ratio=2.0, calibration=str(file))
    decision = strategy.horizon(chunk(RAMP), STATE)  # in force from the first chunk on
    assert decision.threshold == pytest.approx(0.2)
    assert decision.chosen == 4
    # a file holds signals, not a threshold: one serves every ratio
    assert upcycling(horizon=2, ratio=3.0, calibration=str(file)).horizon(
        chunk(RAMP), STATE
    ).threshold == pytest.approx(0.4)


@pytest.mark.parametrize(
    ('spec', 'horizon', 'message'),
    [
        (replace(SPEC, name='other'), 2, "policy 'fake_pick', in force is 'other'"),
        (replace(SPEC, space=spaces.ee_delta_space(step_m=0.1)), 2, 'action space'),
        (replace(SPEC, horizon=16), 2, 'chunk length 8, in force is 16'),
        (replace(SPEC, dt_s=0.02), 2, 'row period'),
        (SPEC, 3, 'base horizon 2, in force is 3'),
    ],
)
def test_a_calibration_for_something_else_is_refused(tmp_path, spec, horizon, message) -> None:
    file = tmp_path / 'c.json'
    calibration.save(filled().calibration(), file)
    with pytest.raises(ConfigError, match=message):
        upcycling(spec, horizon=horizon, calibration=str(file))
    upcycling(replace(SPEC, version=7), horizon=2, calibration=str(file))  # learning goes on


def test_a_damaged_calibration_is_one_clear_error(tmp_path) -> None:
    file = tmp_path / 'c.json'
    for text in ('', '{"signals": [1]}', '[]'):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r'calibration .*c\.json'):
            Upcycling(Upcycling.Config(calibration=str(file)))
    calibration.save(filled().calibration(), file)
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, 'format': 'chunkpilot-upcycling-9'}))
    with pytest.raises(ConfigError, match='not of format'):
        Upcycling(Upcycling.Config(calibration=str(file)))
    with pytest.raises(ConfigError, match='No such file'):
        Upcycling(Upcycling.Config(calibration=str(tmp_path / 'none.json')))


def test_too_few_chunks_are_no_calibration() -> None:
    strategy = upcycling(horizon=2)
    strategy.horizon(chunk(RAMP), STATE)
    with pytest.raises(ConfigError, match='needs 5 chunks, got 1'):
        strategy.calibration()


def test_a_calibration_says_what_a_ratio_would_run() -> None:
    found = filled().calibration()  # five ramps: .1 to .6 past h = 2
    assert found.mean_horizon(1.0) == 2.0
    assert found.mean_horizon(2.0) == 4.0
    assert found.mean_horizon(99.0) == 8.0
