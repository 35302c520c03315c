"""
The ``param`` entries of a node: inline values and files, as parameter files in the order given.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from chunkpilot_core.launching.document import Entity
import yaml

Reader = Callable[[Entity, str], str]


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
    if isinstance(value, list):
        return value
    word = text(item, 'value')
    wanted = item.attributes.get('type', 'auto')
    if wanted not in ('auto', 'str', 'int', 'float', 'bool'):
        raise item.error(f'parameter {name!r}: type {wanted!r} is not known')
    if wanted == 'str' or (isinstance(value, str) and not word):
        return word
    if isinstance(value, float):
        return value  # 1.0 must not become the text "1.0" and then something else
    # As ROS 2 does: what a substitution gives is read as YAML, so that "5" is an integer.
    try:
        read = yaml.safe_load(word)
    except yaml.YAMLError:
        return word
    if wanted != 'auto':
        return _converted(item, name, read, wanted)
    return read if isinstance(read, (bool, int, float, str, list)) else word


def _converted(item: Entity, name: str, value: Any, wanted: str) -> Any:
    if wanted == 'float' and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value).__name__ != wanted:
        raise item.error(f'parameter {name!r}: {value!r} is no {wanted}')
    return value


def _document(key: str, values: dict[str, Any]) -> str:
    return yaml.safe_dump({key: {'ros__parameters': values}}, default_flow_style=False)
