"""Strategy auto: r is moved to the wanted disagreement, within bounds, and by nothing else."""

from dataclasses import replace

from chunkpilot_core import spaces
from chunkpilot_core.config import build
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.execution.auto import Auto
from chunkpilot_core.execution.base import ExecutionState
from chunkpilot_core.execution.upcycling import Upcycling
from chunkpilot_core.types import ActionChunk, ActionGroup, ActionSpace, Id, Kind, PolicySpec
import numpy as np
import pytest

EE = spaces.ee_delta_space()
SPEC = PolicySpec('fake', 'fake', 1, EE, 16, 0.04)
UNIT = 0.05 / (1.0 * 0.04)  # a row of 1 is 5 cm in 40 ms at a limit of 1 m/s


def chunk(actions: np.ndarray, space: ActionSpace = EE) -> ActionChunk:
    return ActionChunk(
        Id(1, 1), Id(1, 1), 1, 'task', Id(1, 1), 1, 1, 0.04, actions, space.hash, 'fake', 1
    )


def rows(x: float, count: int = 16) -> np.ndarray:
    return np.tile(np.array([x, 0, 0, 1], np.float32), (count, 1))


def state(previous: np.ndarray | None) -> ExecutionState:
    return ExecutionState(0, np.zeros(4, np.float32), 0, 0.05, 4.0, previous)


def auto(spec: PolicySpec = SPEC, **options) -> Auto:
    strategy = Auto(build(Auto.Config, options))
    strategy.configure(spec)
    return strategy


def disagreement(strategy: Auto, new: np.ndarray, old: np.ndarray) -> float | None:
    return strategy.disagreement(strategy.velocities(new, state(old)), state(old))


def test_disagreement_is_that_of_velocities_where_both_plans_say_something() -> None:
    old = rows(0.2)
    old[10:] = np.nan
    strategy = auto()
    assert disagreement(strategy, rows(0.3), old) == pytest.approx(0.1 * UNIT)
    assert disagreement(strategy, rows(0.2), old) == pytest.approx(0.0, abs=1e-7)
    old[:, 3] = -1.0  # the gripper is no motion
    assert disagreement(strategy, rows(0.2), old) == pytest.approx(0.0, abs=1e-7)


def test_absolute_plans_are_compared_by_their_velocities_too() -> None:
    group = ActionGroup('arm', 0, 1, Kind.JOINT_POSITION, scale=(1.0,), offset=(0.0,))
    space = spaces.make(ActionSpace((group,), (-9.0,), (9.0,), (2.0,), (9.0,), (99.0,), (False,)))
    strategy = auto(replace(SPEC, space=space))
    path = np.arange(1, 17, dtype=np.float32)[:, None]
    here = replace(state(0.02 * path), last_row=np.zeros(1, np.float32))
    new = strategy.velocities((0.04 * path).astype(np.float32), here)
    assert strategy.disagreement(new, here) == pytest.approx(0.02 / (2.0 * 0.04))


@pytest.mark.parametrize(('x', 'higher'), [(0.2, True), (0.21, True), (0.35, False)])
def test_ratio_goes_up_where_plans_agree_and_down_where_not(x: float, higher: bool) -> None:
    strategy = auto(target=0.05, ratio=1.4)
    strategy.horizon(chunk(rows(x)), state(rows(0.2)))
    assert (strategy.ratio > 1.4) == higher
    for _ in range(50):
        strategy.horizon(chunk(rows(x)), state(rows(0.2)))
    assert strategy.ratio == (1.8 if higher else 1.0)  # the bounds


def test_ratio_stays_at_the_target_and_where_nothing_can_be_compared() -> None:
    strategy = auto(target=0.1 * UNIT, ratio=1.4)
    strategy.horizon(chunk(rows(0.3)), state(rows(0.2)))
    assert strategy.ratio == pytest.approx(1.4, abs=1e-6)
    for previous in (None, np.full((16, 4), np.nan, np.float32)):
        strategy.horizon(chunk(rows(0.9)), state(previous))
        assert strategy.ratio == pytest.approx(1.4, abs=1e-6)


def test_horizons_are_those_of_upcycling_with_the_same_ratio() -> None:
    random = np.random.default_rng(0)
    strategy, plain = auto(horizon=4, ratio=1.5), Upcycling(Upcycling.Config(4, 1.5))
    plain.configure(SPEC)
    for _ in range(40):
        new = chunk(np.cumsum(random.normal(0, 0.05, (16, 4)), axis=0).astype(np.float32))
        chosen, expected = (s.horizon(new, state(None)) for s in (strategy, plain))
        assert (chosen.chosen, chosen.reason) == (expected.chosen, expected.reason)
    assert chosen.strategy == 'auto'


def test_another_policy_begins_anew_and_a_newer_version_goes_on() -> None:
    strategy = auto(ratio=1.4)
    strategy.horizon(chunk(rows(0.2)), state(rows(0.2)))
    learned = strategy.ratio
    strategy.configure(replace(SPEC, version=2))
    assert strategy.ratio == learned
    strategy.configure(replace(SPEC, name='other'))
    assert strategy.ratio == 1.4


def test_bounds_that_exclude_the_start_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'auto\.ratio: 2\.0, allowed min_ratio 1\.0 to'):
        Auto.Config(ratio=2.0, max_ratio=1.8)
