"""What the values of a plan must look like: people write them by hand."""

from collections.abc import Callable, Mapping, Sequence
import string
from typing import Any

from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.eval.runner import PARTS

MAX_ROWS = 1000  # longer than any chunk
MAX_EPISODES = 1_000_000
MAX_SEED = 2**31 - 1
WORDS = ('policy', 'task')  # that the name of a checkpoint is made of


def values(plan: Any) -> None:
    """
    Refuse a plan with values of the wrong kind.

    :raises ConfigError: naming the field, its value and what is allowed
    """
    for name in ('tasks', 'policies', 'disturbances'):
        _each(name, getattr(plan, name), _is_name, 'names')
    _each('latencies_s', plan.latencies_s, _is_number, 'numbers of seconds')
    _each('horizons', plan.horizons, _is_rows, f'whole numbers from 1 to {MAX_ROWS}')
    if plan.curve is not None:
        _each('curve', plan.curve, _is_rows, f'whole numbers from 1 to {MAX_ROWS}', empty=True)
    for name in ('episodes', 'choice_episodes', 'overlap_episodes', 'calibration_episodes'):
        whole(name, getattr(plan, name), 1, MAX_EPISODES)
    whole('seed', plan.seed, 0, MAX_SEED)
    _options('parts', plan.parts)
    for name in plan.parts:
        if name not in PARTS:
            raise ConfigError(f'parts: {UnknownNameError("part", name, PARTS)}')
    _options('task_options', plan.task_options)
    _checkpoint(plan.checkpoint)


def entry(one: Any) -> None:
    """
    Refuse an entry with values of the wrong kind.

    :raises ConfigError: naming the field, its value and what is allowed
    """
    for name in ('label', 'plugin'):
        if not _is_name(getattr(one, name)):
            raise ConfigError(f'entries: {name} {getattr(one, name)!r}, must be a name')
    _options(f'entries: {one.label}', {'options': one.options})
    _options(f'entries: {one.label}: parts', one.parts)


def _each(
    name: str, found: Any, fits: Callable[[Any], bool], what: str, *, empty: bool = False
) -> None:
    if not isinstance(found, tuple) or not all(fits(value) for value in found):
        raise ConfigError(f'{name}: {found!r}, must be a list of {what}')
    if not found and not empty:
        raise ConfigError(f'{name}: at least one is needed')


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_rows(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_ROWS


def variant(one: Any) -> None:
    """
    Refuse a variant of a policy with values of the wrong kind.

    :raises ConfigError: naming the field, its value and what is allowed
    """
    for name in ('label', 'checkpoint'):
        if not _is_name(getattr(one, name)):
            raise ConfigError(f'variants: {name} {getattr(one, name)!r}, must be a name')
    _checkpoint(one.checkpoint, ('task',))
    _options(f'variants: {one.label}', {'options': one.options})


def whole(name: str, value: Any, low: int, high: int) -> None:
    """Refuse what is no whole number in a range; raises ConfigError."""
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(f'{name}: {value!r}, must be a whole number from {low} to {high}')


def _options(name: str, found: Any) -> None:
    """Refuse all but options by name, by the name of what they are for."""
    fits = isinstance(found, Mapping) and all(
        isinstance(key, str)
        and isinstance(options, Mapping)
        and all(isinstance(option, str) for option in options)
        for key, options in found.items()
    )
    if not fits:
        raise ConfigError(f'{name}: {found!r}, must be options by name')


def _checkpoint(text: Any, allowed: Sequence[str] = WORDS) -> None:
    try:
        words = [word for _, word, _, _ in string.Formatter().parse(text) if word is not None]
        fits = bool(text) and set(words) <= set(allowed)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        may = ' and '.join(f'{{{word}}}' for word in allowed)
        raise ConfigError(f'checkpoint: {text!r}, must be a name in which {may} may stand')
