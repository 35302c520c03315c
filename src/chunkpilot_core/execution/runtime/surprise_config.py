"""What counts as a surprise."""

from collections.abc import Mapping
from dataclasses import dataclass
import math

from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError


@dataclass(frozen=True)
class SurpriseConfig:
    """What counts as a surprise; a limit of 0 turns its source off."""

    enabled: bool = option(False, 'cut horizons when the scene departs from what is expected')
    calibration: str = option(
        '', 'file of `chunkpilot calibrate surprise`, instead of the limits below'
    )
    object_m: float = option(
        0.02, 'an untouched object is so far from where it was', unit='m', min=0.0, max=1.0
    )
    contact_m: float = option(
        0.035,
        'an object at the fingers is so far from where they can have moved it',
        unit='m',
        min=0.0,
        max=1.0,
    )
    held_m: float = option(
        0.04, 'a held object is so far from where the tool took it', unit='m', min=0.0, max=1.0
    )
    grip: bool = option(True, 'an object that leaves closed fingers is a surprise')
    goal_m: float = option(
        0.03, 'the goal is so far from where it should be', unit='m', min=0.0, max=10.0
    )
    goal_moves: bool = option(
        True, 'a goal is expected to go on as it went; false = to stay where it was'
    )
    arm_m: float = option(
        0.06, 'the tool is so far off the path that was commanded', unit='m', min=0.0, max=1.0
    )
    arm_rad: float = option(0.1, 'the same for policies of joints', unit='rad', min=0.0, max=3.2)
    arm_lag_s: float = option(
        0.25, 'the arm follows its commands within this time', unit='s', min=0.01, max=2.0
    )
    expected: float = option(
        0.0,
        "rms error of a policy's own prediction of the features, where it makes one",
        min=0.0,
        max=1e9,
    )
    features: tuple[str, ...] = option(
        (), 'further features that stay as they are: "<name>=<limit>"'
    )
    reach_m: float = option(
        0.055, 'nearer to the tool than this an object may be pushed', unit='m', min=0.0, max=1.0
    )
    max_age_s: float = option(
        1.0, 'objects last seen longer ago say nothing', unit='s', min=0.01, max=60.0
    )

    def limits(self) -> dict[str, float]:
        """Return the limits by source, 0 = off."""
        return {
            'object': self.object_m,
            'contact': self.contact_m,
            'held': self.held_m,
            'grip': 0.5 if self.grip else 0.0,
            'goal': self.goal_m,
            'arm': self.arm_m,
            'joints': self.arm_rad,
            'expected': self.expected,
        }

    def watched(self) -> Mapping[str, float]:
        """
        Return the limits of further features by their name.

        :raises ConfigError: one without a limit above 0
        """
        return dict(_feature(entry) for entry in self.features)


def _feature(entry: str) -> tuple[str, float]:
    name, mark, text = entry.partition('=')
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not (name and mark and limit > 0.0):
        raise ConfigError(f'surprise.features: {entry!r} is not "<name>=<limit above 0>"')
    return name, limit
