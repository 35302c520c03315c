"""
Publishes ``observation`` and ``observation_images`` from joint states and camera images.

Topics in: ``joint_states``, ``camera/<name>/image/compressed`` (or ``camera/<name>/image``),
``task``, ``guard/state`` (epoch). All the thinking is in
:class:`chunkpilot_core.perception.runtime.pipeline.Perception`.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
import secrets
import time

from chunkpilot.msg import GuardState, ObservationImages
from chunkpilot.msg import Observation as ObservationMsg
from chunkpilot.msg import Task as TaskMsg
from chunkpilot_core import camera, registry, robot
from chunkpilot_core.config import option
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.perception.runtime.pipeline import Perception
from chunkpilot_core.types import Health, Image, nanoseconds, Observation, seconds
from chunkpilot_nodes import convert, images, params, qos, spin
from diagnostic_msgs.msg import DiagnosticStatus
import numpy as np
from sensor_msgs.msg import CompressedImage, JointState
from sensor_msgs.msg import Image as RawImage

_KEPT = 16  # compressed images that wait for their observation


@dataclass(frozen=True)
class Config:
    """What is perceived, and how often it is published."""

    robot: str = option('panda', 'robot YAML file, or a name in config/robots')
    cameras: tuple[str, ...] = option(
        ('front',), 'camera YAML files, or names in config/cameras; [""] for none'
    )
    transport: str = option('compressed', 'image topics to read', choices=('compressed', 'raw'))
    rate_hz: float = option(50.0, 'observations per second', unit='Hz', min=1.0, max=1000.0)


class PerceptionNode(spin.SupervisedNode):
    """Thin adapter around :class:`Perception`."""

    def __init__(self) -> None:
        super().__init__('perception_node')
        self._config = params.declare(self, Config)
        pipeline = params.declare(self, Perception.Config)
        stages = {
            name: params.declare(self, registry.get('perception', name).Config, f'{name}.')
            for name in pipeline.stages
        }
        cameras = [camera.load(path) for path in self._config.cameras if path]
        self._robot = robot.load(self._config.robot)
        self._perception = Perception(
            self._robot,
            {entry.name: entry for entry in cameras},
            pipeline,
            stages,
            session=secrets.randbits(64),
        )
        self._epoch = 0
        self._published_ns: int | None = None
        self._health = (Health.BAD, 'no joint state yet')
        self._encoded: dict[tuple[str, int], CompressedImage] = {}
        self._delays_ms: deque[float] = deque(maxlen=500)
        self._costs_ms: deque[float] = deque(maxlen=500)
        self._since = (time.monotonic(), 0, 0)
        self._count = 0
        self._refusal = ''
        self._connect([entry.name for entry in cameras])
        self.get_logger().info(
            f'robot {self._robot.name}, cameras {[entry.name for entry in cameras]}, '
            f'stages {list(pipeline.stages)}, {self._config.rate_hz:g} Hz'
        )

    def _connect(self, cameras: list[str]) -> None:
        self._observations = self.create_publisher(ObservationMsg, 'observation', qos.RELIABLE_10)
        self._images = self.create_publisher(ObservationImages, 'observation_images', qos.IMAGES)
        self.create_subscription(TaskMsg, 'task', self._on_task, qos.LATCHED)
        self.create_subscription(GuardState, 'guard/state', self._on_guard, qos.LATCHED)
        for name in cameras:
            if self._config.transport == 'raw':
                topic, kind, decode = f'camera/{name}/image', RawImage, images.from_raw
            else:
                topic, kind, decode = (
                    f'camera/{name}/image/compressed',
                    CompressedImage,
                    images.from_compressed,
                )
            self.create_subscription(
                kind,
                topic,
                lambda msg, name=name, decode=decode: self._on_image(name, msg, decode),
                qos.IMAGES,
            )
        self.create_subscription(JointState, 'joint_states', self._on_joint_state, qos.SENSOR)

    def _on_task(self, msg: TaskMsg) -> None:
        self._perception.on_task(convert.task_from_msg(msg))

    def _on_guard(self, msg: GuardState) -> None:
        self._epoch = int(msg.arm_epoch)

    def _on_image(self, name: str, msg: CompressedImage | RawImage, decode) -> None:  # type: ignore[no-untyped-def]
        try:
            image = decode(name, msg)
        except InvalidDataError as error:
            self._perception.counters['images_refused'] += 1
            self._refused(str(error))
            return
        reason = self._perception.on_image(image)
        if reason is not None:
            self._refused(reason)
            return
        self._encoded[name, image.stamp_ns] = self._encode(image, msg)
        while len(self._encoded) > _KEPT:
            del self._encoded[next(iter(self._encoded))]

    @staticmethod
    def _encode(image: Image, msg: CompressedImage | RawImage) -> CompressedImage:
        if isinstance(msg, CompressedImage):
            return msg
        encoded = images.to_compressed(image)
        encoded.header = msg.header
        return encoded

    def _on_joint_state(self, msg: JointState) -> None:
        started = time.perf_counter()
        try:
            state = convert.joint_state_from_msg(msg)
        except InvalidDataError as error:
            self._perception.counters['joint_states_refused'] += 1
            self._refused(str(error))
            return
        reason = self._perception.on_joint_state(state)
        if reason is not None:
            self._refused(reason)
        elif self._due(state.stamp_ns):
            observation = self._perception.observe(self.now_ns(), self._epoch)
            if observation is not None:
                self._published_ns = state.stamp_ns
                self._publish(observation)
                self._costs_ms.append((time.perf_counter() - started) * 1e3)

    def _due(self, stamp_ns: int) -> bool:
        if self._published_ns is None or stamp_ns < self._published_ns:
            return True  # the first one, or a clock that was set back
        # a quarter of a period of grace, so that jitter of the driver does not halve the rate
        passed_s = seconds(stamp_ns - self._published_ns)
        return passed_s >= 0.75 / self._config.rate_hz

    def _publish(self, observation: Observation) -> None:
        frame = self._robot.world_frame
        self._observations.publish(convert.observation_to_msg(observation, frame))
        self._count += 1
        self._delays_ms.append(seconds(self.now_ns() - observation.stamp_ns) * 1e3)
        self._health = (observation.health, observation.health_reason)
        used = {
            image.name: self._encoded.pop((image.name, image.stamp_ns), None)
            for image in observation.images
        }
        used = {name: encoded for name, encoded in used.items() if encoded is not None}
        if used:
            msg = ObservationImages(
                observation_id=convert.id_to_msg(observation.id),
                names=list(used),
                images=list(used.values()),
            )
            msg.header.stamp = convert.to_time(observation.stamp_ns)
            msg.header.frame_id = frame
            self._images.publish(msg)

    def _refused(self, reason: str) -> None:
        self.get_logger().warning(f'refused: {reason}', throttle_duration_sec=5.0)
        self._refusal = reason

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return health, rates, delays and what was refused."""
        now, counters = time.monotonic(), self._perception.counters
        before, count, taken = self._since
        passed = max(now - before, 1e-9)
        numbers: dict[str, object] = {
            'observation_hz': round((self._count - count) / passed, 1),
            'image_hz': round((counters['images'] - taken) / passed, 1),
            **_quantiles('delay_ms', self._delays_ms),
            **_quantiles('cost_ms', self._costs_ms),
            **counters,
            'last_refusal': self._refusal,
        }
        self._since = (now, self._count, counters['images'])
        silent = self._published_ns is None or self.now_ns() - self._published_ns > nanoseconds(
            1.0
        )
        health, reason = (Health.BAD, 'no joint states') if silent else self._health
        level = (DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR)[health]
        return level, reason or 'observing', numbers


def _quantiles(name: str, values: deque[float]) -> dict[str, object]:
    if not values:
        return {}
    p50, p99 = np.percentile(np.array(values), (50, 99))
    return {f'{name}_p50': round(float(p50), 2), f'{name}_p99': round(float(p99), 2)}


def main() -> None:
    """Run the node."""
    spin.main(PerceptionNode, executor='events')


if __name__ == '__main__':
    main()
