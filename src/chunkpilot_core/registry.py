"""
Plug-ins by name: one family = one folder, one plug-in = one file of that name.

Support code of a family lives in sub-packages, so that every plain file beside ``base.py`` is a
plug-in and names can be listed without importing anything. Out-of-tree plug-ins come by entry
point ``chunkpilot.<family>`` or as ``package.module:Class``.
"""

import ast
from importlib import import_module, metadata
import importlib.util
import inspect
from pathlib import Path
import pkgutil
from typing import Any

from chunkpilot_core.errors import ConfigError, UnknownNameError

FAMILIES = (
    'perception', 'policies', 'execution', 'safety', 'clearance', 'learning', 'tasks', 'teleop',
)  # fmt: skip


def names(family: str) -> list[str]:
    """
    List the plug-ins of a family without importing them.

    :raises UnknownNameError: no such family
    """
    return sorted({*_own(family), *_foreign(family)})


def get(family: str, name: str) -> type[Any]:
    """
    Return a plug-in's class, importing its file only.

    :param family: one of :data:`FAMILIES`
    :param name: plug-in name, or ``package.module:Class``
    :raises UnknownNameError: no such plug-in; the message lists the known ones and the nearest
    :raises ConfigError: the file does not hold exactly one plug-in class
    """
    base = base_class(family)
    if ':' in name:
        module_name, _, class_name = name.partition(':')
        try:
            found = getattr(import_module(module_name), class_name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f'{family} plug-in {name!r}: {error}') from error
    elif name in _own(family):
        found = _only_class(import_module(f'chunkpilot_core.{family}.{name}'), base)
    elif name in _foreign(family):
        found = _foreign(family)[name].load()
    else:
        raise UnknownNameError(f'{family} plug-in', name, names(family))
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise ConfigError(f'{family} plug-in {name!r}: {found!r} is no {base.__name__}')
    return found


def literal(family: str, name: str, attribute: str, default: Any = None) -> Any:
    """
    Return a class attribute of a plug-in, a literal, without importing its file.

    :param default: for a plug-in that is not of this package or does not set it
    """
    if name not in _own(family):
        return default
    found = importlib.util.find_spec(f'chunkpilot_core.{family}.{name}')
    assert found is not None
    assert found.origin is not None
    tree = ast.parse(Path(found.origin).read_text(encoding='utf-8'))
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for entry in (node for node in cls.body if isinstance(node, ast.Assign)):
            if any(isinstance(to, ast.Name) and to.id == attribute for to in entry.targets):
                return ast.literal_eval(entry.value)
    return default


def base_class(family: str) -> type[Any]:
    """
    Return the abstract class that the members of a family implement: the one named by
    ``base.BASE``.
    """
    if family not in FAMILIES:
        raise UnknownNameError('plug-in family', family, FAMILIES)
    base: type[Any] = import_module(f'chunkpilot_core.{family}.base').BASE
    return base


def _own(family: str) -> list[str]:
    if family not in FAMILIES:
        raise UnknownNameError('plug-in family', family, FAMILIES)
    package = import_module(f'chunkpilot_core.{family}')
    return [
        module.name
        for module in pkgutil.iter_modules(package.__path__)
        if not module.ispkg and module.name != 'base'
    ]


def _foreign(family: str) -> dict[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=f'chunkpilot.{family}')}


def _only_class(module: Any, base: type[Any]) -> type[Any]:
    found = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, base)
        and member.__module__ == module.__name__
        and not inspect.isabstract(member)
    ]
    if len(found) != 1:
        raise ConfigError(f'{module.__name__}: {len(found)} plug-in classes, must be exactly one')
    return found[0]
