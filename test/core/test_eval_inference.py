"""The policy on the virtual clock: latencies that repeat, answers that take time."""

from chunkpilot_core import spaces
from chunkpilot_core.errors import ConfigError, InvalidDataError
from chunkpilot_core.eval.inference import VirtualInference
from chunkpilot_core.eval.latency import LatencyModel
from chunkpilot_core.eval.motion import jerk
from chunkpilot_core.policies.base import Policy
from chunkpilot_core.types import (
    ChunkRequest,
    Health,
    Id,
    Observation,
    PolicySpec,
)
import numpy as np
import pytest

MS = 1_000_000
SPEC = PolicySpec('still', 'still', 1, spaces.ee_delta_space(), 4, 0.04, ('ee.x',))


class Still(Policy):
    """Answers with rows of zeros, in as many parts as wanted."""

    spec = SPEC

    def __init__(self, parts: int = 1, error: str = '') -> None:
        self.parts, self.error = parts, error

    def act(self, observation, request):
        if self.error:
            raise InvalidDataError(self.error)
        chunk = self.chunk(observation, request, np.zeros((4, 4), np.float32))
        return chunk if self.parts == 1 else iter([chunk] * self.parts)


def _request(seq: int, not_before_ns: int = 0) -> ChunkRequest:
    return ChunkRequest(Id(1, seq), 0, 1, 't', 'start', 0, not_before_ns=not_before_ns)


def _observation(stamp_ms: int, health=Health.OK) -> Observation:
    return Observation(
        Id(1, stamp_ms),
        stamp_ms * MS,
        stamp_ms * MS,
        ('ee.x',),
        np.zeros(1, np.float32),
        task_id='t',
        health=health,
    )


def _latency(mean_s: float = 0.05, **more) -> LatencyModel:
    model = LatencyModel(mean_s, **more)
    model.reset(0)
    return model


def test_an_answer_takes_the_latency_and_uses_what_was_seen_then() -> None:
    inference = VirtualInference(Still(), _latency(), 7)
    inference.request(_request(1), 100 * MS)
    assert inference.work(_observation(90), 100 * MS) == []
    assert inference.work(_observation(140), 149 * MS) == []
    (chunk,) = inference.work(_observation(140), 150 * MS)
    assert (chunk.observation_stamp_ns, chunk.stamp_ns) == (90 * MS, 150 * MS)
    assert (chunk.id, chunk.request_id) == (Id(7, 1), Id(1, 1))
    assert chunk.inference_s == pytest.approx(0.05)


def test_one_inference_at_a_time_and_the_newest_request_wins() -> None:
    inference = VirtualInference(Still(), _latency(), 7)
    inference.request(_request(1), 0)
    inference.work(_observation(0), 0)
    inference.request(_request(2), 10 * MS)
    inference.work(_observation(10), 10 * MS)
    inference.request(_request(3), 20 * MS)
    assert inference.work(_observation(20), 49 * MS) == []
    (first,) = inference.work(_observation(50), 50 * MS)
    (second,) = inference.work(_observation(100), 100 * MS)
    assert (first.request_id.seq, second.request_id.seq) == (1, 3)
    assert second.observation_stamp_ns == 50 * MS


def test_a_request_waits_for_an_observation_that_it_may_use() -> None:
    inference = VirtualInference(Still(), _latency(0.0), 7)
    inference.request(_request(1, not_before_ns=30 * MS), 30 * MS)
    assert inference.work(_observation(20), 30 * MS) == []
    assert inference.work(_observation(30, Health.BAD), 35 * MS) == []
    (chunk,) = inference.work(_observation(40), 40 * MS)
    assert chunk.observation_stamp_ns == 40 * MS
    assert inference.problems == []


@pytest.mark.parametrize('error', ['', 'inputs not known: ee.x'])
def test_what_is_not_answered_is_told(error: str) -> None:
    inference = VirtualInference(Still(error=error), _latency(), 7)
    inference.request(_request(1), 0)
    seen = _observation(0) if error else None
    for now_ms in range(0, 400, 10):
        assert inference.work(seen, now_ms * MS) == []
    assert len(inference.problems) == 1
    assert (error or 'no observation') in inference.problems[0]


def test_parts_arrive_evenly() -> None:
    inference = VirtualInference(Still(parts=5), _latency(0.05), 7)
    inference.request(_request(1), 0)
    arrived = [len(inference.work(_observation(0), now_ms * MS)) for now_ms in range(0, 60, 10)]
    assert arrived == [0, 1, 1, 1, 1, 1]


def test_measured_time_comes_on_top() -> None:
    clock = iter(range(0, 1000 * MS, 30 * MS))
    inference = VirtualInference(Still(), _latency(0.05), 7, lambda: next(clock))
    inference.request(_request(1), 0)
    assert inference.work(_observation(0), 0) == []
    assert inference.work(_observation(0), 79 * MS) == []
    assert len(inference.work(_observation(0), 80 * MS)) == 1


def test_jitter_has_its_mean_and_deviation_and_repeats() -> None:
    model = LatencyModel(0.15, 0.05)
    model.reset(3)
    first = [model() for _ in range(2000)]
    assert np.mean(first) == pytest.approx(0.15, abs=0.004)
    assert np.std(first) == pytest.approx(0.05, abs=0.004)
    assert min(first) >= 0.0
    model.reset(3)
    assert [model() for _ in range(2000)] == first
    model.reset(4)
    assert [model() for _ in range(3)] != first[:3]
    known = model.history(500, 4)
    assert np.mean(known) == pytest.approx(0.15, abs=0.01)
    assert known == model.history(500, 4)
    following = [model() for _ in range(2)]
    model.reset(4)
    assert [model() for _ in range(5)][3:] == following  # asking for history changes nothing


def test_a_trace_is_played_round_and_round(tmp_path) -> None:
    file = tmp_path / 'latency.txt'
    file.write_text('# seconds\n0.1\n0.2\n0.3\n')
    model = LatencyModel(trace=str(file))
    model.reset(5)
    played = [model() for _ in range(6)]
    assert sorted(played[:3]) == [0.1, 0.2, 0.3]
    assert played[3:] == played[:3]


@pytest.mark.parametrize('content', ['', '0.1\n-0.2\n', '0.1\nnan\n', 'a\n', '0.1 0.2\n'])
def test_a_wrong_trace_is_named(tmp_path, content: str) -> None:
    file = tmp_path / 'latency.txt'
    file.write_text(content)
    with pytest.raises(ConfigError, match=r'latency\.txt'):
        LatencyModel(trace=str(file))


def test_negative_latency_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'-0\.1'):
        LatencyModel(-0.1)


def test_jerk_of_a_cubic_is_constant() -> None:
    time_s = np.arange(20) * 0.01
    path = np.outer(time_s**3, [1.0, 0.0, 2.0])
    peak, rms = jerk(path, 0.01)
    assert peak == pytest.approx(6 * np.sqrt(5), rel=1e-6)
    assert rms == pytest.approx(6 * np.sqrt(5), rel=1e-6)
    assert all(np.isnan(jerk(path[:3], 0.01)))
