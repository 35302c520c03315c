"""Faults of processes: killed, or asleep for a while. Only those of the same graph are touched."""

from dataclasses import dataclass
import os
from pathlib import Path
import re
from typing import ClassVar

from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError

PROC = Path('/proc')
NODES = re.compile(r'chunkpilot_nodes\.(\w+)$|/chunkpilot/(\w+)$|/bin/(\w+_node)$')


@dataclass(frozen=True)
class ProcessFault:
    """When it happens to which node."""

    kind: ClassVar[str]

    node: str = option('', 'name of the node, as in the launch file')
    at_s: float = option(0.0, 'since the plan began', unit='s', min=0.0)

    def __post_init__(self) -> None:
        if not re.fullmatch(r'[A-Za-z]\w*', self.node):
            raise ConfigError(f'node: {self.node!r} is no name of a node')


@dataclass(frozen=True)
class Kill(ProcessFault):
    """SIGKILL: the process has no chance to say anything."""

    kind: ClassVar[str] = 'kill'


@dataclass(frozen=True)
class Sleep(ProcessFault):
    """SIGSTOP, and SIGCONT a while later: the process is there, and does nothing."""

    kind: ClassVar[str] = 'sigstop'

    for_s: float = option(1.0, 'how long it sleeps', unit='s', min=0.01, max=3600.0)


def find(node: str, proc: Path = PROC) -> int:
    """
    Return the process id of a node that the launcher of this process has started, too.

    :raises ConfigError: there is none, or it can't be told which: nobody else's process is ever
        touched
    """
    launcher, own = os.getppid(), os.getpid()
    if launcher <= 1:
        raise ConfigError('faults of processes need a launcher that has started all of them')
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdigit() or int(folder.name) == own:
            continue
        try:
            words = (folder / 'cmdline').read_bytes().decode(errors='replace').split('\0')
            parent = int((folder / 'stat').read_text().rpartition(')')[2].split()[1])
            settings = (folder / 'environ').read_bytes().decode(errors='replace').split('\0')
        except (OSError, ValueError, IndexError):
            continue  # it has ended, or belongs to somebody else
        if parent == launcher and _name(words) == node and _domain(settings) == _own_domain():
            found.append(int(folder.name))
    if len(found) != 1:
        raise ConfigError(
            f'{len(found)} processes of this launcher and domain are node {node!r}, expected one'
        )
    return found[0]


def _name(words: list[str]) -> str:
    """Return the name of the node that a command line starts, '' for none of ours."""
    programs = [match for word in words if (match := NODES.search(word))]
    if not programs:
        return ''
    given = [word.removeprefix('__node:=') for word in words if word.startswith('__node:=')]
    return given[-1] if given else next(name for name in programs[0].groups() if name)


def _domain(settings: list[str]) -> str:
    found = [word.partition('=')[2] for word in settings if word.startswith('ROS_DOMAIN_ID=')]
    return found[-1] if found else '0'


def _own_domain() -> str:
    return os.environ.get('ROS_DOMAIN_ID', '0')
