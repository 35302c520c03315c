"""
Records what an executor was told and what it said, and asks a fresh one whether it agrees.

An executor reads no clock and draws no numbers: the same calls give the same results, to the last
bit. So a trace of a node is a test case of the core, and a fault that was seen once can be seen
again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from chunkpilot_core.execution.runtime.executor import Executor
import numpy as np

TOLD = (
    'configure',
    'cut',
    'observe',
    'receive',
    'remember_delays',
    'restart_pacing',
    'set_episode',
    'set_guard',
    'set_speed_scale',
    'tick',
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an executor's method; ``raised`` is the text of an error, '' for none."""

    method: str
    arguments: tuple[Any, ...]
    result: Any = None
    raised: str = ''


def record(executor: Executor) -> list[Call]:
    """Return a list that grows with every call that changes an executor, from now on."""
    recorder = _Recorder()
    for method in TOLD:
        setattr(executor, method, recorder.around(method, getattr(executor, method)))
    return recorder.calls


class _Recorder:
    """Leaves a call behind for each that comes from outside."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._inside = False

    def around(self, method: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self._inside:
                return do(*arguments)
            kept = tuple(_kept(argument) for argument in arguments)
            self._inside = True
            try:
                result = do(*kept)
            except Exception as error:
                self.calls.append(Call(method, kept, raised=str(error)))
                raise
            finally:
                self._inside = False
            self.calls.append(Call(method, kept, result))
            return result

        return call


def _kept(argument: Any) -> Any:
    """Return an argument that stays as it is, whatever the caller does with his."""
    if isinstance(argument, np.ndarray):
        return argument.copy()
    return tuple(argument) if isinstance(argument, Iterator) else argument


def differences(calls: Sequence[Call], executor: Executor) -> list[str]:
    """
    Tell a fresh executor the same, and return where it says something else.

    :param executor: of the same configuration, session and strategy, told nothing yet
    """
    found = []
    for number, call in enumerate(calls):
        result, raised = None, ''
        try:
            result = getattr(executor, call.method)(*call.arguments)
        except Exception as error:
            raised = str(error)
        if raised != call.raised:
            found.append(f'{number}, {call.method}: raised {raised!r}, was {call.raised!r}')
        found += [f'{number}, {call.method}{text}' for text in _unequal(call.result, result, '')]
    return found


def _unequal(was: Any, now: Any, where: str) -> Iterator[str]:
    if is_dataclass(was) and type(was) is type(now):
        for field in fields(was):
            yield from _unequal(
                getattr(was, field.name), getattr(now, field.name), f'{where}.{field.name}'
            )
    elif isinstance(was, tuple) and isinstance(now, tuple) and len(was) == len(now):
        for i, pair in enumerate(zip(was, now, strict=True)):
            yield from _unequal(*pair, f'{where}[{i}]')
    elif isinstance(was, (np.ndarray, float)) and isinstance(now, (np.ndarray, float)):
        if not np.array_equal(np.asarray(was), np.asarray(now), equal_nan=True):
            yield f'{where}: {now}, was {was}'
    elif was != now:
        yield f'{where}: {now!r}, was {was!r}'
