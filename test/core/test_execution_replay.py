"""The same calls give the same results: a trace can be replayed through a fresh executor."""

from dataclasses import replace

from chunkpilot_core import robot as robots
from chunkpilot_core import spaces
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.execution.runtime.executor import Executor
from chunkpilot_core.execution.runtime.replay import Call, differences, record
from chunkpilot_core.execution.upcycling import Upcycling
from chunkpilot_core.types import ActionChunk, ArmState, GuardStatus, Id, PolicySpec
import numpy as np
import pytest

MS = 1_000_000
SPEC = PolicySpec('fake', 'fake', 1, spaces.ee_delta_space(), 16, 0.04)


def fresh(session: int = 7, **config) -> Executor:
    strategy = Upcycling(Upcycling.Config(4, ratio=2.0, min_pool=2))
    return Executor(strategy, Executor.Config(**config), robots.load('panda'), session)


def played(executor: Executor) -> None:
    """Let a policy of 120 ms be run, with a hold, a pause, a bad answer and a jump."""
    random = np.random.default_rng(0)
    executor.remember_delays(d for d in (0.1, 0.13))
    executor.configure(SPEC, 1)
    with pytest.raises(ConfigError):
        executor.configure(replace(SPEC, horizon=2), 1)
    executor.configure(SPEC, 1)
    now, measured, epoch, due = 10**12, np.array([0.0, 0.0, 0.2, 0.08]), 1, []
    executor.set_guard(GuardStatus(now, ArmState.ARMED, epoch, now), now)
    executor.set_episode(True, 't', now, 'e')
    for seq in range(1, 400):
        now += 10 * MS
        if seq in (150, 170):
            state, epoch = (ArmState.HOLD, epoch) if seq == 150 else (ArmState.ARMED, epoch + 1)
            executor.set_guard(GuardStatus(now, state, epoch, now), now)
        if seq == 200:
            executor.set_speed_scale(0.5)
        if seq == 250:
            executor.cut('surprise: test', now)
        now -= 10**9 * (seq == 300)
        if due and due[0][0] <= seq:
            executor.receive(due.pop(0)[1], now)
        tick = executor.tick(now, measured, now)
        if tick.command is not None:
            measured[:] = np.concatenate([group.values for group in tick.command.groups])
        if tick.request is not None:
            rows = random.uniform(-1, 1, (16, 4)).astype(np.float32)
            rows[0] *= np.nan if seq == 100 else 1.0
            ids = (Id(9, seq), tick.request.id, epoch, 't', Id(8, seq))
            due.append(
                (seq + 12, ActionChunk(*ids, now, now, 0.04, rows, SPEC.space.hash, 'fake', 1))
            )
    executor.set_episode(False, '', now)


def recorded(**config) -> list[Call]:
    executor = fresh(**config)
    calls = record(executor)
    played(executor)
    return calls


@pytest.mark.parametrize('config', [{}, {'in_flight': 2}, {'starvation': 'stretch'}])
def test_a_fresh_executor_says_the_same_to_the_last_bit(config) -> None:
    calls = recorded(**config)
    results = [call.result for call in calls if call.method == 'tick']
    assert sum(tick.command is not None for tick in results) > 250
    assert sum(tick.decision is not None for tick in results) > 10
    assert differences(calls, fresh(**config)) == []


def test_another_configuration_is_told_apart() -> None:
    calls = recorded()
    found = differences(calls, fresh(blend_rows=3, margin=1.0))
    assert any('.request' in text for text in found)
    assert any('.session: 8, was 7' in text for text in differences(calls, fresh(8)))


def test_a_result_that_was_changed_by_a_hair_is_found() -> None:
    calls = recorded()
    at = next(i for i, call in enumerate(calls) if call.method == 'tick' and call.result.command)
    command = calls[at].result.command
    group = replace(command.groups[0], values=command.groups[0].values + 1e-12)
    tick = replace(calls[at].result, command=replace(command, groups=(group, command.groups[1])))
    calls[at] = replace(calls[at], result=tick)
    found = differences(calls, fresh())
    assert len(found) == 1
    assert found[0].startswith(f'{at}, tick.command.groups[0].values')
