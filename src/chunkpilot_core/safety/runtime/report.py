"""What the guard tells: a verdict every tick, events, and its latched status."""

from dataclasses import dataclass, replace
from typing import Any

from chunkpilot_core.safety.base import Finding, NAN, Situation
from chunkpilot_core.safety.runtime.events import EventLog
from chunkpilot_core.safety.runtime.gate import Gate
from chunkpilot_core.safety.runtime.machine import Machine, Transition
from chunkpilot_core.types import (
    ArmState,
    Command,
    F64,
    GuardEvent,
    GuardStatus,
    NS_PER_S,
    Reaction,
    SafetyVerdict,
    seconds,
)

STATE_REACTION = {
    ArmState.DISARMED: Reaction.PASS,
    ArmState.ARMED: Reaction.PASS,
    ArmState.HOLD: Reaction.HOLD,
    ArmState.STOPPED: Reaction.STOP,
    ArmState.ESTOP: Reaction.ESTOP,
}


@dataclass(frozen=True, slots=True)
class Setpoint:
    """What was asked for and what is sent in a tick, (J,) each."""

    requested: F64
    sent: F64
    velocity: F64
    direction_changed: bool
    scale: float
    source: str


class Reporter:
    """Words what happened; decides nothing."""

    def __init__(self, event_interval_s: float) -> None:
        self.events = EventLog(event_interval_s)
        self.ticks = 0
        self._counters = [0] * len(Reaction)
        self._status: GuardStatus | None = None

    def reject(self, found: Finding, command: Command | None, situation: Situation) -> None:
        """Tell of a command that was not accepted."""
        self._event('rejection', found, situation, command)

    def replan(self, found: Finding, situation: Situation) -> None:
        """Ask execution for another chunk; of one that is rejected no more may run."""
        if found.reaction is Reaction.REJECT_CHUNK and found.keep_rows < 0:
            found = replace(found, keep_rows=0)
        self._event('replan', found, situation, None)

    def tell(self, found: Finding, situation: Situation) -> None:
        """Tell of something that the guard does not react to."""
        self._event('info', found, situation, None)

    def control(self, reason: str, taken: bool, situation: Situation) -> None:
        """Tell who drives from now on; taking and giving back are different events."""
        what = 'taken' if taken else 'given back'
        found = Finding(Reaction.PASS, reason, what, check='control')
        self._event('info', found, situation, None)

    def gated(self, gate: Gate, command: Command | None, situation: Situation) -> None:
        """Tell what has become of irreversible actions since the last call."""
        for found in gate.news:
            self._event('gate', found, situation, command)
        gate.news.clear()

    def verdict(
        self,
        findings: list[Finding],
        setpoint: Setpoint,
        command: Command | None,
        on_timer: bool,
        situation: Situation,
        machine: Machine,
    ) -> SafetyVerdict:
        """Count the tick and return its verdict: the most severe finding decides."""
        worst = max(findings, key=lambda found: found.reaction, default=None)
        reaction = STATE_REACTION[machine.state]
        found = worst or Finding(Reaction.PASS, '')
        if machine.state is not ArmState.DISARMED:
            reaction = max(reaction, found.reaction)
        if reaction > found.reaction and machine.causes:
            check, _, reason = machine.causes[-1].partition(': ')
            found = Finding(reaction, reason, check=check)
        elif found.reaction in (Reaction.CLAMP, Reaction.SLOW):
            self._event('reaction', found, situation, command)
        self._counters[reaction] += 1
        self.ticks += 1
        newest = command or situation.flow.accepted
        measured, last_ns = situation.measured, situation.last_steady_ns
        return SafetyVerdict(
            stamp_ns=situation.now_ns,
            tick=self.ticks,
            arm_epoch=machine.epoch,
            state=machine.state,
            reaction=reaction,
            joint_names=situation.limiter.joints,
            requested=setpoint.requested,
            sent=setpoint.sent,
            sent_velocity=setpoint.velocity,
            on_timer=on_timer,
            **_ids(newest),
            source=setpoint.source,
            escalate=reaction >= Reaction.STOP or any(found.escalate for found in findings),
            check=found.check,
            joint=found.joint,
            value=found.value,
            limit=found.limit,
            margin=found.margin,
            reason=found.reason,
            direction_changed=setpoint.direction_changed,
            speed_scale=setpoint.scale,
            state_age_s=seconds(situation.now_ns - measured.stamp_ns) if measured else NAN,
            command_age_s=seconds(situation.now_ns - newest.stamp_ns) if newest else NAN,
            row_age_s=_row_age_s(newest, situation.now_ns),
            period_s=seconds(situation.steady_ns - last_ns) if last_ns else 0.0,
            clearances=situation.nearest,
            counters=tuple(self._counters),
            tick_steady_ns=command.tick_steady_ns if command else 0,
            steady_ns=situation.steady_ns,
        )

    def transitions(self, machine: Machine, situation: Situation) -> None:
        """Tell of every change of state since the last call."""
        for change in machine.transitions:
            found = Finding(STATE_REACTION[change.after], change.reason, check=change.check)
            self._event('transition', found, situation, None, change)
        machine.transitions.clear()

    def status(self, status: GuardStatus) -> tuple[GuardStatus, bool]:
        """Return the status, and whether it says something new."""
        before, self._status = self._status, status
        changed = before is None or replace(before, stamp_ns=status.stamp_ns) != status
        return status, changed

    def _event(
        self,
        kind: str,
        found: Finding,
        situation: Situation,
        command: Command | None,
        change: Transition | None = None,
    ) -> None:
        flow = situation.flow
        self.events.add(
            GuardEvent(
                stamp_ns=situation.now_ns,
                arm_epoch=change.epoch if change else situation.epoch,
                kind=kind,
                from_state=change.before if change else situation.state,
                to_state=change.after if change else situation.state,
                reaction=found.reaction,
                check=found.check,
                joint=found.joint,
                value=found.value,
                limit=found.limit,
                margin=found.margin,
                reason=found.reason,
                command_id=command.id if command else flow.last_id,
                chunk_id=found.chunk_id or (command.chunk_id if command else flow.last_chunk),
                keep_rows=found.keep_rows,
                escalate=found.escalate,
            ),
            situation.steady_ns,
        )


def _ids(command: Command | None) -> dict[str, Any]:
    if command is None:
        return {}
    return {'command_id': command.id, 'chunk_id': command.chunk_id, 'row': command.row}


def _row_age_s(command: Command | None, now_ns: int) -> float:
    if command is None or command.row < 0 or not command.observation_stamp_ns:
        return NAN
    return (now_ns - command.observation_stamp_ns) / NS_PER_S
