"""What an answer of a policy costs: time to the first and to the last row, and memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
import time
from typing import Any

from chunkpilot_core.eval import workers
from chunkpilot_core.policies.runtime import checkpoint, serving
from chunkpilot_core.types import Id
import numpy as np

WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Speed:
    """
    Times of an answer on one thread [s] and the peak memory of its process [MB].

    ``first_*`` until rows may run, ``whole_*`` until the chunk is finished; ``rows_per_s`` of a
    policy that is asked again and again.
    """

    first_p50_s: float
    whole_p50_s: float
    whole_p99_s: float
    rows_per_s: float
    peak_memory_mb: float


def measure(policy: str, variants: Sequence[Mapping[str, Any]], calls: int) -> list[Speed]:
    """
    Measure a checkpoint with several options, in turns, in a process of its own.

    :param variants: options of each
    :param calls: answers of each
    """
    with workers.pool(1) as pool:
        return pool.submit(_measure, policy, variants, calls, time.perf_counter).result()


def _measure(
    name: str,
    variants: Sequence[Mapping[str, Any]],
    calls: int,
    clock: Callable[[], float],
) -> list[Speed]:
    import torch

    torch.set_num_threads(1)
    loaded = checkpoint.load(name)
    policies = [loaded.varied(options) if options else loaded for options in variants]
    observation, request = serving.example(loaded.spec)
    times: list[list[tuple[float, float]]] = [[] for _ in policies]
    for number in range(WARM_UP + calls):
        for policy, found in zip(policies, times, strict=True):
            asked = replace(request, id=Id(1, number + 1))
            began, first = clock(), 0.0
            for chunk in serving.stream(policy, observation, asked):
                if not first and any(part.executable_rows for part in chunk.parts):
                    first = clock() - began
            if number >= WARM_UP:
                found.append((first, clock() - began))
    peak_mb = _peak_memory_mb()
    return [_speed(np.array(found), loaded.spec.horizon, peak_mb) for found in times]


def _peak_memory_mb() -> float:
    # Not getrusage: its figure is not below that of the process which started this one.
    lines = Path('/proc/self/status').read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith('VmHWM:'))) / 1024


def _speed(times: Any, horizon: int, peak_mb: float) -> Speed:
    first, whole = times.T
    return Speed(
        float(np.median(first)),
        float(np.median(whole)),
        float(np.percentile(whole, 99)),
        float(horizon * len(whole) / whole.sum()),
        peak_mb,
    )
