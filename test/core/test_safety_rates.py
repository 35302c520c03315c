"""A stream that comes too seldom or in bursts (row 20), and a guard that is too slow (D19)."""

from typing import Any

from chunkpilot_core.types import ArmState, Reaction
import numpy as np
import pytest


def sent(arm: Any, every: int, count: int = 300, speed: float = 0.3) -> list[Any]:
    """Send every so many ticks a command of a target that moves on; returns the ticks."""
    send = arm.moving(speed)
    return [arm.tick(send() if number % every == 0 else None) for number in range(count)]


def test_a_stream_at_a_tenth_of_the_rate_is_slowed_and_never_jumps(bench: Any) -> None:
    arm = bench().armed()
    ticks = sent(arm, every=10)  # limits and continuity are checked by the bench in every tick
    assert arm.state is ArmState.ARMED
    assert ticks[-1].speed_scale == pytest.approx(0.3)
    slow = [event for event in arm.events if event.check == 'stream_rate']
    assert '10%' in slow[-1].reason
    fastest = max(np.abs(tick.verdict.sent_velocity[0]) for tick in ticks[100:])
    assert fastest <= 0.31 * 2.175


def test_a_stream_at_half_the_rate_is_not(bench: Any) -> None:
    arm = bench().armed()
    assert all(tick.speed_scale == 1.0 for tick in sent(arm, every=2))


def test_bursts_of_ten_commands_are_no_more_than_one(bench: Any) -> None:
    arm = bench().armed()
    send = arm.moving(0.3)
    for number in range(300):
        for _ in range(10 if number % 10 == 0 else 0):
            arm.guard.on_command(send(), arm.now_ns())
        tick = arm.tick()
    assert tick.speed_scale == pytest.approx(0.3)
    assert arm.state is ArmState.ARMED


def test_the_scale_comes_back_with_the_rate(bench: Any) -> None:
    arm = bench().armed()
    sent(arm, every=10)
    assert sent(arm, every=1, count=200, speed=0.1)[-1].speed_scale == 1.0


def test_silence_is_held_and_not_slowed(bench: Any) -> None:
    arm = bench().armed()
    sent(arm, every=1, count=100)
    arm.ticks(25)
    assert arm.state is ArmState.HOLD


def test_three_of_ten_slow_ticks_are_told_once_a_second_and_change_nothing(bench: Any) -> None:
    arm = bench().armed()
    for number in range(100):
        arm.guard.on_cost(0.006 if number % 3 == 0 else 0.001, arm.now_ns())
        tick = arm.tick(arm.home())
        assert tick.verdict.reaction is Reaction.PASS
        assert tick.verdict.check == ''
    told = [event for event in arm.events if event.check == 'overrun']
    assert [event.kind for event in told] == ['info']
    assert '3 of the last 10' in told[0].reason


def test_a_tick_of_more_than_two_periods_holds(bench: Any) -> None:
    arm = bench().armed()
    arm.tick(arm.home())
    arm.guard.on_cost(0.021, arm.now_ns())
    assert arm.tick(arm.home()).verdict.check == 'overrun'
    assert arm.state is ArmState.HOLD
    arm.guard.on_cost(0.001, arm.now_ns())
    arm.ticks(60)
    assert arm.state is ArmState.ARMED
