"""The core lives without ROS, and the control-rate families without torch."""

from pathlib import Path
import subprocess
import sys

import chunkpilot_core
import pytest

ROOT = Path(chunkpilot_core.__file__).parent

BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {blocked!r}:
            raise ModuleNotFoundError(f'{{name}} is not to be seen here', name=name)

sys.meta_path.insert(0, Block())
sys.path.insert(0, {source!r})
"""
ROS = ('rclpy', 'chunkpilot', 'std_msgs', 'sensor_msgs', 'builtin_interfaces', 'rosidl_parser')
CONTROL_RATE = ('execution', 'safety', 'perception', 'tasks')


def _modules(*folders: str) -> list[str]:
    """Name every module below the given folders of the core; all of them for none."""
    files = [
        file
        for file in ROOT.rglob('*.py')
        if not folders or file.relative_to(ROOT).parts[0] in folders
    ]
    names = []
    for file in sorted(files):
        parts = ('chunkpilot_core', *file.relative_to(ROOT).with_suffix('').parts)
        names.append('.'.join(part for part in parts if part not in ('__init__', '__main__')))
    return names


def _run(code: str, blocked: tuple[str, ...]) -> None:
    text = BLOCK.format(blocked=blocked, source=str(ROOT.parent)) + code
    done = subprocess.run(
        [sys.executable, '-c', text], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def _import_all(names: list[str]) -> str:
    return f'import importlib\nfor name in {names!r}:\n    importlib.import_module(name)\n'


def test_every_module_of_the_core_imports_without_ros() -> None:
    _run(_import_all(_modules()), ROS)


def test_control_rate_families_import_without_torch_and_simulator() -> None:
    names = [*_modules(*CONTROL_RATE), 'chunkpilot_core.spaces', 'chunkpilot_core.kinematics']
    _run(
        _import_all([name for name in names if '.tasks' not in name]), (*ROS, 'torch', 'pybullet')
    )
    _run(_import_all(_modules('tasks')), (*ROS, 'torch'))


def test_the_ground_needs_numpy_and_yaml_alone() -> None:
    """What ``pip install chunkpilot`` without extras brings."""
    names = [name for name in _modules() if name.count('.') == 1 and '_core.cli' not in name]
    heavy = ('torch', 'pybullet', 'cv2', 'scipy', 'matplotlib', 'rich', 'tqdm', 'rosbags')
    _run(_import_all(names), (*ROS, *heavy))


@pytest.mark.parametrize('family', ['policies', 'learning'])
def test_base_classes_come_without_torch(family: str) -> None:
    _run(_import_all([f'chunkpilot_core.{family}.base']), (*ROS, 'torch'))
