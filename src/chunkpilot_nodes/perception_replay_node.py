"""
Stands in for cameras and perception: publishes recorded observations, made out to the live graph.

Topics in: ``task``, ``guard/state`` (epoch), ``episode``. Out: ``observation``. Before an episode
starts its first observation is repeated; from its start on they come as they came then. They say
where the recorded robot was, whatever the live one does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import secrets

from chunkpilot.msg import EpisodeEvent, GuardState
from chunkpilot.msg import Observation as ObservationMsg
from chunkpilot.msg import Task as TaskMsg
from chunkpilot_core import robot
from chunkpilot_core.bags import replies
from chunkpilot_core.config import option
from chunkpilot_core.errors import BagError
from chunkpilot_core.types import Id, nanoseconds, Observation
from chunkpilot_nodes import convert, params, qos, spin
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock, ClockType

PERIOD_S = 0.005
STANDING_S = 0.02
"""[s] So often the first observation is repeated before an episode, and the last one after it."""


@dataclass(frozen=True)
class Config:
    """What is replayed."""

    robot: str = option('panda', 'robot YAML file, or a name in config/robots')
    bag: str = option(
        '', 'bag of an episode, or a folder of bags; the one of the same seed counts'
    )


class PerceptionReplayNode(spin.SupervisedNode):
    """Thin adapter around :mod:`replies`."""

    def __init__(self) -> None:
        super().__init__('perception_node')
        self._config = params.declare(self, Config)
        if not self._config.bag:
            raise BagError('bag: say which one is to be replayed')
        self._library = replies.Library(self._config.bag)
        self._frame = robot.load(self._config.robot).world_frame
        self._session, self._seq = secrets.randbits(64), 0
        self._task_id, self._epoch = '', 0
        self._episode = self._library.first
        self._start_ns: int | None = None
        self._next = 0
        self._sent_ns = 0
        if not self._episode.observations:
            raise BagError(f'{self._config.bag}: no observation in it')
        self._out = self.create_publisher(ObservationMsg, 'observation', qos.RELIABLE_10)
        subscribe = self.create_subscription
        subscribe(TaskMsg, 'task', self._on_task, qos.LATCHED)
        subscribe(GuardState, 'guard/state', self._on_guard, qos.LATCHED)
        subscribe(EpisodeEvent, 'episode', self._on_episode, qos.LATCHED)
        self.create_timer(PERIOD_S, self._on_timer, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self.get_logger().info(f'perception as recorded in {self._episode.path}')

    def _on_task(self, msg: TaskMsg) -> None:
        self._task_id = msg.id

    def _on_guard(self, msg: GuardState) -> None:
        self._epoch = int(msg.arm_epoch)

    def _on_episode(self, msg: EpisodeEvent) -> None:
        if msg.event != EpisodeEvent.START:
            self._start_ns = None
            return
        self._episode, self._next = self._library.choose(int(msg.seed)), 0
        self._start_ns = convert.to_ns(msg.header.stamp)
        if self._episode.seed != msg.seed or self._episode.task_kind != msg.task_kind:
            self.get_logger().warning(
                f'recorded was another scene: {self._episode.task_kind} seed '
                f'{self._episode.seed}, live is {msg.task_kind} seed {msg.seed}'
            )

    def _on_timer(self) -> None:
        now_ns, seen = self.now_ns(), self._episode.observations
        if self._start_ns is None:
            if now_ns - self._sent_ns >= nanoseconds(STANDING_S) or now_ns < self._sent_ns:
                self._publish(seen[min(self._next, len(seen) - 1)], now_ns)
            return
        moved_ns = self._start_ns - self._episode.start_ns
        while self._next < len(seen) and seen[self._next].stamp_ns + moved_ns <= now_ns:
            self._publish(seen[self._next], seen[self._next].stamp_ns + moved_ns)
            self._next += 1

    def _publish(self, seen: Observation, stamp_ns: int) -> None:
        self._seq += 1
        self._sent_ns = stamp_ns
        live = replies.observe(
            seen,
            Id(self._session, self._seq),
            stamp_ns - seen.stamp_ns,
            self._epoch,
            self._task_id,
        )
        self._out.publish(convert.observation_to_msg(live, self._frame))

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return how far it is."""
        total = len(self._episode.observations)
        numbers = {'bag': str(self._episode.path), 'sent': self._seq, 'left': total - self._next}
        over = self._start_ns is not None and self._next >= total
        level = DiagnosticStatus.WARN if over else DiagnosticStatus.OK
        return level, 'the recorded observations are used up' if over else 'replaying', numbers


def main() -> None:
    """Run the node."""
    spin.main(PerceptionReplayNode)


if __name__ == '__main__':
    main()
