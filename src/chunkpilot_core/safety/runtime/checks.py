"""The checks of one guard, made once and asked in the order of the specification."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chunkpilot_core import registry
from chunkpilot_core.errors import UnknownNameError
from chunkpilot_core.safety.base import Check, Finding, Situation, Stage
from chunkpilot_core.safety.runtime.detector import Detector

MANDATORY = (
    'estop',
    'clock',
    'overrun',
    'joint_state',
    'command',
    'sequence',
    'staleness',
    'stream_rate',
    'sensor_health',
    'joint_limits',
    'workspace',
    'tool_speed',
    'obstacles',
    'clearance',
    'tracking',
    'chunk_verdict',
    'seam',
    'consistency',
    'stac',
    'disagreement',
    'odd_observation',
    'odd_chunk',
    'freeze',
    'oscillation',
    'progress',
    'perturbation',
)


class Checks:
    """Mandatory checks, which no configuration can leave out, and any others."""

    def __init__(
        self, extra: Sequence[str] = (), configs: Mapping[str, Any] | None = None
    ) -> None:
        """
        Make the checks.

        :param extra: names of further plug-ins
        :param configs: configuration by check name; the others have their defaults
        :raises UnknownNameError: no such plug-in, or a configuration for one that is not used
        """
        names = tuple(dict.fromkeys((*MANDATORY, *extra)))
        for name in configs or {}:
            if name not in names:
                raise UnknownNameError('check of the guard', name, names)
        made: list[Check] = [
            registry.get('safety', name)((configs or {}).get(name)) for name in names
        ]
        made.sort(key=lambda check: check.order)
        self._stages = {
            stage: [check for check in made if check.stage is stage] for stage in Stage
        }

    @property
    def detectors(self) -> dict[str, Detector]:
        """The checks that have a calibration, by name."""
        made = (check for checks in self._stages.values() for check in checks)
        return {check.name: check for check in made if isinstance(check, Detector)}

    def findings(self, stage: Stage, situation: Situation) -> Iterator[Finding]:
        """Ask the checks of a stage one by one; the caller may change things in between."""
        for check in self._stages[stage]:
            found = check.check(situation)
            if found is not None:
                yield found if found.check else replace(found, check=check.name)

    def obstacles(self, situation: Situation) -> str:
        """Return what stands in the way of arming, '' for nothing."""
        for stage in Stage:
            for check in self._stages[stage]:
                why_not = check.why_not_arm(situation)
                if why_not:
                    return why_not
        return ''

    def reset(self) -> None:
        """Let every check forget what it saw."""
        for checks in self._stages.values():
            for check in checks:
                check.reset()
