"""
The calibration of a guard's detectors: one file for a robot, a policy and a task.

``chunkpilot calibrate guard`` writes it, the guard's parameter ``calibration`` names it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
import math
from pathlib import Path
from typing import Any

from chunkpilot_core import files
from chunkpilot_core import robot as robots
from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.runtime.detector import Part
from chunkpilot_core.types import ActionSpace
import yaml

FORMAT = 'chunkpilot-guard-1'


@dataclass(frozen=True)
class GuardCalibration:
    """What was measured, with what, and how often it is wrong: ``alpha`` per episode."""

    robot: str
    limits_hash: str
    policy: str
    policy_version: int
    policy_sha256: str
    space_hash: str
    task: str
    horizon: int
    dt_s: float
    episodes: int
    alpha: float
    source: str
    data_sha256: str
    detectors: Mapping[str, Part]
    format: str = FORMAT

    def check_robot(self, robot: Robot) -> None:
        """
        Refuse another robot, or other limits.

        :raises ConfigError: naming what was calibrated and what is in force
        """
        for what, own, other in (
            ('robot', self.robot, robot.name),
            ('limits of the robot', self.limits_hash, robot.limits_hash),
        ):
            if own != other:
                raise ConfigError(
                    f'guard calibration is for {what} {own!r}, in force is {other!r}; '
                    'run `chunkpilot calibrate guard` again'
                )

    def misfit(self, space: ActionSpace, dt_s: float, policy: str) -> str:
        """
        Return why it is not for a policy, '' if it is; another version of the policy is allowed.

        :param policy: its name, '' = not known
        """
        for what, own, other in (
            ('action space', self.space_hash, space.hash),
            ('row period', self.dt_s, dt_s),
            ('policy', self.policy, policy or self.policy),
        ):
            if own != other:
                return f'guard calibration is for {what} {own!r}, in force is {other!r}'
        return ''


def save(calibration: GuardCalibration, path: str | Path) -> None:
    """Write a calibration as YAML, whole or not at all."""
    data = asdict(calibration)
    data['detectors'] = {
        name: {key: _plain(value) for key, value in part.items()}
        for name, part in data['detectors'].items()
    }
    text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=99)
    files.write(path, '# Written by `chunkpilot calibrate guard`; do not edit.\n' + text)


def find(path: str | Path) -> Path:
    """Return the file of a calibration given by path, or by bare name in config/guard."""
    file = Path(path).expanduser()
    if file.suffix or file.parent != Path():
        return file
    folder = robots.config_dir() / 'guard'
    found = folder / f'{path}.yaml'
    if not found.is_file():
        known = (entry.stem for entry in folder.glob('*.yaml'))
        raise UnknownNameError('guard calibration', str(path), known)
    return found


def load(path: str | Path) -> GuardCalibration:
    """
    Read a calibration.

    :raises ConfigError: unreadable, of another format, or with numbers that are none
    """
    file = find(path)
    try:
        data = yaml.load(files.read(file), getattr(yaml, 'CSafeLoader', yaml.SafeLoader))
        if not isinstance(data, Mapping) or data.get('format') != FORMAT:
            raise ConfigError(f'not of format {FORMAT!r}')
        parts = {str(name): _part(str(name), part) for name, part in data['detectors'].items()}
        return GuardCalibration(**{**data, 'detectors': parts})
    except (ConfigError, OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f'guard calibration {file}: {error}') from error
    except (TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f'guard calibration {file}: not a file of `chunkpilot calibrate guard`: {error}'
        ) from error


def _part(name: str, data: Mapping[str, Any]) -> Part:
    threshold = tuple(float(value) for value in data['threshold'])
    bin_s, expected = float(data['bin_s']), float(data['expected'])
    if any(math.isnan(value) for value in threshold):
        raise ConfigError(f'{name}: threshold {threshold} is no number')
    if not 0.0 <= bin_s < math.inf or (bin_s == 0.0 and len(threshold) > 1):
        raise ConfigError(f'{name}: {len(threshold)} thresholds in bins of {bin_s} s')
    statistics = data['statistics'] or {}
    if not _finite(statistics):
        raise ConfigError(f'{name}: statistics are not finite')
    return Part(threshold, bin_s, expected, statistics)


def _finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_finite(entry) for entry in value.values())
    if isinstance(value, list):
        return all(_finite(entry) for entry in value)
    return isinstance(value, (bool, int, float)) and math.isfinite(value)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value
