"""
The policy node as a process: it answers over DDS, and what is wrong never replaces what works.
"""

from collections.abc import Iterator
from dataclasses import replace
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip('rclpy')

from chunkpilot.msg import (
    ActionChunk,
    ChunkRequest,
    EpisodeEvent,
    Observation,
    PolicyInfo,
    PolicyVersion,
)
from chunkpilot.srv import LoadPolicy
from chunkpilot_core import spaces, types
from chunkpilot_core.policies.mlp import MlpPolicy
from chunkpilot_core.policies.runtime import checkpoint
from chunkpilot_nodes import convert, qos
import domain_coordinator
import rclpy
from rclpy.executors import SingleThreadedExecutor
import torch

pytestmark = pytest.mark.ros

SPACE = spaces.ee_delta_space()
NAMES = ('ee.x', 'object.x', 'goal.x')


def make_checkpoint(folder: Path, version: int, *, broken: bool = False) -> Path:
    torch.manual_seed(version)
    spec = types.PolicySpec('mlp', 'reacher', version, SPACE, 16, 0.04, NAMES, max_row_age_s=1.14)
    checkpoint.save(MlpPolicy(MlpPolicy.Config(width=16, depth=2), spec), folder)
    if broken:
        weights = folder / 'weights.safetensors'
        weights.write_bytes(weights.read_bytes()[:-4])
    return folder


class Peer:
    """The rest of the graph."""

    def __init__(self, domain: int) -> None:
        self.domain = domain
        self.context = rclpy.context.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('peer', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.chunks: list[ActionChunk] = []
        self.infos: list[PolicyInfo] = []
        make = self.node.create_publisher
        self.observations = make(Observation, 'observation', qos.RELIABLE_10)
        self.requests = make(ChunkRequest, 'chunk_request', qos.RELIABLE_10)
        self.episodes = make(EpisodeEvent, 'episode', qos.LATCHED)
        self.versions = make(PolicyVersion, 'policy/version', qos.LATCHED)
        self.node.create_subscription(ActionChunk, 'chunk', self.chunks.append, qos.RELIABLE_10)
        self.node.create_subscription(PolicyInfo, 'policy/info', self.infos.append, qos.LATCHED)
        self.loader = self.node.create_client(LoadPolicy, 'policy/load')
        self.process: subprocess.Popen[str] | None = None
        self.seq = 0

    def start(self, *values: str) -> None:
        words = [word for value in values for word in ('-p', value)]
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'chunkpilot_nodes.policy_node', '--ros-args', *words],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, 'ROS_DOMAIN_ID': str(self.domain), 'OMP_NUM_THREADS': '1'},
        )

    def start_ready(self, *values: str) -> None:
        # patient, so that a busy machine does not decide about the tests
        self.start('wait_s:=1.0', 'max_observation_age_s:=5.0', *values)
        self.wait(lambda: self.infos and self.infos[-1].ready, 40.0)
        everyone = (self.observations, self.requests, self.episodes)
        self.wait(lambda: all(one.get_subscription_count() for one in everyone))
        self.wait(lambda: self.loader.service_is_ready())
        self.wait(lambda: self.node.count_publishers('chunk') > 0)
        time.sleep(0.2)  # matched in the other direction, too

    def wait(self, condition, seconds: float = 10.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f'not within {seconds} s'
            assert self.process is None or self.process.poll() is None, 'the node died'
            self.executor.spin_once(timeout_sec=0.02)

    def spin(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.02)

    def observe(self, object_x: float = 0.1, task_id: str = 't') -> int:
        self.seq += 1
        now_ns = self.node.get_clock().now().nanoseconds
        values = np.array([0.05, object_x, 0.2], np.float32)
        seen = types.Observation(
            types.Id(5, self.seq), now_ns, now_ns, NAMES, values, task_id=task_id
        )
        self.observations.publish(convert.observation_to_msg(seen))
        return now_ns

    def request(self, **changes: object) -> types.Id:
        self.seq += 1
        now_ns = self.node.get_clock().now().nanoseconds
        wanted = types.ChunkRequest(types.Id(6, self.seq), now_ns, 77, 't', 'start', now_ns)
        self.requests.publish(convert.request_to_msg(replace(wanted, **changes)))
        return wanted.id

    def ask(self, **changes: object) -> types.ActionChunk:
        """Observe, request, and return the answer."""
        self.observe()
        wanted = self.request(**changes)
        return self.answer(wanted)

    def answer(self, wanted: types.Id) -> types.ActionChunk:
        def mine() -> list[types.ActionChunk]:
            chunks = [convert.chunk_from_msg(msg) for msg in self.chunks]
            return [chunk for chunk in chunks if chunk.request_id == wanted]

        self.wait(lambda: bool(mine()))
        return mine()[0]

    def load(self, path: Path | str, **fields: object) -> LoadPolicy.Response:
        future = self.loader.call_async(LoadPolicy.Request(path=str(path), **fields))
        self.wait(future.done)
        return future.result()

    def episode(self, event: int) -> None:
        self.episodes.publish(EpisodeEvent(event=event, episode_id='e', seed=3))
        self.spin(0.2)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@pytest.fixture(name='peer')
def _peer() -> Iterator[Peer]:
    with domain_coordinator.domain_id() as domain:
        peer = Peer(int(domain))
        try:
            yield peer
        finally:
            peer.close()


def test_answers_from_an_observation_that_it_may_use(peer: Peer, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / 'base', 1)
    peer.start_ready(f'checkpoint:={path}')
    spec = convert.policy_info_from_msg(peer.infos[-1])
    assert (spec.name, spec.horizon, spec.input_names) == ('reacher', 16, NAMES)
    assert spec.space == SPACE
    assert peer.infos[-1].warm_inference_s > 0.0

    seen_ns = peer.observe()
    chunk = peer.answer(peer.request())
    chunk.validate(SPACE)
    assert (chunk.start_ns, chunk.observation_stamp_ns) == (seen_ns, seen_ns)
    assert (chunk.arm_epoch, chunk.task_id, chunk.policy_version) == (77, 't', 1)
    assert 0.0 < chunk.inference_s < 0.5
    assert chunk.stamp_ns >= seen_ns
    expected = checkpoint.load(path).act(
        types.Observation(types.Id(), 1, 1, NAMES, np.array([0.05, 0.1, 0.2], np.float32)),
        types.ChunkRequest(types.Id(), 1, 1, 't', '', 1),
    )
    np.testing.assert_allclose(chunk.actions, expected.actions, atol=1e-5)

    # a request that forbids what there is waits for what comes
    wanted = peer.request(not_before_ns=peer.node.get_clock().now().nanoseconds)
    peer.spin(0.1)
    newer_ns = peer.observe()
    later = peer.answer(wanted)
    assert later.start_ns == newer_ns
    assert later.id.newer_than(chunk.id)
    assert later.id.session == chunk.id.session

    # of another task, unknown inputs, silence: no chunk, and it says why
    count = len(peer.chunks)
    peer.observe(task_id='another')
    peer.request()
    peer.spin(1.5)
    peer.observe(object_x=float('nan'))
    peer.request()
    peer.spin(1.5)
    assert len(peer.chunks) == count
    assert peer.ask().request_id.seq == peer.seq  # and goes on
    code, errors = peer.end()
    assert code == 0
    assert "task 'another'" in errors
    assert 'Traceback' not in errors


def test_only_good_checkpoints_replace_the_one_in_force(peer: Peer, tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / 'base', 1)
    newer = make_checkpoint(tmp_path / 'newer', 2)
    broken = make_checkpoint(tmp_path / 'broken', 3, broken=True)
    peer.start_ready(f'checkpoint:={base}', 'follow_versions:=true')
    before = peer.ask()
    for path, fields, said in (
        (broken, {}, 'sha256'),
        (tmp_path / 'nowhere', {}, 'no such checkpoint'),
        (newer, {'version': 9}, 'version 2, asked for 9'),
        (newer, {'sha256': '0' * 64}, 'the caller says'),
    ):
        response = peer.load(path, **fields)
        assert not response.success
        assert said in response.message
        assert response.version == 1
    np.testing.assert_array_equal(peer.ask().actions, before.actions)

    peer.episode(EpisodeEvent.START)
    response = peer.load(newer)
    assert response.success
    assert 'end of the episode' in response.message
    assert peer.ask().policy_version == 1
    peer.episode(EpisodeEvent.END)
    peer.wait(lambda: peer.infos[-1].version == 2 and peer.infos[-1].ready)
    after = peer.ask()
    assert after.policy_version == 2
    assert np.any(after.actions != before.actions)

    peer.episode(EpisodeEvent.START)
    assert peer.load(base, now=True).success
    peer.wait(lambda: peer.infos[-1].version == 1)
    assert peer.ask().policy_version == 1

    # an announcement takes the same way: broken ones are ignored, good ones wait for the end
    for path, version, accepted in ((broken, 3, True), (newer, 2, False), (newer, 2, True)):
        peer.versions.publish(
            PolicyVersion(policy='mlp', version=version, path=str(path), accepted=accepted)
        )
        peer.spin(0.5)
        assert peer.ask().policy_version == 1
    peer.episode(EpisodeEvent.END)
    peer.wait(lambda: peer.infos[-1].version == 2)
    assert peer.ask().policy_version == 2
    code, errors = peer.end(signal.SIGINT)
    assert code == 0
    assert 'Traceback' not in errors


def test_a_slow_policy_answers_the_newest_request(peer: Peer, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / 'base', 1)
    peer.start_ready(f'checkpoint:={path}', 'extra_latency_s:=0.3')
    peer.observe()
    first = peer.request()
    peer.spin(0.1)
    forgotten, newest = peer.request(), peer.request()
    peer.spin(0.25)
    peer.observe()
    chunk = peer.answer(newest)
    assert chunk.inference_s >= 0.3
    answered = [convert.id_from_msg(msg.request_id) for msg in peer.chunks]
    assert answered == [first, newest]
    assert forgotten not in answered


@pytest.mark.parametrize(
    ('value', 'said'),
    [
        ('checkpoint:=mlp_pick_and_plce', "unknown checkpoint 'mlp_pick_and_plce'"),
        ('chekpoint:=x', "Did you mean 'checkpoint'"),
        ('wait_s:=-1.0', 'wait_s'),
    ],
)
def test_a_wrong_start_ends_with_one_clear_line(
    peer: Peer, tmp_path: Path, value: str, said: str
) -> None:
    good = f'checkpoint:={make_checkpoint(tmp_path / "base", 1)}'
    peer.start(*([value] if value.startswith('checkpoint') else [good, value]))
    assert peer.process is not None
    end = time.monotonic() + 40.0
    while peer.process.poll() is None:
        assert time.monotonic() < end
        peer.executor.spin_once(timeout_sec=0.02)
    peer.spin(0.3)  # what it sent last
    code, errors = peer.end()
    assert code == 1
    assert said in errors
    assert 'Traceback' not in errors
    if value.startswith('checkpoint'):
        assert any(said in info.state and not info.ready for info in peer.infos)
