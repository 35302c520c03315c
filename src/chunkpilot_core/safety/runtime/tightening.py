"""Limits that may be made stricter while the arm is armed, and never looser again."""

from dataclasses import dataclass
import math

from chunkpilot_core.config import option


@dataclass(frozen=True, slots=True)
class Tightening:
    """How much stricter than the robot's file; the looser value needs a restart of the guard."""

    velocity_fraction: float = option(
        1.0,
        'of the speed of the arm; may be lowered, but not raised, while the node runs',
        min=0.01,
        max=1.0,
    )
    tool_speed: float = option(
        0.0,
        "of the tool at most, 0 = the robot file's; may be lowered, but not raised, while the "
        'node runs',
        unit='m/s',
        min=0.0,
        max=10.0,
    )

    @property
    def tool_limit(self) -> float:
        """Largest speed of the tool [m/s], inf for none but the robot's."""
        return self.tool_speed or math.inf

    def looser_than(self, other: 'Tightening') -> str:
        """Return what is looser here than there, '' for nothing."""
        if not self.velocity_fraction <= other.velocity_fraction:
            return f'velocity_fraction {self.velocity_fraction:g}, is {other.velocity_fraction:g}'
        if not self.tool_limit <= other.tool_limit:
            limit = other.tool_limit
            return f'tool_speed {self.tool_speed or "of the robot"}, is {limit:g} m/s'
        return ''
