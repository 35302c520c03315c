"""The policy as a process of its own on the virtual clock: one inference at a time."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
import heapq

from chunkpilot_core.errors import ChunkpilotError
from chunkpilot_core.eval.latency import LatencyModel
from chunkpilot_core.policies.base import Policy
from chunkpilot_core.policies.runtime import serving
from chunkpilot_core.types import ActionChunk, ChunkRequest, nanoseconds, Observation, seconds

MAX_OBSERVATION_AGE_S = 0.2
WAIT_S = 0.3  # how long a request waits for an observation that it may use, as in policy_node


@dataclass(order=True, slots=True)
class _Due:
    ready_ns: int
    order: int
    chunk: ActionChunk


class VirtualInference:
    """
    Answers requests from the newest observation, by the rules of policy_node.

    The latency begins when the inference does. Parts of a streamed chunk arrive evenly over it.
    """

    def __init__(
        self,
        policy: Policy,
        latency: LatencyModel,
        session: int,
        stopwatch_ns: Callable[[], int] | None = None,
    ) -> None:
        """
        Serve a policy.

        :param stopwatch_ns: a clock; the measured time of inference is then added to the latency,
            and results are no longer reproducible
        """
        self._policy, self._latency, self._session = policy, latency, session
        self._stopwatch_ns = stopwatch_ns
        self._waiting: deque[tuple[int, ChunkRequest]] = deque()
        self._due: list[_Due] = []
        self._free_ns = 0
        self._answers = 0
        self.problems: list[str] = []

    def request(self, request: ChunkRequest, now_ns: int) -> None:
        """Take a request; the newest one waiting replaces older ones."""
        self._waiting.clear()
        self._waiting.append((now_ns, request))

    def work(self, observation: Observation | None, now_ns: int) -> list[ActionChunk]:
        """
        Begin what can begin now and return what is ready.

        :param observation: the newest one
        """
        if self._waiting and now_ns >= self._free_ns:
            self._begin(observation, now_ns)
        ready = []
        while self._due and self._due[0].ready_ns <= now_ns:
            ready.append(replace(heapq.heappop(self._due).chunk, stamp_ns=now_ns))
        return ready

    def _begin(self, observation: Observation | None, now_ns: int) -> None:
        asked_ns, request = self._waiting[0]
        problem = serving.refusal(request, observation, now_ns, MAX_OBSERVATION_AGE_S)
        if problem is None and observation is not None:
            self._waiting.clear()
            problem = self._infer(observation, request, now_ns)
        elif seconds(now_ns - asked_ns) >= WAIT_S:
            self._waiting.clear()
        else:
            return
        if problem is not None:
            self.problems.append(f'request {request.id.seq} not answered: {problem}')

    def _infer(self, observation: Observation, request: ChunkRequest, now_ns: int) -> str | None:
        latency_ns = nanoseconds(self._latency())
        started = self._stopwatch_ns() if self._stopwatch_ns else 0
        try:
            chunks = serving.answer(self._policy, observation, request)
        except ChunkpilotError as error:
            return str(error)
        if self._stopwatch_ns:
            latency_ns += self._stopwatch_ns() - started
        for i, chunk in enumerate(chunks):
            self._answers += 1
            ready_ns = now_ns + latency_ns * (i + 1) // len(chunks)
            named = replace(
                chunk,
                id=replace(chunk.id, session=self._session, seq=self._answers),
                inference_s=seconds(latency_ns),
            )
            heapq.heappush(self._due, _Due(ready_ns, self._answers, named))
        self._free_ns = now_ns + latency_ns
        return None
