"""A check that wants another chunk: the guard says so in events, not more often than useful."""

from chunkpilot_core.safety.base import Check, Finding, Stage
from chunkpilot_core.safety.runtime.events import EventLog, KEPT
from chunkpilot_core.types import ArmState, GuardEvent, Id, Reaction
import pytest


class Wish(Check):
    """Objects to what its class says, from the moment the arm is armed."""

    name = 'wish'
    order = 12
    stage = Stage.INPUT
    found: Finding | None = None

    def check(self, situation):
        """Return what the test put here."""
        return self.found if situation.state is ArmState.ARMED else None


class MotionWish(Wish):
    """The same about the next setpoint."""

    name = 'motion_wish'
    stage = Stage.MOTION


@pytest.fixture(name='rig', params=['Wish', 'MotionWish'])
def _rig(bench, request, monkeypatch):
    monkeypatch.setattr(Wish, 'found', None)
    rig = bench(extra_checks=(f'{__name__}:{request.param}',)).armed()
    rig.move = rig.moving(0.2)
    rig.ticks(5, rig.move)
    return rig


def replans(rig) -> list:
    return [event for event in rig.events if event.kind == 'replan']


def test_a_wish_for_another_chunk_is_told_once_a_second(rig) -> None:
    Wish.found = Finding(Reaction.REPLAN, 'nothing moves', 'arm', 0.0, 0.1, escalate=True)
    verdict = rig.ticks(1, rig.move).verdict
    assert (verdict.reaction, verdict.escalate) == (Reaction.REPLAN, True)
    rig.ticks(150, rig.move)
    first, second = replans(rig)
    assert (first.reason, first.keep_rows, first.escalate) == ('nothing moves', -1, True)
    assert second.suppressed == 99
    assert second.stamp_ns - first.stamp_ns == pytest.approx(1e9, abs=2e7)
    assert rig.state is ArmState.ARMED  # the arm goes on until another chunk is there
    assert rig.last.verdict.sent_velocity[0] > 0.15


def test_another_bad_chunk_is_told_of_soon(rig) -> None:
    for seq in range(10):
        Wish.found = Finding(Reaction.REJECT_CHUNK, 'bad', chunk_id=Id(3, seq + 1))
        rig.ticks(5, rig.move)
    told = replans(rig)
    assert [event.chunk_id.seq for event in told] == [1, 3, 5, 7, 9]
    assert {event.keep_rows for event in told} == {0}


def test_an_arm_that_is_held_or_disarmed_asks_for_nothing(bench, monkeypatch) -> None:
    monkeypatch.setattr(Wish, 'found', None)
    rig = bench(extra_checks=(f'{__name__}:Wish',)).armed()
    rig.guard.hold(rig.now_ns())
    rig.ticks(1)
    Wish.found = Finding(Reaction.REPLAN, 'nothing moves')
    rig.ticks(20)
    assert not replans(rig)


def test_ever_new_names_do_not_fill_the_memory() -> None:
    log = EventLog(1.0)
    for number in range(3 * KEPT):
        for joint in ('hand-table', f'hand-thing{number}'):
            event = GuardEvent(0, 1, 'reaction', ArmState.ARMED, ArmState.ARMED, joint=joint)
            log.add(event, number)
            log.add(event, number)
    assert [event.joint for event in log.take()].count('hand-table') < 5
    assert max(len(log._last), len(log._suppressed)) <= KEPT
