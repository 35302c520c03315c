"""What people plot, once more in messages that every viewer draws by itself."""

from collections.abc import Mapping
from dataclasses import fields
import math

from chunkpilot_core.types import Command, ExecutionStats, HorizonDecision
from chunkpilot_nodes import convert, qos
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

NUMBERS = tuple(
    field.name for field in fields(ExecutionStats) if field.type in (int, float, 'int', 'float')
)


class Plots:
    """
    Mirrors of ``command``, ``horizon`` and ``execution_stats``.

    ``plot/command`` names its columns; the other two are arrays whose layout label does.
    """

    def __init__(self, node: Node) -> None:
        self._commands = node.create_publisher(JointState, 'plot/command', qos.RELIABLE_10)
        self._horizons = node.create_publisher(Float64MultiArray, 'plot/horizon', qos.RELIABLE_10)
        self._stats = node.create_publisher(Float64MultiArray, 'plot/stats', qos.RELIABLE_10)

    def command(self, command: Command) -> None:
        """Publish where the robot is sent."""
        self._commands.publish(convert.command_to_joint_state(command))

    def horizon(self, decision: HorizonDecision) -> None:
        """Publish how many rows of a chunk run; NaN where a strategy has no signal."""
        self._horizons.publish(convert.numbers_to_array(horizon_numbers(decision)))

    def stats(self, stats: ExecutionStats) -> None:
        """Publish the counters."""
        numbers = {name: float(getattr(stats, name)) for name in NUMBERS}
        self._stats.publish(convert.numbers_to_array(numbers))


def horizon_numbers(decision: HorizonDecision) -> Mapping[str, float]:
    """Return a decision as numbers; ``signal`` is c at the last row that runs."""
    row = decision.chosen - decision.base
    known = len(decision.fluctuation) > 0
    signal = math.nan
    if known:
        signal = float(decision.fluctuation[row - 1]) if row > 0 else 0.0
    return {
        'chosen': float(decision.chosen),
        'base': float(decision.base),
        'signal': signal,
        'threshold': float(decision.threshold) if known else math.nan,
        'cut': float(decision.cut),
    }
