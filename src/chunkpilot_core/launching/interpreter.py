"""
From a launch file and its arguments to the list of processes to start.

Every tag has one function. The files must mean the same to ``ros2 launch``; what is not listed in
``TAGS`` is refused with its line.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
import os
from pathlib import Path
from typing import Any

from chunkpilot_core.errors import ChunkpilotError, ConfigError, UnknownNameError
from chunkpilot_core.launching import packages, parameters
from chunkpilot_core.launching.document import Entity, LaunchError, read
from chunkpilot_core.launching.substitutions import evaluate, Scope, split, truth


@dataclass(frozen=True, slots=True)
class Process:
    """
    One process to start. ``parameters`` are files, or YAML texts that become files when it starts.
    """

    name: str
    command: tuple[str, ...]
    where: str = ''
    environment: Mapping[str, str] = field(default_factory=dict)
    parameters: tuple[Path | str, ...] = ()
    folder: str | None = None
    respawn: bool = False
    respawn_delay_s: float = 0.0
    required: bool = False


@dataclass(frozen=True, slots=True)
class Argument:
    """A declared launch argument; ``default`` is None where it has to be given."""

    name: str
    default: str | None
    description: str
    choices: tuple[str, ...]


@dataclass
class _State:
    """What the tags before have set; groups work on a copy."""

    variables: dict[str, str]
    environment: dict[str, str]
    namespace: str
    processes: list[Process]


def interpret(file: Path, arguments: Mapping[str, str]) -> list[Process]:
    """
    Return the processes that a launch file starts, in its order.

    :param arguments: by name, as given by the user
    :raises LaunchError: whatever is wrong, with file and line
    :raises UnknownNameError: an argument that the file does not declare
    """
    root = read(file)
    known = declared(file)
    for name in arguments:
        if name not in known:
            raise UnknownNameError(f'argument of {file.name}:', name, known)
    state = _State(dict(arguments), {}, '', [])
    _run(root, state)
    return _unique_names(state.processes)


def declared(file: Path) -> dict[str, Argument]:
    """Return the arguments that a launch file and the files that it includes declare, by name."""
    found: dict[str, Argument] = {}
    values: dict[str, str] = {}
    for entity in read(file).walk():
        if entity.tag == 'arg' and 'name' in entity.attributes:
            argument = _argument(entity)
            found.setdefault(argument.name, argument)
            values.setdefault(argument.name, argument.default or '')
        elif entity.tag == 'include' and 'file' in entity.attributes:
            passed = {item.attributes.get('name') for item in entity.entities('arg')}
            try:
                inner = _text(entity, 'file', _State(values, {}, '', []))
            except LaunchError:
                continue  # its path depends on something that is known only when the file runs
            if Path(inner).is_file():
                for name, argument in declared(Path(inner)).items():
                    if name not in passed:
                        found.setdefault(name, argument)
    return found


def _run(entity: Entity, state: _State) -> None:
    for child in entity.children:
        if child.tag not in TAGS:
            raise child.error(str(UnknownNameError('tag', child.tag, TAGS)))
        if _applies(child, state):
            TAGS[child.tag](child, state)


def _applies(entity: Entity, state: _State) -> bool:
    if 'if' in entity.attributes and 'unless' in entity.attributes:
        raise entity.error('only one of if and unless is allowed')
    if 'if' in entity.attributes:
        return _truth(entity, 'if', state)
    return not _truth(entity, 'unless', state)


def _truth(entity: Entity, name: str, state: _State) -> bool:
    text = _text(entity, name, state, 'false')
    try:
        return truth(text)
    except ConfigError as error:
        raise entity.error(f'{name}: {error}') from error


def _text(entity: Entity, name: str, state: _State, default: str = '') -> str:
    """
    Return an attribute as text with its substitutions made.

    :raises LaunchError: it is no text: ROS 2 refuses ``true`` and ``5`` where it expects text
    """
    value = entity.attributes.get(name, default)
    if not isinstance(value, str):
        raise entity.error(f'attribute {name!r} must be text, in quotes: {value!r}')
    try:
        return evaluate(value, Scope(state.variables, state.environment, entity.file.parent))
    except ChunkpilotError as error:
        raise entity.error(f'{name}: {error}') from error


def _plain(entity: Entity, name: str, kind: type, default: Any) -> Any:
    """Return an attribute that ROS 2 reads without substitutions, and as this type only."""
    value = entity.attributes.get(name, default)
    if not isinstance(value, kind):
        raise entity.error(f'attribute {name!r} must be {kind.__name__}, got {value!r}')
    return value


def _argument(entity: Entity) -> Argument:
    entity.check(('name', 'default', 'description', 'choice', *CONDITIONS), ('name',))
    choices = []
    for item in entity.entities('choice'):
        item.check(('value',), ('value',))
        choices.append(str(_plain(item, 'value', str, None)))
    return Argument(
        _plain(entity, 'name', str, None),
        _plain(entity, 'default', str, None) if 'default' in entity.attributes else None,
        _plain(entity, 'description', str, ''),
        tuple(choices),
    )


def _arg(entity: Entity, state: _State) -> None:
    argument = _argument(entity)
    if argument.name not in state.variables:
        if argument.default is None:
            text = f' ({argument.description})' if argument.description else ''
            raise entity.error(
                f'argument {argument.name!r}{text} has to be given: {argument.name}:=VALUE'
            )
        state.variables[argument.name] = _text(entity, 'default', state)
    value = state.variables[argument.name]
    if argument.choices and value not in argument.choices:
        raise entity.error(
            str(UnknownNameError(f'value of {argument.name}:', value, argument.choices))
        )


def _let(entity: Entity, state: _State) -> None:
    entity.check(('name', 'value', *CONDITIONS), ('name', 'value'))
    state.variables[_text(entity, 'name', state)] = _text(entity, 'value', state)


def _set_env(entity: Entity, state: _State) -> None:
    entity.check(('name', 'value', *CONDITIONS), ('name', 'value'))
    state.environment[_text(entity, 'name', state)] = _text(entity, 'value', state)


def _namespace(entity: Entity, state: _State) -> None:
    entity.check(('namespace', *CONDITIONS), ('namespace',))
    state.namespace = _join(state.namespace, _text(entity, 'namespace', state))


def _join(outer: str, inner: str) -> str:
    if inner.startswith('/'):
        return inner.rstrip('/')
    return '/'.join((outer, inner)) if inner else outer


def _group(entity: Entity, state: _State) -> None:
    entity.check(('scoped', *CONDITIONS))
    if not _plain(entity, 'scoped', bool, True):
        _run(entity, state)
        return
    _run(
        entity,
        _State(dict(state.variables), dict(state.environment), state.namespace, state.processes),
    )


def _include(entity: Entity, state: _State) -> None:
    entity.check(('file', 'arg', *CONDITIONS), ('file',))
    for item in entity.entities('arg'):
        item.check(('name', 'value'), ('name', 'value'))
        state.variables[_text(item, 'name', state)] = _text(item, 'value', state)
    file = Path(_text(entity, 'file', state))
    if file.suffix not in ('.yaml', '.yml'):
        raise entity.error(f'{file}: only YAML launch files can be included')
    if file.resolve() == entity.file.resolve():
        raise entity.error('the file includes itself')
    _run(read(file), state)


def _node(entity: Entity, state: _State) -> None:
    entity.check((*NODE, *PROCESS, *CONDITIONS), ('pkg', 'exec'))
    package, name = _text(entity, 'pkg', state), _text(entity, 'exec', state)
    try:
        program = packages.executable(package, name)
    except ConfigError as error:
        raise entity.error(str(error)) from error
    node_name = _text(entity, 'name', state)
    namespace = _join(state.namespace, _text(entity, 'namespace', state))
    namespace = '/' + namespace.strip('/') if namespace else ''
    ros: list[str] = []
    if node_name:
        ros += ['-r', f'__node:={node_name}']
    if namespace:
        ros += ['-r', f'__ns:={namespace}']
    for item in entity.entities('remap'):
        item.check(('from', 'to'), ('from', 'to'))
        ros += ['-r', f'{_text(item, "from", state)}:={_text(item, "to", state)}']
    ros += _words(entity, 'ros_args', state)
    # As in launch_ros: with the full name as key, so that what stands here beats what stands in a
    # file for this node.
    key = f'{namespace}/{node_name}' if node_name else '/**'
    command = (str(program), *_words(entity, 'args', state), '--ros-args', *ros)
    given = parameters.collect(entity, key, lambda item, attribute: _text(item, attribute, state))
    state.processes.append(_process(entity, state, node_name or name, command, given))


def _executable(entity: Entity, state: _State) -> None:
    entity.check(('cmd', 'cwd', 'shell', *PROCESS, *CONDITIONS), ('cmd',))
    command = tuple(_words(entity, 'cmd', state)) + tuple(_words(entity, 'args', state))
    if not command:
        raise entity.error('cmd is empty')
    if _plain(entity, 'shell', bool, False):
        command = (
            '/bin/sh',
            '-c',
            f'{_text(entity, "cmd", state)} {_text(entity, "args", state)}',
        )
    name = _text(entity, 'name', state) or Path(command[0]).name
    state.processes.append(_process(entity, state, name, command, ()))


def _process(
    entity: Entity,
    state: _State,
    name: str,
    command: tuple[str, ...],
    given: tuple[Path | str, ...],
) -> Process:
    environment = dict(state.environment)
    for item in entity.entities('env'):
        item.check(('name', 'value'), ('name', 'value'))
        environment[_text(item, 'name', state)] = _text(item, 'value', state)
    on_exit = entity.attributes.get('on_exit', '')
    if on_exit not in ('', 'shutdown'):
        raise entity.error(f'on_exit: {on_exit!r} is not known, allowed is "shutdown"')
    delay = _plain(entity, 'respawn_delay', float, 0.0)
    if delay < 0.0:
        raise entity.error(f'respawn_delay: {delay} s is below 0')
    return Process(
        name,
        command,
        entity.where,
        environment,
        given,
        _text(entity, 'cwd', state) or None,
        _truth(entity, 'respawn', state),
        delay,
        on_exit == 'shutdown',
    )


def _words(entity: Entity, name: str, state: _State) -> list[str]:
    """Split as a shell does, then substitute: a path with blanks stays one word."""
    scope = Scope(state.variables, state.environment, entity.file.parent)
    try:
        return [evaluate(word, scope) for word in split(_plain(entity, name, str, ''))]
    except ChunkpilotError as error:
        raise entity.error(f'{name}: {error}') from error


def _unique_names(processes: list[Process]) -> list[Process]:
    seen: dict[str, int] = {}
    result = []
    for process in processes:
        count = seen[process.name] = seen.get(process.name, 0) + 1
        result.append(replace(process, name=f'{process.name}-{count}') if count > 1 else process)
    return result


def find(name: str) -> Path:
    """
    Return a launch file given by path, or by the bare name of one of chunkpilot's own.

    :raises UnknownNameError: no such file
    """
    path = Path(name)
    if path.is_file():
        return path
    folders = [Path(__file__).resolve().parents[3] / 'launch']
    if os.environ.get('AMENT_PREFIX_PATH'):
        folders += [prefix / 'share/chunkpilot/launch' for prefix in packages.prefixes()]
    known: dict[str, Path] = {}
    for folder in folders:
        for file in folder.glob('*.launch.yaml'):
            known.setdefault(file.name, file)
    for candidate in (name, f'{name}.launch.yaml'):
        if candidate in known:
            return known[candidate]
    raise UnknownNameError('launch file', name, known)


CONDITIONS = ('if', 'unless')
PROCESS = ('name', 'args', 'env', 'output', 'respawn', 'respawn_delay', 'on_exit')
NODE = ('pkg', 'exec', 'namespace', 'param', 'remap', 'ros_args', 'cwd')
TAGS: Mapping[str, Callable[[Entity, _State], None]] = {
    'arg': _arg,
    'let': _let,
    'node': _node,
    'executable': _executable,
    'group': _group,
    'include': _include,
    'push_ros_namespace': _namespace,
    'set_env': _set_env,
}
