"""
Stands in for the policy: answers live requests with recorded chunks, in their order.

Topics in: ``chunk_request``, ``observation``, ``episode``. Out: ``policy/info`` as recorded,
``chunk`` after the time that the policy took then. Needs neither torch nor the checkpoint. After
each episode its log says how much of the recording was used: what is left over, or was missing,
tells that the episode went another way.
Choosing and re-stamping is in :mod:`chunkpilot_core.bags.replies`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
import heapq
import secrets

from chunkpilot.msg import ActionChunk, ChunkRequest, EpisodeEvent, Observation, PolicyInfo
from chunkpilot_core import types
from chunkpilot_core.bags import replies
from chunkpilot_core.config import option
from chunkpilot_core.errors import BagError
from chunkpilot_core.policies.runtime import serving
from chunkpilot_nodes import convert, params, qos, spin
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock, ClockType

PERIOD_S = 0.005


@dataclass(frozen=True)
class Config:
    """What is replayed."""

    bag: str = option(
        '', 'bag of an episode, or a folder of bags; the one of the same seed counts'
    )
    max_observation_age_s: float = option(
        0.2, 'older observations are not used', unit='s', min=0.01, max=10.0
    )


class PolicyReplayNode(spin.SupervisedNode):
    """Thin adapter around :mod:`replies`."""

    def __init__(self) -> None:
        super().__init__('policy_node')
        self._config = params.declare(self, Config)
        if not self._config.bag:
            raise BagError('bag: say which one is to be replayed')
        self._library = replies.Library(self._config.bag)
        first = self._library.first
        if first.policy is None:
            raise BagError(f'{self._config.bag}: no policy announced itself in it')
        self._session = secrets.randbits(64)
        self._ids = self._count()
        self._left: list[replies.Reply] = []
        self._episode_id = ''
        self._recorded = self._unanswered = 0
        self._observation: Observation | None = None
        self._request: types.ChunkRequest | None = None
        self._due: list[tuple[int, int, types.ActionChunk]] = []
        self._problem = 'no episode has started'
        self._answered = 0
        self._info = self.create_publisher(PolicyInfo, 'policy/info', qos.LATCHED)
        self._chunks = self.create_publisher(ActionChunk, 'chunk', qos.RELIABLE_10)
        subscribe = self.create_subscription
        subscribe(Observation, 'observation', self._on_observation, qos.RELIABLE_10)
        subscribe(ChunkRequest, 'chunk_request', self._on_request, qos.RELIABLE_10)
        subscribe(EpisodeEvent, 'episode', self._on_episode, qos.LATCHED)
        self.create_timer(PERIOD_S, self._on_timer, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._announce(first.policy, first.inference_s)

    def _count(self) -> Iterator[types.Id]:
        seq = 0
        while True:
            seq += 1
            yield types.Id(self._session, seq)

    def _announce(self, spec: types.PolicySpec, inference_s: float) -> None:
        msg = convert.policy_info_to_msg(
            spec,
            session=self._session,
            stamp_ns=self.now_ns(),
            state='ready',
            warm_inference_s=inference_s,
        )
        self._info.publish(msg)
        self.get_logger().info(
            f'{spec.policy} {spec.name} version {spec.version} as recorded in '
            f'{self._library.first.path}'
        )

    def _on_episode(self, msg: EpisodeEvent) -> None:
        self._due, self._request = [], None
        self._tell_use()
        if msg.event != EpisodeEvent.START:
            self._left, self._problem = [], 'no episode is running'
            return
        episode = self._library.choose(int(msg.seed))
        self._left, self._problem = list(episode.replies), ''
        self._episode_id, self._recorded, self._unanswered = msg.episode_id, len(self._left), 0
        self.get_logger().info(f'{msg.episode_id}: {len(self._left)} answers of {episode.path}')
        if episode.seed != msg.seed or episode.task_kind != msg.task_kind:
            self.get_logger().warning(
                f'recorded was another scene: {episode.task_kind} seed {episode.seed}, '
                f'live is {msg.task_kind} seed {msg.seed}'
            )

    def _tell_use(self) -> None:
        """Say once what the episode that is over took of the recording."""
        if not self._episode_id:
            return
        used = self._recorded - len(self._left)
        self.get_logger().info(
            f'{self._episode_id}: used {used} of {self._recorded} recorded answers, '
            f'{len(self._left)} left over, {self._unanswered} requests not answered'
        )
        self._episode_id = ''

    def _on_observation(self, msg: Observation) -> None:
        self._observation = msg
        self._try()

    def _on_request(self, msg: ChunkRequest) -> None:
        self._request = convert.request_from_msg(msg)
        self._try()

    def _try(self) -> None:
        """Answer the newest request as soon as there is an observation for it."""
        request = self._request
        if request is None or self._observation is None:
            return
        observation = convert.observation_from_msg(self._observation)
        limit_s = self._config.max_observation_age_s
        if serving.refusal(request, observation, self.now_ns(), limit_s) is not None:
            return
        self._request = None
        if not self._left:
            self._unanswered += bool(self._episode_id)
            self._problem = 'the recorded answers are used up'
            self.get_logger().warning(self._problem, throttle_duration_sec=2.0)
            return
        self._answered += 1
        for due_ns, chunk in replies.answer(self._left.pop(0), request, observation, self._ids):
            heapq.heappush(self._due, (due_ns, chunk.id.seq, chunk))
        self._on_timer()

    def _on_timer(self) -> None:
        now_ns = self.now_ns()
        while self._due and self._due[0][0] <= now_ns:
            chunk = heapq.heappop(self._due)[2]
            self._chunks.publish(convert.chunk_to_msg(replace(chunk, stamp_ns=now_ns)))

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return what is left to be answered."""
        numbers = {'bag': self._config.bag, 'answered': self._answered, 'left': len(self._left)}
        level = DiagnosticStatus.WARN if self._problem else DiagnosticStatus.OK
        return level, self._problem or 'replaying', numbers


def main() -> None:
    """Run the node."""
    spin.main(PolicyReplayNode)


if __name__ == '__main__':
    main()
