"""
Looks at every chunk before it runs, in a process of its own: roll-outs must delay no control loop.

Topics in: ``chunk``, ``verdict`` (where the arm is sent), ``joint_states`` (where it is, while it
is sent nowhere), ``obstacles``, ``policy/info`` (action space). Out: ``chunk_verdict`` for each
chunk. Service: ``guard/dry_run_chunk`` judges a chunk without running it. All the thinking is in
:class:`chunkpilot_core.prediction.predictor.Predictor`.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
import time
from typing import Any

from chunkpilot.msg import ActionChunk, ChunkVerdict, ObstacleList, PolicyInfo, SafetyVerdict
from chunkpilot.srv import DryRunChunk
from chunkpilot_core import robot as robots
from chunkpilot_core.clearance.runtime import choice
from chunkpilot_core.config import option
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.prediction.predictor import Predictor
from chunkpilot_core.types import ArmState, NS_PER_S, seconds
from chunkpilot_core.types import JointState as JointStateData
from chunkpilot_core.yaml_values import MAX_POSITION
from chunkpilot_nodes import convert, lasting, params, qos, spin
from diagnostic_msgs.msg import DiagnosticStatus
import numpy as np
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import JointState

FRESH_S = 0.5  # an older setpoint or measurement is none


@dataclass(frozen=True)
class Config:
    """Which robot, and how distances are computed."""

    robot: str = option('panda', 'robot YAML file, or a name in config/robots')
    distances: str = option('auto', "a plug-in of the family clearance, or 'auto'")


class PredictNode(spin.SupervisedNode):
    """Thin adapter around :class:`Predictor`."""

    def __init__(self) -> None:
        super().__init__('predict_node')
        config = params.declare(self, Config)
        prediction = params.declare(self, Predictor.Config)
        self._robot = robots.load(config.robot)
        self._clearance = clearance = choice.make(config.distances, self._robot)
        self._predictor = Predictor(self._robot, prediction, clearance)
        self._dry = Predictor(self._robot, prediction, clearance)
        self._sent: bytes | None = None  # newest messages, read when a chunk comes
        self._measured: bytes | None = None
        self._checks: Counter[str] = Counter()
        self._costs: deque[float] = deque(maxlen=1000)
        self._unjudged = self._trouble = ''
        self._verdicts = self.create_publisher(ChunkVerdict, 'chunk_verdict', qos.RELIABLE_10)
        subscribe = self.create_subscription
        subscribe(SafetyVerdict, 'verdict', self._on_sent, qos.COMMAND, raw=True)
        subscribe(JointState, 'joint_states', self._on_measured, qos.SENSOR, raw=True)
        subscribe(PolicyInfo, 'policy/info', self._on_policy, qos.LATCHED)
        lasting.subscribe(self, ObstacleList, 'obstacles', self._on_obstacles)
        subscribe(ActionChunk, 'chunk', self._on_chunk, qos.RELIABLE_10)
        self.create_service(DryRunChunk, 'guard/dry_run_chunk', self._on_dry_run)
        self.get_logger().info(
            f'robot {self._robot.name}, distances: '
            f'{type(clearance).__name__ if clearance else "none, its shape is not known"}'
        )

    # ---- what comes in --------------------------------------------------------------------------

    def _on_sent(self, msg: bytes) -> None:
        self._sent = msg

    def _on_measured(self, msg: bytes) -> None:
        self._measured = msg

    def _on_policy(self, msg: PolicyInfo) -> None:
        if msg.ready:
            space = convert.policy_info_from_msg(msg).space
            self._predictor.space = self._dry.space = space

    def _on_obstacles(self, msg: ObstacleList) -> None:
        if self._clearance is not None:  # as the guard: what can't be used leaves the old ones
            told = convert.obstacles_from_msg(msg, self._robot.world_frame)
            self._clearance.set_obstacles(told.obstacles)
            self._predictor.surroundings_changed()
            self._dry.surroundings_changed()

    def _on_chunk(self, msg: ActionChunk) -> None:
        now_ns, began_ns = self.now_ns(), time.monotonic_ns()
        chunk = convert.chunk_from_msg(msg)
        present = self._present(now_ns)
        self._unjudged = ''
        if isinstance(present, str) or self._predictor.space is None:
            self._unjudged = present if isinstance(present, str) else 'no policy/info was heard'
            self.get_logger().warning(
                f'chunk {chunk.id.seq} is not judged: {self._unjudged}', throttle_duration_sec=1.0
            )
            return
        verdict = self._predictor.judge(chunk, present, now_ns)
        cost_s = seconds(time.monotonic_ns() - began_ns)
        self._verdicts.publish(convert.chunk_verdict_to_msg(replace(verdict, duration_s=cost_s)))
        self._costs.append(cost_s)
        self._checks['ok' if verdict.ok else verdict.check] += 1
        if not verdict.ok:
            self._trouble = f'chunk {chunk.id.seq}: {verdict.reason}'
            self.get_logger().warning(self._trouble, throttle_duration_sec=1.0)

    def _on_dry_run(self, request: DryRunChunk.Request, response: DryRunChunk.Response) -> Any:
        now_ns, began_ns = self.now_ns(), time.monotonic_ns()
        try:
            chunk = convert.chunk_from_msg(request.chunk)
            present = self._named(list(request.joints), now_ns) or self._present(now_ns)
        except InvalidDataError as error:
            present = str(error)
        if not isinstance(present, str) and self._dry.space is None:
            present = 'no policy/info was heard: the action space is not known'
        if isinstance(present, str):
            response.message = present
            return response
        whole = replace(chunk, start_ns=now_ns, observation_stamp_ns=now_ns)
        verdict = self._dry.judge(whole, present, now_ns)
        cost_s = seconds(time.monotonic_ns() - began_ns)
        response.verdict = convert.chunk_verdict_to_msg(replace(verdict, duration_s=cost_s))
        response.success, response.message = verdict.ok, verdict.reason or 'nothing is wrong'
        return response

    def _named(self, joints: list[float], now_ns: int) -> JointStateData | None:
        """
        Return a pose given by hand, None if there is none.

        :raises InvalidDataError: not one number per joint that a joint can have
        """
        if not joints:
            return None
        positions = np.array(joints, np.float64)
        names = self._robot.joints
        if positions.shape != (len(names),) or not (np.abs(positions) <= MAX_POSITION).all():
            raise InvalidDataError(
                f'joints {joints}: need {len(names)} finite numbers, {names}, '
                f'allowed up to {MAX_POSITION:g}'
            )
        return JointStateData(now_ns, names, positions, np.zeros(len(names)))

    def _present(self, now_ns: int) -> JointStateData | str:
        """Return where the arm is sent, or where it is; or why neither is known."""
        if self._sent is not None:
            told = convert.verdict_from_msg(deserialize_message(self._sent, SafetyVerdict))
            live = told.state is not ArmState.DISARMED and told.joint_names == self._robot.joints
            if live and abs(now_ns - told.stamp_ns) < FRESH_S * NS_PER_S:
                return JointStateData(now_ns, told.joint_names, told.sent, told.sent_velocity)
        if self._measured is None:
            return 'neither verdict nor joint_states was heard'
        state = convert.joint_state_from_msg(deserialize_message(self._measured, JointState))
        if abs(now_ns - state.stamp_ns) > FRESH_S * NS_PER_S:
            return 'verdict and joint_states are old'
        index = {name: i for i, name in enumerate(state.names)}
        missing = [name for name in self._robot.joints if name not in index]
        if missing:
            return f'joint_states lacks {missing}'
        order = [index[name] for name in self._robot.joints]
        positions = state.positions[order]
        if not (np.abs(positions) <= MAX_POSITION).all():
            return f'joint_states is not finite, or beyond {MAX_POSITION:g}'
        return JointStateData(now_ns, self._robot.joints, positions, np.zeros(len(order)))

    # ---- what is told ---------------------------------------------------------------------------

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return what was judged, how, and what it took."""
        numbers: dict[str, object] = {'chunks': sum(self._checks.values()), **self._checks}
        if self._costs:
            p50, p99 = np.percentile(np.array(self._costs) * 1e3, [50, 99])
            numbers |= {'judge_ms_p50': round(p50, 3), 'judge_ms_p99': round(p99, 3)}
        numbers['last_bad'] = self._trouble
        if self._unjudged:
            return DiagnosticStatus.WARN, self._unjudged, numbers
        return DiagnosticStatus.OK, 'judging', numbers


def main() -> None:
    """Run the node."""
    spin.main(PredictNode, executor='events')


if __name__ == '__main__':
    main()
