"""Why a chunk may not run: every refusal, worded for whoever reads the log."""

from collections.abc import Iterator
import math

from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.types import (
    ActionChunk,
    ChunkRequest,
    nanoseconds,
    NS_PER_S,
    PolicySpec,
    seconds,
)
import numpy as np

FUTURE_NS = NS_PER_S // 10  # clocks of one robot agree better than this


def refusal(
    chunk: ActionChunk, request: ChunkRequest, spec: PolicySpec, now_ns: int, newest_ns: int
) -> str | None:
    """
    Return the first reason against a chunk that answers ``request``, or None.

    :param newest_ns: stamp of the observation behind the plan in force; time does not go back
    """
    return next(_reasons(chunk, request, spec, now_ns, newest_ns), None)


def _reasons(
    chunk: ActionChunk, request: ChunkRequest, spec: PolicySpec, now_ns: int, newest_ns: int
) -> Iterator[str]:
    try:
        chunk.validate(spec.space)
    except InvalidDataError as error:
        yield str(error)
        return
    if chunk.horizon != spec.horizon:
        yield f'{chunk.horizon} rows, policy/info promises {spec.horizon}'
    if not math.isclose(chunk.dt_s, spec.dt_s, rel_tol=1e-4):
        yield f'{chunk.dt_s} s between rows, policy/info promises {spec.dt_s} s'
    yield from _residual(chunk)
    stamp = chunk.observation_stamp_ns
    if stamp < request.not_before_ns:
        early = seconds(request.not_before_ns - stamp)
        yield f'its observation is from {early:.3f} s before the last stop or start'
    if stamp < newest_ns:
        yield f'its observation is {seconds(newest_ns - stamp):.3f} s older than that of the plan'
    if stamp > now_ns + FUTURE_NS:
        yield f'its observation is from {seconds(stamp - now_ns):.3f} s in the future'
    latest = max(now_ns, request.start_ns) + FUTURE_NS
    if chunk.start_ns < stamp - nanoseconds(chunk.dt_s) or chunk.start_ns > latest:
        yield (
            f'it starts {seconds(chunk.start_ns - stamp):.3f} s after its observation, '
            f'{seconds(chunk.start_ns - now_ns):.3f} s from now'
        )


def _residual(chunk: ActionChunk) -> Iterator[str]:
    if chunk.residual is None:
        return
    bound = chunk.residual_bound
    if bound is None or bound.shape != chunk.actions.shape[1:] or not np.all(bound >= 0.0):
        yield 'its residual comes without a bound per column'
    if chunk.residual.shape != chunk.actions.shape or not np.all(np.isfinite(chunk.residual)):
        yield 'its residual is not finite or not of the shape of its actions'


def allowed_rows(chunk: ActionChunk, max_age_s: float) -> tuple[int, str]:
    """
    Return how many rows may run whatever a strategy says, and what limits them.

    :param max_age_s: from the observation's stamp to the end of a row
    """
    lead_s = seconds(chunk.start_ns - chunk.observation_stamp_ns)
    by_age = math.floor((max_age_s - lead_s) / chunk.dt_s + 1e-6) if max_age_s < 1e6 else 1 << 31
    ready = 0
    for part in sorted(chunk.parts, key=lambda part: part.first_row):
        if part.first_row <= ready:
            ready = max(ready, part.first_row + part.executable_rows)
    if chunk.parts and ready < min(by_age, chunk.horizon):
        return ready, 'rows not ready'
    return max(by_age, 0), 'age'
