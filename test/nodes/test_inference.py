"""The inference thread with a policy that streams; its host is played by the test."""

from collections.abc import Iterator
from dataclasses import replace
import time

import numpy as np
import pytest

pytest.importorskip('rclpy')

from chunkpilot_core import spaces
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.policies.base import Policy
from chunkpilot_core.types import ActionChunk, ChunkPart, ChunkRequest, Id, Observation, PolicySpec
from chunkpilot_nodes import convert
from chunkpilot_nodes.inference import InferenceConfig, InferenceWorker

pytestmark = pytest.mark.ros


class Streaming(Policy):
    """Four rows at a time, each after a little work; may fail on the way."""

    def __init__(self, fails_at: int = 9, work_s: float = 0.03) -> None:
        self.spec = PolicySpec('streaming', 'streaming', 1, spaces.ee_delta_space(), 16, 0.04)
        self.fails_at, self.work_s = fails_at, work_s

    def act(self, observation: Observation, request: ChunkRequest) -> Iterator[ActionChunk]:
        whole = self.chunk(observation, request, np.zeros((16, 4), np.float32))
        for group in range(4):
            time.sleep(self.work_s)
            if group == self.fails_at:
                raise InvalidDataError('the network gave up')
            part = ChunkPart(4 * group, 4, observation.id, observation.stamp_ns, 1, group == 3, 4)
            yield replace(whole, parts=(part,))


class Host:
    """Collects what is published, with the time."""

    session, faults = 9, 0

    def __init__(self) -> None:
        self.chunks: list[tuple[float, ActionChunk]] = []
        self.warnings: list[str] = []

    def now_ns(self) -> int:
        return time.time_ns()

    def publish(self, chunk: ActionChunk) -> None:
        self.chunks.append((time.monotonic(), chunk))

    def announce_ready(self, spec: PolicySpec, warm_s: float) -> None:
        pass

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture
def host() -> Host:
    return Host()


def served(host: Host, policy: Policy, requests: int = 1, apart_s: float = 0.4) -> InferenceWorker:
    """Let a worker answer requests, and end it."""
    worker = InferenceWorker(host, InferenceConfig(), policy)
    worker.start()
    try:
        for seq in range(1, requests + 1):
            now = time.time_ns()
            seen = Observation(Id(8, seq), now, now, (), np.zeros(0, np.float32))
            worker.put_observation(convert.observation_to_msg(seen))
            request = ChunkRequest(Id(7, seq), now, 0, '', 'test', now)
            worker.put_request(convert.request_to_msg(request))
            time.sleep(apart_s)
    finally:
        worker.stop()
    return worker


def test_parts_are_published_as_they_become_known(host: Host) -> None:
    worker = served(host, Streaming())
    assert [chunk.parts[0].first_row for _, chunk in host.chunks] == [0, 4, 8, 12]
    assert {chunk.request_id for _, chunk in host.chunks} == {Id(7, 1)}
    assert [chunk.id.seq for _, chunk in host.chunks] == [1, 2, 3, 4]
    times = [at for at, _ in host.chunks]
    assert np.diff(times).min() > 0.02
    problem, numbers = worker.diagnose()
    assert (problem, numbers['chunks']) == ('', 1)
    assert numbers['inference_ms_p50'] < 90.0  # until the first rows


def test_a_newer_request_ends_the_stream_of_an_older_one(host: Host) -> None:
    served(host, Streaming(), requests=2, apart_s=0.05)
    time.sleep(0.01)
    answered = [chunk.request_id.seq for _, chunk in host.chunks]
    assert answered.count(1) < 4


def test_a_stream_that_breaks_off_is_told(host: Host) -> None:
    worker = served(host, Streaming(fails_at=2))
    assert len(host.chunks) == 2
    assert 'up to part 2 only: the network gave up' in worker.diagnose()[0]


def test_a_policy_that_fails_at_once_gives_no_answer(host: Host) -> None:
    worker = served(host, Streaming(fails_at=0), apart_s=0.8)
    assert not host.chunks
    assert 'not answered: the network gave up' in worker.diagnose()[0]
