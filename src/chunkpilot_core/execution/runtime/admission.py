"""Why a chunk may not run: every refusal, worded for whoever reads the log."""

from collections.abc import Iterator
import math

from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.execution.runtime.plan import known_rows, with_residual
from chunkpilot_core.types import (
    ActionChunk,
    ChunkRequest,
    nanoseconds,
    NS_PER_S,
    PolicySpec,
    Rotation,
    seconds,
)
import numpy as np

FUTURE_NS = NS_PER_S // 10  # clocks of one robot agree better than this
SHORTEST_TURN = 0.1  # quaternions are normalised; much shorter ones say nothing


def refusal(
    chunk: ActionChunk,
    request: ChunkRequest,
    spec: PolicySpec,
    now_ns: int,
    newest_ns: int,
    *,
    first: bool = True,
) -> str | None:
    """
    Return the first reason against a chunk that answers ``request``, or None.

    :param newest_ns: stamp of the observation behind the plan in force; time does not go back
    :param first: whether it is the first message of that answer; later rows may start before the
        observation that they rest on
    """
    reason = next(_content(chunk, spec), None) or next(_age(chunk, request, now_ns), None)
    if reason is None and chunk.observation_stamp_ns < newest_ns:
        older_s = seconds(newest_ns - chunk.observation_stamp_ns)
        reason = f'its observation is {older_s:.3f} s older than that of the plan'
    if reason is None and first:
        reason = next(_start(chunk, request, now_ns), None)
    return reason


def _content(chunk: ActionChunk, spec: PolicySpec) -> Iterator[str]:
    try:
        chunk.validate(spec.space)
    except InvalidDataError as error:
        yield str(error)
        return
    if chunk.horizon != spec.horizon:
        yield f'{chunk.horizon} rows, policy/info promises {spec.horizon}'
    if not math.isclose(chunk.dt_s, spec.dt_s, rel_tol=1e-4):
        yield f'{chunk.dt_s} s between rows, policy/info promises {spec.dt_s} s'
    if not chunk.max_row_age_s >= 0.0:  # NaN would lift every limit on the age of a row
        yield f'its max_row_age_s is {chunk.max_row_age_s}, must be 0 (none) or more'
    yield from _shapes(chunk)
    yield from _residual(chunk)
    yield from _orientations(chunk, spec)
    yield from _parts(chunk)


def _shapes(chunk: ActionChunk) -> Iterator[str]:
    """Say what does not go with the rows; None stands for any number, N or F."""
    rows, size = chunk.actions.shape
    expected: dict[str, tuple[int | None, ...]] = {
        'confidence': (rows,),
        'waypoint': (rows,),
        'samples': (None, rows, size),
        'expected_features': (rows, None),
    }
    for name, shape in expected.items():
        values = getattr(chunk, name)
        if values is None:
            continue
        fits = values.ndim == len(shape) and all(
            length in (None, found) for length, found in zip(shape, values.shape, strict=True)
        )
        if not fits:
            wanted = tuple('any' if length is None else length for length in shape)
            yield f'its {name} has shape {values.shape}, expected {wanted}'


def _parts(chunk: ActionChunk) -> Iterator[str]:
    for part in chunk.parts:
        inside = part.first_row >= 0 and part.first_row + part.n_rows <= chunk.horizon
        if not (inside and 0 <= part.executable_rows <= part.n_rows and part.revision >= 0):
            yield (
                f'its part of {part.n_rows} rows from row {part.first_row} on, '
                f'{part.executable_rows} of them ready, revision {part.revision}, does not fit '
                f'{chunk.horizon} rows'
            )


def _orientations(chunk: ActionChunk, spec: PolicySpec) -> Iterator[str]:
    for group in spec.space.groups:
        if group.rotation is Rotation.QUATERNION:
            columns = slice(group.start + 3, group.stop)
            turns = chunk.actions[:, columns] * group.scale[3:] + group.offset[3:]
            lengths = np.linalg.norm(turns, axis=1)
            if lengths.min() < SHORTEST_TURN:
                row = int(lengths.argmin())
                yield (
                    f'row {row} of {group.name!r} has a quaternion of length '
                    f'{lengths[row]:.3g}, must be about 1'
                )


def _age(chunk: ActionChunk, request: ChunkRequest, now_ns: int) -> Iterator[str]:
    stamp = chunk.observation_stamp_ns
    if stamp < request.not_before_ns:
        early = seconds(request.not_before_ns - stamp)
        yield f'its observation is from {early:.3f} s before the last stop or start'
    latest = max((stamp, *(part.observation_stamp_ns for part in chunk.parts)))
    if latest > now_ns + FUTURE_NS:
        yield f'its observation is from {seconds(latest - now_ns):.3f} s in the future'


def _start(chunk: ActionChunk, request: ChunkRequest, now_ns: int) -> Iterator[str]:
    stamp, latest = chunk.observation_stamp_ns, max(now_ns, request.start_ns) + FUTURE_NS
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
        return
    if chunk.residual.shape != chunk.actions.shape or not np.all(np.isfinite(chunk.residual)):
        yield 'its residual is not finite or not of the shape of its actions'
        return
    with np.errstate(over='ignore'):
        total = with_residual(chunk)
    if not np.all(np.isfinite(total)):
        yield 'its actions and residual are too large to be added'


def allowed_rows(chunk: ActionChunk, max_age_s: float) -> tuple[int, str]:
    """
    Return how many rows may run whatever a strategy says, and what limits them.

    :param max_age_s: from the observation's stamp to the end of a row
    """
    lead_s = seconds(chunk.start_ns - chunk.observation_stamp_ns)
    by_age = math.floor((max_age_s - lead_s) / chunk.dt_s + 1e-6) if max_age_s < 1e6 else 1 << 31
    ready = known_rows(chunk)
    if ready < min(by_age, chunk.horizon):
        return ready, 'rows not ready'
    return max(by_age, 0), 'age'
