"""
What reaches a guard by topic: the same way in guard_node and when a bag is decided once more.

Every message that is taken is named by topic, stamp and time in the next verdict, so that a bag
tells what the guard knew in each tick, and in which order it came to know it.
"""

from collections.abc import Callable
from typing import Any

from chunkpilot.msg import (
    ActionChunk,
    ChunkVerdict,
    Command,
    EpisodeEvent,
    EStop,
    Intervention,
    Observation,
    ObstacleList,
    PolicyInfo,
)
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.safety.runtime.arbiter import POLICY, priority_of
from chunkpilot_core.safety.runtime.guard import Guard
from chunkpilot_core.types import ArmState
from chunkpilot_nodes import convert, qos
from sensor_msgs.msg import JointState

TOPICS = {
    'command': (Command, qos.COMMAND),
    'teleop/command': (Command, qos.COMMAND),
    'intervention': (Intervention, qos.RELIABLE_10),
    'joint_states': (JointState, qos.SENSOR),
    'estop': (EStop, qos.LATCHED),
    'observation': (Observation, qos.RELIABLE_10),
    'obstacles': (ObstacleList, qos.KEPT),
    'chunk': (ActionChunk, qos.RELIABLE_10),
    'chunk_verdict': (ChunkVerdict, qos.RELIABLE_10),
    'policy/info': (PolicyInfo, qos.LATCHED),
    'episode': (EpisodeEvent, qos.LATCHED),
}
"""
Type and quality of service by topic; each has a method of :class:`Inputs` of its name. KEPT ones
are heard as :mod:`chunkpilot_nodes.lasting` does.
"""

SERVICES = ('arm', 'recover', 'disarm', 'hold', 'resume', 'stop', 'reset')
"""Services ``guard/...`` of type GuardCommand; each is a method of the guard."""


class Inputs:
    """Tells a guard what messages say."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._take: dict[str, Callable[[Any, int], bool | None]] = {
            topic: getattr(self, topic.replace('/', '_')) for topic in TOPICS
        }

    def take(self, topic: str, msg: Any, now_ns: int) -> bool:
        """
        Hand on a message.

        :returns: whether it is worth a tick
        :raises InvalidDataError: it can't be read, and the guard was told nothing
        """
        return bool(self._take[topic](msg, now_ns))

    def command(self, msg: Command, now_ns: int) -> bool:
        """Take a command of the policy."""
        return self._commanded('command', msg, now_ns, by_hand=False)

    def teleop_command(self, msg: Command, now_ns: int) -> bool:
        """Take a command of somebody's hand."""
        return self._commanded('teleop/command', msg, now_ns, by_hand=True)

    def _commanded(self, topic: str, msg: Command, now_ns: int, by_hand: bool) -> bool:
        try:
            if (priority_of(msg.source) > POLICY) is not by_hand:
                raise InvalidDataError(f'source {msg.source!r} does not belong on {topic}')
            # False: somebody else drives; a tick would only be early
            return self._guard.on_command(convert.command_from_msg(msg), now_ns)
        except InvalidDataError as error:
            self._guard.on_unreadable(f'unreadable command: {error}', now_ns)
            return True

    def intervention(self, msg: Intervention, now_ns: int) -> None:
        """Take the announcement of who has control."""
        self._guard.on_intervention(convert.intervention_from_msg(msg), now_ns)

    def joint_states(self, msg: JointState, now_ns: int) -> None:
        """Take a measurement."""
        try:
            self._guard.on_joint_state(convert.joint_state_from_msg(msg), now_ns)
        except InvalidDataError as error:
            self._guard.on_joint_error(str(error), now_ns)

    def estop(self, msg: EStop, now_ns: int) -> bool:
        """Take an emergency stop or its heartbeat."""
        news = msg.asserted and self._guard.machine.state is not ArmState.ESTOP
        self._guard.on_estop(msg.asserted, msg.source or 'unnamed', now_ns)
        return news

    def observation(self, msg: Observation, now_ns: int) -> None:
        """Take the health of an observation."""
        self._guard.on_observation(convert.health_from_msg(msg), now_ns)

    def obstacles(self, msg: ObstacleList, now_ns: int) -> None:
        """Take all obstacles there are; unreadable ones are refused, and the old ones stay."""
        try:
            told = convert.obstacles_from_msg(msg, self._guard.robot.world_frame)
        except InvalidDataError as error:
            self._guard.on_obstacles(str(error), now_ns)
        else:
            self._guard.on_obstacles(told, now_ns)

    def chunk(self, msg: ActionChunk, now_ns: int) -> None:
        """Take a chunk."""
        self._guard.on_chunk(convert.chunk_from_msg(msg), now_ns)

    def chunk_verdict(self, msg: ChunkVerdict, now_ns: int) -> None:
        """Take what a roll-out makes of a chunk."""
        self._guard.on_chunk_verdict(convert.chunk_verdict_from_msg(msg), now_ns)

    def policy_info(self, msg: PolicyInfo, now_ns: int) -> None:
        """Take the policy's action space."""
        if msg.ready:
            spec = convert.policy_info_from_msg(msg)
            self._guard.set_space(spec.space, spec.dt_s, spec.name)

    def episode(self, msg: EpisodeEvent, now_ns: int) -> None:
        """Take the start or end of an episode."""
        running = msg.event == EpisodeEvent.START
        self._guard.set_episode(running, msg.episode_id, msg.task_id)
