"""What a row says when it begins: the plan's, averaged with other chunks', corrected."""

from collections import deque

from chunkpilot_core.execution.base import Strategy
from chunkpilot_core.execution.runtime.plan import Plan
from chunkpilot_core.execution.runtime.resampling import Resampler
from chunkpilot_core.types import ActionSpace, F32, Observation
import numpy as np

LIVE = 32  # chunks that a blending strategy sees


class Rows:
    """Applies the hooks of a strategy that has them, for one action space."""

    def __init__(self, space: ActionSpace, strategy: Strategy) -> None:
        self.observation: Observation | None = None
        self.resample = Resampler(space)
        self._strategy = strategy
        self._blends = strategy.offers('blend')
        self._corrects = strategy.offers('correct')
        self._live: deque[Plan] = deque(maxlen=LIVE)

    def add(self, plan: Plan) -> None:
        """Let a chunk be averaged with the others."""
        if self._blends:
            self._live.append(plan)

    def keep(self, plan: Plan | None) -> None:
        """Forget all chunks but one."""
        self._live.clear()
        if plan is not None:
            self.add(plan)

    def row(self, plan: Plan, row: int, waiting: Plan | None) -> F32:
        """
        Return a row (A,) of the plan in force as it is to be run, policy units, finite.

        Where a strategy's hook answers with what is no row, the row runs as it was predicted.

        :param waiting: a plan that has not taken over yet
        """
        actions: F32 = plan.actions[row]
        if plan.guided:  # were judged as they are
            return actions
        if self._blends:
            blended = self._strategy.blend(self._predictions(plan.row_ns(row), waiting))
            actions = _usable(blended, actions)
        if self._corrects and self.observation is not None:
            corrected = self._strategy.correct(actions, self.observation)
            actions = _usable(corrected, actions)
        return actions

    def _predictions(self, at_ns: int, waiting: Plan | None) -> F32:
        found: list[F32] = []
        for plan in self._live:
            if plan is waiting:
                continue
            place = (at_ns - plan.start_ns) / plan.dt_ns
            if -0.5 <= place < plan.known - 0.5:
                found.append(self.resample(plan.actions[: plan.known], place, 1)[0])
        return np.array(found)


def _usable(row: F32, otherwise: F32) -> F32:
    return row if row.shape == otherwise.shape and np.isfinite(row).all() else otherwise
