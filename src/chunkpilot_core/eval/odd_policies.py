"""Policies that go wrong in an episode, to try detectors with."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from chunkpilot_core import spaces
from chunkpilot_core.policies.base import Policy
from chunkpilot_core.types import ActionChunk, ChunkRequest, F32, Observation, PolicySpec
import numpy as np

AFTER = 3  # chunks that are as they should be
SWING = 0.5  # of the range of a row


class OddPolicy(Policy):
    """Answers as another policy does, and after some chunks with something else."""

    def __init__(self, policy: Policy, odd: Policy | None, change: Any = None) -> None:
        """
        Wrap a policy.

        :param odd: that answers later on, the same one by default
        :param change: of its rows (H, A), by the space and the rows
        """
        self.spec = policy.spec
        self._policy, self._odd = policy, odd or policy
        self._change = change
        self._count = 0

    def reset(self, seed: int) -> None:
        """Be in order again."""
        self._count = 0
        for policy in {id(p): p for p in (self._policy, self._odd)}.values():
            policy.reset(seed)

    def act(self, observation: Observation, request: ChunkRequest) -> ActionChunk:
        """Answer."""
        self._count += 1
        policy = self._policy if self._count <= AFTER else self._odd
        chunk = policy.act(observation, request)
        assert isinstance(chunk, ActionChunk)
        if self._count <= AFTER or self._change is None:
            return chunk
        return replace(chunk, actions=self._change(self.spec, chunk.actions))


def shuffled(spec: PolicySpec, rows: F32) -> F32:
    """Return rows whose motion columns are in another order."""
    columns = np.flatnonzero(spaces.motion_columns(spec.space))
    mixed: F32 = rows.copy()
    mixed[:, columns] = rows[:, np.roll(columns, 1)]
    return mixed


def frozen(spec: PolicySpec, rows: F32) -> F32:
    """Return rows that move nothing, grippers as they are now (relative spaces)."""
    still: F32 = rows.copy()
    still[:, spaces.motion_columns(spec.space)] = 0.0
    grips = ~spaces.motion_columns(spec.space)
    still[:, grips] = rows[:1, grips]
    return still


def oscillating(spec: PolicySpec, rows: F32) -> F32:
    """Return rows that go to and fro beside what they do."""
    signs = np.where(np.arange(len(rows)) % 2, -SWING, SWING)[:, None]
    swung = rows + signs * spaces.motion_columns(spec.space)
    lower, upper = np.array(spec.space.lower), np.array(spec.space.upper)
    clipped: F32 = np.clip(swung, lower, upper).astype(np.float32)
    return clipped


CHANGES: Mapping[str, Callable[[PolicySpec, F32], F32]] = {
    'shuffled dims': shuffled,
    'frozen policy': frozen,
    'oscillation': oscillating,
}
