"""The seam of an execution strategy: a chunk goes in, how many of its rows will run comes out."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
import json
from typing import Any, ClassVar

from chunkpilot_core import registry
from chunkpilot_core.errors import CapabilityError, ConfigError
from chunkpilot_core.robot import config_dir
from chunkpilot_core.types import (
    ActionChunk,
    ChunkRequest,
    F32,
    HorizonDecision,
    Observation,
    PolicySpec,
)


@dataclass(frozen=True, slots=True)
class ExecutionState:
    """
    What a strategy may know besides the chunk.

    ``last_row`` (A,) is the command in force before row 0 of the chunk, in policy units (0 in
    relative columns); ``late_rows`` of the chunk are past already; ``delay_s`` is the delay to
    plan with; ``remaining_rows`` of the plan in force have not started. ``previous`` (H, A) is
    what the plan in force says for the times of the chunk's rows, its discarded rows included, NaN
    where it says nothing.
    """

    now_ns: int
    last_row: F32
    late_rows: int
    delay_s: float
    remaining_rows: float
    previous: F32 | None = None


class Strategy(ABC):
    """
    Decides once per chunk, on its arrival, how many rows run; everything else is done for it.

    Queue, time alignment, late rows, requests and starvation belong to
    :class:`~chunkpilot_core.execution.runtime.executor.Executor`.
    """

    Config: ClassVar[type[Any]]
    needs: ClassVar[tuple[str, ...]] = ()
    n_samples: int = 1

    def __init__(self, name: str, base: int) -> None:
        """
        Name a strategy.

        :param name: as published with every decision
        :param base: h, rows from row 0 that always run
        """
        self.name = name
        self.base = base

    def configure(self, spec: PolicySpec) -> None:
        """
        Get ready for a policy, or refuse it.

        :raises CapabilityError: the policy does not offer what ``needs`` names
        :raises ConfigError: the base horizon is longer than the policy's chunks
        """
        missing = [name for name in self.needs if name not in spec.capabilities]
        if missing:
            raise CapabilityError(
                f'strategy {self.name!r} needs {", ".join(missing)} from the policy; '
                f'{spec.name!r} offers {", ".join(spec.capabilities) or "nothing of the kind"}. '
                f'Policies that do: {", ".join(_offering(self.needs)) or "none installed"}'
            )
        if self.base > spec.horizon:
            raise ConfigError(
                f'strategy {self.name!r}: base horizon {self.base} is longer than the chunks of '
                f'{spec.name!r}, {spec.horizon} rows'
            )

    @abstractmethod
    def horizon(self, chunk: ActionChunk, state: ExecutionState) -> HorizonDecision:
        """
        Decide how many rows of a valid chunk run, counted from row 0.

        :returns: ``chosen`` between 1 and H; age, late rows and interrupts are cut elsewhere
        """

    def ask(self, request: ChunkRequest) -> ChunkRequest:
        """
        Return a request with what a strategy wants beside the ordinary: guidance, samples, mode.

        :param request: complete, with the rows that run before the answer as its prefix
        """
        return request

    def rows(self, chunk: ActionChunk, state: ExecutionState) -> F32:
        """
        Return the rows (H, A) that are to be run of a valid chunk, before their number is decided.

        :returns: policy units, finite; ``chunk.actions``, or e.g. one of ``chunk.samples``
        """
        return chunk.actions

    def blend(self, predictions: F32) -> F32:
        """
        Return the row to run from what several chunks predict for its time.

        :param predictions: shape (L, A), policy units, oldest chunk first, the newest last
        """
        newest: F32 = predictions[-1]
        return newest

    def wants_chunk(self, state: ExecutionState) -> bool:
        """Return whether to ask for a chunk now, before the horizon makes it necessary."""
        return False

    def correct(self, row: F32, observation: Observation) -> F32:
        """
        Return a row corrected by the newest observation, just before it runs.

        :param row: shape (A,), policy units
        """
        return row

    def offers(self, hook: str) -> bool:
        """Return whether a strategy overrides a hook; the others are skipped."""
        return getattr(type(self), hook) is not getattr(Strategy, hook)


def _offering(needs: tuple[str, ...]) -> list[str]:
    found = []
    for file in sorted(config_dir().glob('policies/*/manifest.json')):
        plugin = json.loads(file.read_text(encoding='utf-8'))['spec']['policy']
        if set(needs) <= set(registry.literal('policies', plugin, 'capabilities', ())):
            found.append(file.parent.name)
    return found


BASE = Strategy
