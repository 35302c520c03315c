"""
Launch files as a tree of entities that know their line.

PyYAML's plain loader forgets where things stood and lets a repeated key win silently; a launch
file that is wrong should say where.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chunkpilot_core.errors import ConfigError, UnknownNameError
import yaml

# Attributes that hold a list of mappings, each an entity of its own without a tag in front.
LISTS = ('param', 'remap', 'env', 'arg', 'choice')


class LaunchError(ConfigError):
    """A launch file or its arguments are wrong; the message begins with file and line."""


@dataclass(frozen=True, slots=True)
class Entity:
    """One tag of a launch file with its attributes and, of groups, its children."""

    tag: str
    file: Path
    line: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    children: tuple['Entity', ...] = ()

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f'{self.file.name}:{self.line}'

    def error(self, text: str) -> LaunchError:
        """Return an error that names tag, file and line."""
        return LaunchError(f'{self.where}: {self.tag}: {text}')

    def check(self, known: tuple[str, ...], required: tuple[str, ...] = ()) -> None:
        """
        Refuse attributes that nobody reads.

        :raises LaunchError: unknown or missing attribute
        """
        for name in self.attributes:
            if name not in known:
                raise self.error(str(UnknownNameError('attribute', name, known)))
        for name in required:
            if name not in self.attributes:
                raise self.error(f'attribute {name!r} is missing')

    def entities(self, name: str) -> tuple['Entity', ...]:
        """Return a list attribute such as ``param``; empty where it is not given."""
        value = self.attributes.get(name, ())
        if not isinstance(value, tuple):
            raise self.error(f'attribute {name!r} must be a list of mappings')
        return value

    def walk(self) -> Iterator['Entity']:
        """Iterate over this entity and everything below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def read(file: Path) -> Entity:
    """
    Read a launch file.

    :returns: the entity ``launch`` with the file's actions as children
    :raises LaunchError: unreadable, no YAML, or not of the form of a launch file
    """
    try:
        node = yaml.compose(file.read_text(encoding='utf-8'), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise LaunchError(f'{file.name}:{line}: no YAML: {error.problem}') from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LaunchError(f'{file}: {error}') from error
    if not isinstance(node, yaml.MappingNode) or [key.value for key, _ in node.value] != [
        'launch'
    ]:
        raise LaunchError(f'{file.name}:1: a launch file is a mapping with the one key "launch"')
    return _entity('launch', node.value[0][1], file)


def _entity(tag: str, node: yaml.Node, file: Path) -> Entity:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        return Entity(tag, file, line, {}, _children(node, file))
    if not isinstance(node, yaml.MappingNode):
        raise LaunchError(f'{file.name}:{line}: {tag}: must be a mapping or a list')
    attributes: dict[str, Any] = {}
    children: tuple[Entity, ...] = ()
    for key_node, value in node.value:
        key = str(key_node.value)
        place = f'{file.name}:{key_node.start_mark.line + 1}: {tag}'
        if key in attributes:
            raise LaunchError(f'{place}: attribute {key!r} is given twice')
        if key == 'children':
            children = _children(value, file)
        else:
            attributes[key] = _attribute(key, value, file)
    return Entity(tag, file, line, attributes, children)


def _children(node: yaml.Node, file: Path) -> tuple[Entity, ...]:
    if not isinstance(node, yaml.SequenceNode):
        raise LaunchError(f'{file.name}:{node.start_mark.line + 1}: a list of actions is expected')
    return tuple(_child(item, file) for item in node.value)


def _child(node: yaml.Node, file: Path) -> Entity:
    if not isinstance(node, yaml.MappingNode) or len(node.value) != 1:
        raise LaunchError(
            f'{file.name}:{node.start_mark.line + 1}: an action is one tag with a mapping'
        )
    key, value = node.value[0]
    entity = _entity(str(key.value), value, file)
    return Entity(entity.tag, file, key.start_mark.line + 1, entity.attributes, entity.children)


def _attribute(key: str, node: yaml.Node, file: Path) -> Any:
    if key in LISTS and isinstance(node, yaml.SequenceNode):
        return tuple(_entity(key, item, file) for item in node.value)
    return yaml.SafeLoader('').construct_object(node, deep=True)
