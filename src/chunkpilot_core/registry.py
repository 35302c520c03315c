"""
Plug-ins by name: one family = one folder, one plug-in = one file of that name.

Support code of a family lives in sub-packages, so that every plain file beside ``base.py`` is a
plug-in and names can be listed without importing anything. Out-of-tree plug-ins come by entry
point ``chunkpilot.<family>`` or as ``package.module:Class``.
"""

from importlib import import_module, metadata
import inspect
import pkgutil
from typing import Any

from chunkpilot_core.errors import ConfigError, UnknownNameError

FAMILIES = ('perception', 'policies', 'execution', 'safety', 'learning', 'tasks')


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
