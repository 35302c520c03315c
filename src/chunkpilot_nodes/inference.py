"""
The thread in which a policy runs: newest request, newest observation, swap between chunks.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
import threading
import time
from typing import Protocol

from chunkpilot.msg import ChunkRequest, Observation
from chunkpilot_core import types
from chunkpilot_core.config import option
from chunkpilot_core.errors import ChunkpilotError
from chunkpilot_core.policies.base import Policy
from chunkpilot_core.policies.runtime import serving
from chunkpilot_nodes import convert
import numpy as np
import torch


@dataclass(frozen=True)
class InferenceConfig:
    """How requests are answered."""

    wait_s: float = option(
        0.3, 'how long a request waits for an observation it may use', unit='s', min=0.0, max=10.0
    )
    max_observation_age_s: float = option(
        0.2, 'older observations are not used', unit='s', min=0.01, max=10.0
    )
    seed: int = option(0, 'of random numbers outside of episodes', min=0)
    extra_latency_s: float = option(
        0.0, 'added to every inference, to try slow models', unit='s', min=0.0, max=10.0
    )


class Host(Protocol):
    """What the thread needs of its node; all of it may be called from any thread."""

    session: int
    faults: int

    def now_ns(self) -> int:
        """Return ROS time [ns]."""

    def publish(self, chunk: types.ActionChunk) -> None:
        """Send a chunk."""

    def announce_ready(self, spec: types.PolicySpec, warm_s: float) -> None:
        """Tell what is served from now on."""

    def warn(self, text: str) -> None:
        """Log a warning, throttled."""


class InferenceWorker:
    """Serves one policy until another one is swapped in."""

    def __init__(self, host: Host, config: InferenceConfig, policy: Policy) -> None:
        self._host, self._config, self._policy = host, config, policy
        self._policy.reset(config.seed)
        self.newest = policy.spec
        self._wake = threading.Condition()
        self._request: ChunkRequest | None = None
        self._observation: Observation | None = None
        self._offer: tuple[Policy, float, bool] | None = None
        self._episode, self._seed = False, config.seed
        self._reseed = False
        self._stopping = threading.Event()
        self._seq = 0
        self._durations_s: deque[float] = deque(maxlen=500)
        self._counters: Counter[str] = Counter()
        self._problem = ''
        self._thread = threading.Thread(target=self._run, name='inference', daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; an inference that runs is finished first."""
        self._stopping.set()
        with self._wake:
            self._wake.notify()
        self._thread.join(timeout=2.0)

    def put_observation(self, msg: Observation) -> None:
        """Keep the newest observation."""
        with self._wake:
            self._observation = msg
            self._wake.notify()

    def put_request(self, msg: ChunkRequest) -> None:
        """Keep the newest request; one that still waits is forgotten."""
        with self._wake:
            self._counters['requests'] += 1
            self._counters['superseded'] += self._request is not None
            self._request = msg
            self._wake.notify()

    def set_episode(self, running: bool, seed: int) -> None:
        """An episode has started, with its seed, or ended."""
        with self._wake:
            self._episode = running
            if running:
                self._seed, self._reseed = seed, True
            self._wake.notify()

    def offer(self, policy: Policy, warm_s: float, now: bool) -> str:
        """
        Swap to a policy that was loaded and warmed up; a later offer replaces one that waits.

        :param now: between chunks, else at the end of the episode
        :returns: when it is swapped in, in words
        """
        with self._wake:
            self._offer, self.newest = (policy, warm_s, now), policy.spec
            waits = self._episode and not now
            self._wake.notify()
        return 'swaps in at the end of the episode' if waits else 'swaps in before the next chunk'

    def diagnose(self) -> tuple[str, Mapping[str, object]]:
        """Return the last problem ('' when the last request was answered) and numbers."""
        numbers: dict[str, object] = {'version': self._policy.spec.version, **self._counters}
        if self._durations_s:
            p50, p99 = np.percentile(np.array(self._durations_s), (50, 99))
            numbers |= {'inference_ms_p50': 1e3 * p50, 'inference_ms_p99': 1e3 * p99}
        return self._problem, numbers

    def _run(self) -> None:
        torch.set_num_threads(1)
        while not self._stopping.is_set():
            with self._wake:
                self._wake.wait_for(self._work_is_due)
                request, self._request = self._request, None
            try:
                self._swap()
                if request is not None:
                    self._serve(convert.request_from_msg(request))
            except Exception as error:  # one bad message or inference must not end the service
                self._host.faults += not isinstance(error, ChunkpilotError)
                self._fail(f'{type(error).__name__}: {error}')

    def _work_is_due(self) -> bool:
        return self._stopping.is_set() or self._request is not None or self._swap_is_due()

    def _swap_is_due(self) -> bool:
        return self._offer is not None and (self._offer[2] or not self._episode)

    def _swap(self) -> None:
        with self._wake:
            offer = self._offer if self._swap_is_due() else None
            reseed, self._reseed = self._reseed or offer is not None, False
            if offer is not None:
                self._offer, self._policy = None, offer[0]
        if reseed:
            self._policy.reset(self._seed)
        if offer is not None:
            self._counters['swaps'] += 1
            self._host.announce_ready(offer[0].spec, offer[1])

    def _serve(self, request: types.ChunkRequest) -> None:
        deadline = time.monotonic() + self._config.wait_s
        while True:
            tried = self._observation
            problem = self._try(request, tried)
            if problem is None:
                return
            with self._wake:
                self._wake.wait_for(
                    lambda tried=tried: self._observation is not tried or self._interrupted(),  # type: ignore[misc]
                    deadline - time.monotonic(),
                )
                if self._interrupted():
                    return
                if self._observation is tried or time.monotonic() >= deadline:
                    break
        self._counters['unanswered'] += 1
        self._fail(f'request {request.id.seq} not answered: {problem}')

    def _interrupted(self) -> bool:
        return self._stopping.is_set() or self._request is not None

    def _try(self, request: types.ChunkRequest, msg: Observation | None) -> str | None:
        """Answer a request from an observation; return why it can't be."""
        started = time.monotonic()
        now_ns, limit_s = self._host.now_ns(), self._config.max_observation_age_s
        observation = None if msg is None else convert.observation_from_msg(msg)
        problem = serving.refusal(request, observation, now_ns, limit_s)
        if problem is not None or observation is None:
            return problem
        parts, self._problem = 0, ''
        try:
            for chunk in serving.stream(self._policy, observation, request):
                if not parts:
                    self._stopping.wait(self._config.extra_latency_s)
                    self._durations_s.append(time.monotonic() - started)
                parts += 1
                self._publish(chunk, time.monotonic() - started)
                if self._interrupted():  # whoever asked does not want the rest any more
                    break
        except ChunkpilotError as error:
            if not parts:
                return str(error)
            self._fail(f'request {request.id.seq} answered up to part {parts} only: {error}')
        self._counters['chunks'] += 1
        return None

    def _publish(self, chunk: types.ActionChunk, duration_s: float) -> None:
        self._seq += 1
        chunk_id = types.Id(self._host.session, self._seq)
        self._host.publish(replace(chunk, id=chunk_id, inference_s=duration_s))

    def _fail(self, problem: str) -> None:
        self._problem = problem
        self._host.warn(problem)
