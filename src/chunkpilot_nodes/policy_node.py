"""
Answers ``chunk_request`` with ``chunk`` from the newest ``observation``.

Inference runs in a worker thread with a queue of one: the newest request wins. New weights are
loaded and warmed up in another thread and swapped between chunks, by default at the end of the
episode; whatever is wrong with them, the policy that runs stays.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
import secrets
import time

from chunkpilot.msg import (
    ActionChunk,
    ChunkRequest,
    EpisodeEvent,
    Observation,
    PolicyInfo,
    PolicyVersion,
)
from chunkpilot.srv import LoadPolicy
from chunkpilot_core import types
from chunkpilot_core.config import option
from chunkpilot_core.errors import ChunkpilotError
from chunkpilot_core.policies.runtime import serving
from chunkpilot_nodes import convert, params, qos, spin
from chunkpilot_nodes.inference import InferenceConfig, InferenceWorker
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.task import Future
import torch


@dataclass(frozen=True)
class PolicyConfig(InferenceConfig):
    """Which policy is served, and how."""

    checkpoint: str = option('mlp_pick_and_place', 'folder, or name in config/policies')
    follow_versions: bool = option(False, 'load versions that policy/version announces')


class PolicyNode(spin.SupervisedNode):
    """Callbacks only leave messages for the worker."""

    def __init__(self) -> None:
        super().__init__('policy_node')
        torch.set_num_threads(1)
        config = params.declare(self, PolicyConfig)
        self.session = secrets.randbits(64)
        self._info = self.create_publisher(PolicyInfo, 'policy/info', qos.LATCHED)
        self._announce('loading')
        try:
            policy, warm_s = serving.prepare(config.checkpoint, 0, '', time.monotonic_ns)
        except ChunkpilotError as error:
            self._announce(f'error: {error}')
            self.wait_until_heard(self._info, find_s=3.0)
            raise
        self._loader = ThreadPoolExecutor(1, 'loader')
        self.worker = InferenceWorker(self, config, policy)
        self._connect(config)
        self.worker.start()
        self.announce_ready(policy.spec, warm_s)

    def _connect(self, config: PolicyConfig) -> None:
        worker = self.worker
        self._chunks = self.create_publisher(ActionChunk, 'chunk', qos.RELIABLE_10)
        self.create_subscription(
            Observation, 'observation', worker.put_observation, qos.RELIABLE_10
        )
        self.create_subscription(
            ChunkRequest, 'chunk_request', worker.put_request, qos.RELIABLE_10
        )
        self.create_subscription(EpisodeEvent, 'episode', self._on_episode, qos.LATCHED)
        self.create_service(LoadPolicy, 'policy/load', self._on_load)
        if config.follow_versions:
            self.create_subscription(
                PolicyVersion, 'policy/version', self._on_version, qos.LATCHED
            )

    def publish(self, chunk: types.ActionChunk) -> None:
        """Publish a chunk; called by the worker."""
        self._chunks.publish(convert.chunk_to_msg(replace(chunk, stamp_ns=self.now_ns())))

    def warn(self, text: str) -> None:
        """Log a warning, throttled; called by the worker."""
        self.get_logger().warning(text, throttle_duration_sec=2.0)

    def announce_ready(self, spec: types.PolicySpec, warm_s: float) -> None:
        """Latch what is served from now on."""
        self._announce('ready', spec, warm_s)
        self.get_logger().info(
            f'{spec.policy} {spec.name} version {spec.version} is ready: {spec.horizon} rows of '
            f'{spec.dt_s} s, inference {1e3 * warm_s:.1f} ms'
        )

    def _announce(
        self, state: str, spec: types.PolicySpec | None = None, warm_s: float = 0.0
    ) -> None:
        stamp_ns = self.now_ns()
        if spec is None:
            msg = PolicyInfo(session=self.session, state=state)
            msg.header.stamp = convert.to_time(stamp_ns)
        else:
            msg = convert.policy_info_to_msg(
                spec,
                session=self.session,
                stamp_ns=stamp_ns,
                state=state,
                warm_inference_s=warm_s,
            )
        self._info.publish(msg)

    def _on_episode(self, msg: EpisodeEvent) -> None:
        self.worker.set_episode(msg.event == EpisodeEvent.START, int(msg.seed))

    async def _on_load(
        self, request: LoadPolicy.Request, response: LoadPolicy.Response
    ) -> LoadPolicy.Response:
        done = Future(executor=self.executor)
        self._loader.submit(
            self._load, request.path, int(request.version), request.sha256, request.now, done
        )
        response.success, response.message, response.version = await done
        return response

    def _on_version(self, msg: PolicyVersion) -> None:
        newest = self.worker.newest
        if msg.policy != newest.policy:
            self.get_logger().warning(
                f'version {msg.version} of {msg.policy} ignored: {newest.policy} is served'
            )
        elif msg.accepted and msg.version != newest.version:
            self._loader.submit(self._load, msg.path, int(msg.version), msg.sha256, False, None)

    def _load(self, path: str, version: int, sha256: str, now: bool, done: Future | None) -> None:
        try:
            policy, warm_s = serving.prepare(path, version, sha256, time.monotonic_ns)
            when = self.worker.offer(policy, warm_s, now)
            result = (True, f'{policy.spec.name} version {policy.spec.version} {when}')
        except Exception as error:  # a caller waits for an answer, whatever happened
            result = (False, f'the policy in force stays: {error}')
            self.get_logger().error(f'policy/load: {result[1]}')
        if done is not None:
            done.set_result((*result, self.worker.newest.version))

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return inference times and how requests ended."""
        problem, numbers = self.worker.diagnose()
        level = DiagnosticStatus.WARN if problem else DiagnosticStatus.OK
        return level, problem or 'serving', numbers

    def shutdown(self) -> None:
        """End the threads."""
        self.worker.stop()
        self._loader.shutdown(wait=False, cancel_futures=True)


def main() -> None:
    """Run the node."""
    spin.main(PolicyNode)


if __name__ == '__main__':
    main()
