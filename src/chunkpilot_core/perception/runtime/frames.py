"""Camera images on their way into an observation: checked, kept in order, each used once."""

from collections import Counter, deque
from collections.abc import Iterator

from chunkpilot_core.camera import Camera
from chunkpilot_core.perception.runtime.image_health import ImageHealth
from chunkpilot_core.types import Image, nanoseconds, seconds
import numpy as np

_WAITING = 8  # images that may wait for the joint state of their time
_WINDOW_S = 1.0
_MISSING = 0.3  # share of a window's images without which it counts as dropped
_GAP = 3.0  # periods
_LATENCY_S = 0.1  # that an image may have


class Frames:
    """The images of one camera."""

    def __init__(self, camera: Camera, period_s: float) -> None:
        self.camera = camera
        self.used_ns: int | None = None
        """Stamp of the newest image in use."""
        self._period_s = period_s
        self._taken_ns: int | None = None
        self._gap_ns: int | None = None
        self._stamps: deque[int] = deque()  # of the last second
        self.health = ImageHealth()
        self._waiting: deque[Image] = deque()

    def take(self, image: Image, state_ns: int | None, max_ahead_s: float) -> str | None:
        """
        Keep an image until the joint state of its time is there.

        :param state_ns: stamp of the newest joint state
        :param max_ahead_s: images further ahead of it carry another clock's time
        :returns: why it was refused, None if it was taken
        """
        camera = self.camera
        expected = (camera.height, camera.width, 3)
        if image.pixels.shape != expected or image.pixels.dtype != np.uint8:
            return (
                f'{camera.name}: image of shape {image.pixels.shape} {image.pixels.dtype}, '
                f'the camera is calibrated for {expected} uint8'
            )
        if self._taken_ns is not None and image.stamp_ns <= self._taken_ns:
            late_s = seconds(self._taken_ns - image.stamp_ns)
            return f'{camera.name}: image is {late_s:g} s older than the newest one'
        if state_ns is not None and seconds(image.stamp_ns - state_ns) > max_ahead_s:
            ahead_s = seconds(image.stamp_ns - state_ns)
            return (
                f'{camera.name}: stamp is {ahead_s:g} s ahead of joint_states, '
                f'at most {max_ahead_s:g} s allowed'
            )
        if self._taken_ns is not None:
            passed_s = seconds(image.stamp_ns - self._taken_ns)
            if passed_s > _GAP * self._period_s or self._thinned(image.stamp_ns):
                self._gap_ns = image.stamp_ns
        self._taken_ns = image.stamp_ns
        self._stamps.append(image.stamp_ns)
        self._waiting.append(image)
        return None

    def _thinned(self, stamp_ns: int) -> bool:
        """Return whether too many images are missing in the second that ends now."""
        while self._stamps and seconds(stamp_ns - self._stamps[0]) > _WINDOW_S + 1e-3:
            self._stamps.popleft()
        if not self._stamps:
            return False
        expected = round(seconds(stamp_ns - self._stamps[0]) / self._period_s)
        return expected >= 4 and len(self._stamps) < (1.0 - _MISSING) * expected

    def due(self, state_ns: int, since_ns: int | None, counters: Counter[str]) -> Iterator[Image]:
        """
        Give the images that are not newer than the state at ``state_ns``, oldest first.

        :param since_ns: older ones show a scene that is no more
        :param counters: what is not given is counted here
        """
        while len(self._waiting) > _WAITING:
            self._waiting.popleft()
            counters['images_unmatched'] += 1
        while self._waiting and self._waiting[0].stamp_ns <= state_ns:
            image = self._waiting.popleft()
            if since_ns is not None and image.stamp_ns < since_ns:
                counters['images_before_task'] += 1
                continue
            self.used_ns = image.stamp_ns
            yield image

    def dropped(self, stamp_ns: int) -> bool:
        """Whether images were lost within the last second, or none comes any more."""
        if self._taken_ns is None:
            return False
        if seconds(stamp_ns - self._taken_ns) > _GAP * self._period_s + _LATENCY_S:
            return True
        return self._gap_ns is not None and stamp_ns - self._gap_ns < nanoseconds(1.0)
