"""Limits that are made stricter while the arm moves."""

import math
from typing import Any

from chunkpilot_core import robot as robots
from chunkpilot_core.safety.runtime.tightening import Tightening
import numpy as np
import pytest

ROBOT = robots.load('panda')


@pytest.mark.matrix(49)
def test_a_moving_arm_slows_down_to_a_stricter_speed_along_its_path(bench: Any) -> None:
    it = bench().armed()
    it.ticks(50, it.moving(1.5))
    done, reason = it.guard.tighten(Tightening(velocity_fraction=0.3), it.now_ns())
    assert done, reason
    it.ticks(100, it.moving(1.5))
    fastest = abs(it.last.verdict.sent_velocity[0])
    assert fastest <= 0.3 * it.limiter.max_velocity[0] + 1e-9
    assert it.last.speed_scale == 0.3
    np.testing.assert_allclose(it.last.verdict.sent_velocity[1:7], 0.0, atol=1e-9)


def test_it_stays_so_after_a_hold_and_after_arming_again(bench: Any) -> None:
    it = bench(tightening=Tightening(velocity_fraction=0.5)).armed()
    it.ticks(50, it.moving(2.0))
    assert it.last.speed_scale == 0.5
    assert it.guard.hold(it.now_ns())[0]
    it.ticks(100)
    assert it.guard.resume(it.now_ns())[0]
    it.ticks(200)
    assert it.last.speed_scale == 0.5
    it.guard.disarm(it.now_ns())
    it.ticks(20)
    it.armed()
    assert it.last.speed_scale == 0.5


def test_the_tool_keeps_the_stricter_speed(bench: Any) -> None:
    it = bench().armed()
    assert it.guard.tighten(Tightening(tool_speed=0.1), it.now_ns())[0]
    it.ticks(100, it.moving(0.5))
    arm = it.guard.kinematics
    before, after = it.measured[:7].copy(), it.tick(it.moving(0.5)()).positions[:7]
    moved = np.linalg.norm(arm.forward(after).position - arm.forward(before).position)
    assert 0.0 < moved <= 0.1 * 0.01 * 1.001


@pytest.mark.parametrize(
    'looser',
    [
        Tightening(velocity_fraction=0.6, tool_speed=0.3),
        Tightening(velocity_fraction=0.5, tool_speed=0.31),
        Tightening(velocity_fraction=0.5),
        Tightening(velocity_fraction=math.nan, tool_speed=0.3),
        Tightening(velocity_fraction=0.5, tool_speed=math.nan),
    ],
)
def test_nothing_is_loosened(bench: Any, looser: Tightening) -> None:
    strict = Tightening(velocity_fraction=0.5, tool_speed=0.3)
    it = bench(tightening=strict)
    done, reason = it.guard.tighten(looser, it.now_ns())
    assert not done
    assert 'loosened by a restart only' in reason
    assert it.guard.tightening == strict


@pytest.mark.matrix(49)
def test_an_arm_at_rest_begins_below_a_stricter_speed(bench: Any) -> None:
    it = bench().armed()
    assert it.guard.tighten(Tightening(velocity_fraction=0.05), it.now_ns())[0]
    make, fastest = it.moving(2.0), 0.0
    for _ in range(50):
        fastest = max(fastest, abs(it.tick(make()).verdict.sent_velocity[0]))
    assert 0.0 < fastest <= 0.05 * it.limiter.max_velocity[0] + 1e-9
