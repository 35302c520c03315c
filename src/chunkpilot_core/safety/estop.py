"""Emergency stop inputs: asserted, or a required source gone silent, is an emergency stop."""

from dataclasses import dataclass

from chunkpilot_core.config import option
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.types import Reaction, seconds


class EStop(Check):
    """Asserts the emergency stop as long as any source does."""

    @dataclass(frozen=True)
    class Config(Check.Config):
        """Which sources have to show life."""

        required: tuple[str, ...] = option(
            (), 'sources whose heartbeat must go on; arming waits for the first one'
        )
        timeout_s: float = option(
            0.25, 'silence of a required source', unit='s', min=0.02, max=5.0
        )

    name = 'estop'
    order = 1
    stage = Stage.INPUT
    config: Config

    def check(self, situation: Situation) -> Finding | None:
        """Look at every source that was ever heard."""
        for source, (asserted, received_ns) in situation.estops.items():
            if asserted:
                return Finding(Reaction.ESTOP, f'emergency stop pressed: {source}', source)
            age_s = seconds(situation.steady_ns - received_ns)
            if source in self.config.required and age_s > self.config.timeout_s:
                return Finding(
                    Reaction.ESTOP,
                    f'no heartbeat from required emergency stop {source!r}',
                    source,
                    age_s,
                    self.config.timeout_s,
                )
        return None

    def why_not_arm(self, situation: Situation) -> str:
        """Wait for required sources that never spoke."""
        unheard = [name for name in self.config.required if name not in situation.estops]
        return f'required emergency stop not heard yet: {", ".join(unheard)}' if unheard else ''
