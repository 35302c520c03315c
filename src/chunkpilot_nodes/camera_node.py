"""
A simulated camera in a process of its own: renders the newest scene, so that the sim never waits.

Topics in: ``sim/scene``. Out: ``camera/<name>/image/compressed`` with the stamp of the scene,
``camera/<name>/camera_info`` (latched). Run it niced; its lateness shows as image age only.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
import math
import time

from chunkpilot.msg import SimScene
from chunkpilot_core import camera as cameras
from chunkpilot_core import robot as robots
from chunkpilot_core.camera import Camera
from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.sim.deployment import misplaced
from chunkpilot_core.sim.renderer import Renderer
from chunkpilot_core.types import nanoseconds, NS_PER_S, seconds
from chunkpilot_nodes import convert, images, params, qos, spin
from diagnostic_msgs.msg import DiagnosticStatus
import numpy as np
from rclpy.clock import Clock, ClockType
from sensor_msgs.msg import CameraInfo, CompressedImage


@dataclass(frozen=True)
class Config:
    """Where the camera stands, how often it looks, and what is wrong with it."""

    robot: str = option('panda', 'robot YAML file, or a name in config/robots')
    camera: str = option('front', 'camera YAML file, or a name in config/cameras')
    rate_hz: float = option(5.0, 'images per second of the scene', unit='Hz', min=0.1, max=100)
    quality: int = option(90, 'JPEG quality', min=10, max=100)
    noise_sd: float = option(
        1.0, 'standard deviation of the sensor noise', unit='grey levels', min=0, max=50
    )
    seed: int = option(0, 'seed of the noise', min=0)
    latency_s: float = option(
        0.0, 'images are sent this much later than rendered', unit='s', min=0, max=5
    )
    object_offset: tuple[float, ...] = option(
        (0.0, 0.0, 0.0),
        'deployment error: what is seen appears shifted by this (xyz), '
        'as the camera stands elsewhere than its calibration says',
        unit='m',
        min=-0.2,
        max=0.2,
    )


class CameraNode(spin.SupervisedNode):
    """Thin adapter around :class:`Renderer`."""

    def __init__(self) -> None:
        super().__init__('camera_node')
        self._config = params.declare(self, Config)
        if len(self._config.object_offset) != 3:
            raise ConfigError(f'object_offset: {self._config.object_offset} must have 3 values')
        camera = cameras.load(self._config.camera)
        self._renderer = Renderer(
            misplaced(camera, np.array(self._config.object_offset)),
            robots.load(self._config.robot),
            self._config.noise_sd,
        )
        self._frame = f'{camera.name}_optical'
        self._noise = np.random.default_rng(self._config.seed)
        self._period_ns = nanoseconds(1.0 / self._config.rate_hz)
        self._next_ns = 0
        self._newest_ns = 0
        self._waiting: deque[tuple[int, CompressedImage]] = deque()
        self._costs_ms: deque[float] = deque(maxlen=200)
        self._since = (time.monotonic(), 0)
        self._count = 0
        self._image_out = self.create_publisher(
            CompressedImage, f'camera/{camera.name}/image/compressed', qos.IMAGES
        )
        info_out = self.create_publisher(
            CameraInfo, f'camera/{camera.name}/camera_info', qos.LATCHED
        )
        info_out.publish(self._info(camera))
        self.create_subscription(SimScene, 'sim/scene', self._on_scene, qos.CLOCK)
        if self._config.latency_s > 0:
            clock = Clock(clock_type=ClockType.STEADY_TIME)
            self.create_timer(0.005, self._send_due, clock=clock)
        self.get_logger().info(
            f'camera {camera.name}, {camera.width} x {camera.height}, '
            f'{self._config.rate_hz:g} Hz, offset {self._config.object_offset} m'
        )

    def _info(self, camera: Camera) -> CameraInfo:
        msg = CameraInfo(width=camera.width, height=camera.height, distortion_model='plumb_bob')
        msg.header.frame_id = self._frame
        msg.header.stamp = convert.to_time(self.now_ns())
        fx, fy, cx, cy = (float(v) for v in (camera.fx, camera.fy, camera.cx, camera.cy))
        msg.d = [0.0] * 5
        msg.k = np.array([fx, 0, cx, 0, fy, cy, 0, 0, 1], np.float64)
        msg.r = np.eye(3).ravel()
        msg.p = np.array([fx, 0, cx, 0, 0, fy, cy, 0, 0, 0, 1, 0], np.float64)
        return msg

    def _on_scene(self, msg: SimScene) -> None:
        stamp_ns = convert.to_ns(msg.header.stamp)
        if stamp_ns < self._newest_ns - NS_PER_S:  # a clock that was set back
            self._next_ns = 0
        self._newest_ns = stamp_ns
        if stamp_ns < self._next_ns:
            return
        late = stamp_ns - self._next_ns > self._period_ns
        self._next_ns = (stamp_ns if late else self._next_ns) + self._period_ns
        started = time.perf_counter()
        image = self._renderer.render(convert.scene_from_msg(msg), self._noise)
        encoded = images.to_compressed(image, self._config.quality)
        encoded.header.stamp = msg.header.stamp
        encoded.header.frame_id = self._frame
        self._costs_ms.append((time.perf_counter() - started) * 1e3)
        due_ns = time.monotonic_ns() + nanoseconds(self._config.latency_s)
        self._waiting.append((due_ns, encoded))
        self._send_due()

    def _send_due(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic_ns():
            self._image_out.publish(self._waiting.popleft()[1])
            self._count += 1

    def shutdown(self) -> None:
        """Free the physics client."""
        self._renderer.close()

    def diagnose(self) -> tuple[bytes, str, Mapping[str, object]]:
        """Return rate, cost and the age of the newest scene."""
        now, (before, count) = time.monotonic(), self._since
        rate = (self._count - count) / max(now - before, 1e-9)
        self._since = (now, self._count)
        age_s = seconds(self.now_ns() - self._newest_ns) if self._newest_ns else math.inf
        cost = float(np.median(self._costs_ms)) if self._costs_ms else math.nan
        numbers = {'image_hz': round(rate, 1), 'render_ms': round(cost, 1), 'sent': self._count}
        if age_s > 1.0:
            return DiagnosticStatus.WARN, 'no scene from the sim', numbers
        return DiagnosticStatus.OK, 'rendering', numbers


def main() -> None:
    """Run the node."""
    spin.main(CameraNode, executor='events')


if __name__ == '__main__':
    main()
