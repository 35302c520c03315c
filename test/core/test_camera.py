"""A camera's YAML file: what is read, and what is refused with its place."""

from pathlib import Path
from typing import Any

from chunkpilot_core import camera
from chunkpilot_core.errors import ConfigError
import numpy as np
import pytest
import yaml

ORBIT = {
    'target': [0.0, 0.0, 0.05], 'distance': 0.8, 'yaw_deg': 90.0, 'pitch_deg': -40.0,
    'fov_deg': 45.0,
}  # fmt: skip
CALIBRATED = {
    'intrinsics': {'fx': 140, 'fy': 140.0, 'cx': 80.0, 'cy': 59.0},
    'pose': {'xyz': [0.5, 0.0, 0.4], 'rotation': [[1, 0, 0], [0, -1, 0], [0, 0, -1]]},
}


def load(folder: Path, **entries: Any) -> camera.Camera:
    file = folder / 'mine.yaml'
    base = {'name': 'mine', 'width': 160, 'height': 120}
    file.write_text(yaml.safe_dump({'camera': {**base, **entries}}))
    return camera.load(file)


def test_both_forms_are_read(tmp_path: Path) -> None:
    assert load(tmp_path, orbit=ORBIT).width == 160
    calibrated = load(tmp_path, **CALIBRATED)
    np.testing.assert_array_equal(calibrated.rotation, np.diag([1.0, -1.0, -1.0]))
    flat = {**CALIBRATED['pose'], 'rotation': [1, 0, 0, 0, -1, 0, 0, 0, -1]}
    again = load(tmp_path, intrinsics=CALIBRATED['intrinsics'], pose=flat)
    np.testing.assert_array_equal(again.rotation, calibrated.rotation)


@pytest.mark.parametrize(
    ('path', 'value'),
    [
        ('width', 160.5), ('width', True), ('height', 7), ('height', 10_001), ('width', '160'),
        ('orbit.distance', 0.0), ('orbit.distance', float('inf')), ('orbit.fov_deg', 180),
        ('orbit.fov_deg', 0.0), ('orbit.yaw_deg', float('nan')), ('orbit.pitch_deg', -90.0),
        ('orbit.target', [0.0, 0.0]), ('orbit.target', [1e9, 0.0, 0.0]), ('orbit.target', 'abc'),
        ('intrinsics.fx', -140.0), ('intrinsics.fy', float('nan')), ('intrinsics.cx', '80'),
        ('pose.xyz', [0.0, float('inf'), 0.0]), ('pose.rotation', [[1, 0, 0], [0, 1, 0]]),
        ('pose.rotation', [[1, 0, 0], [0, 1, 0], [0, 0, 1.1]]),
        ('pose.rotation', [[1, 0, 0], [0, 1, 0], [0, 0, -1]]),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_place(tmp_path: Path, path: str, value: Any) -> None:
    group, _, key = path.rpartition('.')
    entries: dict[str, Any] = {'orbit': ORBIT} if group in ('', 'orbit') else CALIBRATED
    entries = {**entries, **({group: {**entries[group], key: value}} if group else {key: value})}
    with pytest.raises(ConfigError, match=r'mine\.yaml') as caught:
        load(tmp_path, **entries)
    assert path in str(caught.value)
