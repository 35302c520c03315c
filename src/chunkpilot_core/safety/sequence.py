"""Commands come from one sender, in order, in this epoch, and are of now (D2, D3)."""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.types import Command, Reaction, seconds


class Sequence(Check):
    """
    Rejects late, foreign, repeated, out-of-epoch and future commands.

    A sender is known by its session; another one is refused until the arm is armed again, so that
    neither a second nor a restarted sender takes over a moving arm.
    """

    @dataclass(frozen=True)
    class Config(Check.Config):
        """Ages of stamps."""

        late_s: float = option(0.20, 'age of the stamp', unit='s', min=0.01, max=10.0)
        future_s: float = option(0.05, 'stamp ahead of the clock', unit='s', min=0.0, max=1.0)
        grace_s: float = option(
            0.5,
            'commands of an old epoch are no fault for this long after its end',
            unit='s',
            min=0.0,
            max=5.0,
        )

    name = 'sequence'
    order = 4
    stage = Stage.COMMAND
    config: Config

    def check(self, situation: Situation) -> Finding | None:
        """Compare with what was accepted before."""
        command = situation.command
        if command is None:
            return None
        return self._epoch(command, situation) or self._order(command, situation)

    def _epoch(self, command: Command, situation: Situation) -> Finding | None:
        fault = situation.epoch_age_s > self.config.grace_s
        if command.arm_epoch != situation.epoch:
            return _reject(
                f'arm epoch {command.arm_epoch}, in force is {situation.epoch}', 'arm_epoch', fault
            )
        if command.row >= 0 and command.observation_stamp_ns < situation.not_before_ns:
            early_s = seconds(situation.not_before_ns - command.observation_stamp_ns)
            return _reject(
                f'rests on an observation {early_s:.2f} s older than the last hold',
                'observation_stamp',
                fault,
                early_s,
                0.0,
            )
        return None

    def _order(self, command: Command, situation: Situation) -> Finding | None:
        flow, config = situation.flow, self.config
        if flow.session and command.id.session != flow.session:
            return _reject('another sender than since arming: arm again', 'session', fault=False)
        if flow.session and not command.id.seq > flow.last_id.seq:
            seq, last = command.id.seq, flow.last_id.seq
            return _reject(f'command {seq} after {last}', 'seq', False, float(seq), float(last))
        if command.chunk_id and flow.last_chunk and not _in_order(command, situation):
            seq, last = command.chunk_id.seq, flow.last_chunk.seq
            return _reject(f'chunk {seq} after {last}', 'chunk', True, float(seq), float(last))
        age_s = seconds(situation.now_ns - command.stamp_ns)
        if age_s > config.late_s:
            return _reject(f'stamp is {age_s:.3f} s old', 'stamp', True, age_s, config.late_s)
        if age_s < -config.future_s:
            reason = f'stamp is {-age_s:.3f} s in the future'
            return _reject(reason, 'stamp', True, age_s, config.future_s)
        return None


def _in_order(command: Command, situation: Situation) -> bool:
    last = situation.flow.last_chunk
    return command.chunk_id == last or command.chunk_id.newer_than(last)


def _reject(
    reason: str,
    what: str,
    fault: bool = True,
    value: float = float('nan'),
    limit: float = float('nan'),
) -> Finding:
    return Finding(Reaction.REJECT_CHUNK, reason, what, value, limit, fault=fault)
