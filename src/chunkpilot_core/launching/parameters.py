"""
The ``param`` entries of a node: inline values and files, as parameter files in the order given.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from chunkpilot_core.launching.document import Entity
import yaml

Reader = Callable[[Entity, str], str]
TYPES = ('str', 'int', 'float', 'bool')


def collect(entity: Entity, key: str, text: Reader) -> tuple[Path | str, ...]:
    """
    Return parameter files (paths) and inline parameters (YAML texts), later ones win.

    :param key: full node name for inline parameters, or ``/**``
    :param text: returns an attribute with substitutions made
    :raises LaunchError: a file that does not exist, a parameter without value, an unknown type
    """
    result: list[Path | str] = []
    inline: dict[str, Any] = {}
    for item in entity.entities('param'):
        if 'from' not in item.attributes:
            _add(inline, item, '', text)
            continue
        item.check(('from',))
        if inline:
            result.append(_document(key, inline))
            inline = {}
        file = Path(text(item, 'from'))
        if not file.is_file():
            raise item.error(f'parameter file {str(file)!r} does not exist')
        result.append(file)
    if inline:
        result.append(_document(key, inline))
    return tuple(result)


def _add(values: dict[str, Any], item: Entity, prefix: str, text: Reader) -> None:
    item.check(('name', 'value', 'param', 'type'), ('name',))
    name = prefix + text(item, 'name')
    if ('value' in item.attributes) == ('param' in item.attributes):
        raise item.error(f'parameter {name!r} needs either value or param')
    for inner in item.entities('param'):
        _add(values, inner, f'{name}.', text)
    if 'value' in item.attributes:
        if name in values:
            raise item.error(f'parameter {name!r} is given twice')
        values[name] = _value(item, name, text)


def _value(item: Entity, name: str, text: Reader) -> Any:
    value = item.attributes['value']
    wanted = item.attributes.get('type', '')
    if wanted not in ('', *TYPES):
        raise item.error(f'parameter {name!r}: type {wanted!r} is none of {", ".join(TYPES)}')
    if not isinstance(value, str):
        if wanted and type(value).__name__ != wanted:
            raise item.error(f'parameter {name!r}: {value!r} is no {wanted}')
        return value
    word = text(item, 'value')
    try:
        return _converted(word, wanted)
    except ValueError:
        raise item.error(f'parameter {name!r}: {word!r} is no {wanted}') from None


def _converted(word: str, wanted: str) -> Any:
    """Return a text as ROS 2 does: "5" is an integer unless a type is given, "" stays text."""
    if wanted in ('int', 'float'):
        return int(word) if wanted == 'int' else float(word)
    if wanted == 'str' or not word:
        return word
    try:
        value = yaml.safe_load({'1': 'true', '0': 'false'}.get(word, word) if wanted else word)
    except yaml.YAMLError:
        value = None
    if wanted == 'bool' and not isinstance(value, bool):
        raise ValueError(word)
    return value if isinstance(value, (bool, int, float, str, list)) else word


def _document(key: str, values: dict[str, Any]) -> str:
    return yaml.safe_dump({key: {'ros__parameters': values}}, default_flow_style=False)
