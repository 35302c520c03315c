"""
Which program made a result: a hash of what an episode runs, and of nothing else.

Results of two programs must never be mixed, but an edit of the command line, of another strategy
or of a comment must not throw hours of episodes away. So the modules are followed by their
imports from the closed loop and the plug-ins of a result, and read without docstrings, comments
and layout.
"""

import ast
from collections.abc import Iterable
from functools import cache
import hashlib
from pathlib import Path

from chunkpilot_core import registry, robot

PACKAGE = 'chunkpilot_core'
ROOT = Path(registry.__file__).parent
LOOPS = ('eval.loop', 'eval.runner')
EVERYWHERE = ('perception', 'safety')  # families of which an episode runs whatever is configured
DATA = ('robots', 'cameras')  # below config/


def sha256(plugins: Iterable[str]) -> str:
    """
    Return the hash of the program that runs episodes with some plug-ins.

    :param plugins: ``family.name`` of strategy, policy and task; those out of this tree are left
        out
    """
    return _sha256(tuple(plugins))


@cache
def _sha256(plugins: tuple[str, ...]) -> str:
    roots = [*LOOPS, *(f'{family}.{name}' for family in EVERYWHERE for name in _names(family))]
    known = [name for name in plugins if _file(f'{PACKAGE}.{name}') is not None]
    digest = hashlib.sha256()
    for module in sorted(closure(f'{PACKAGE}.{name}' for name in (*roots, *known))):
        digest.update(f'{module} {_digest(module)}\n'.encode())
    for folder in DATA:
        for file in sorted((robot.config_dir() / folder).glob('*.yaml')):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def closure(modules: Iterable[str]) -> set[str]:
    """Return modules of the core with everything of the core that they import."""
    waiting, found = list(modules), set()
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        waiting += _imports(module)
        parent = module.rpartition('.')[0]
        if parent:
            waiting.append(parent)
    return found


def _names(family: str) -> list[str]:
    return [file.stem for file in (ROOT / family).glob('*.py') if file.stem != '__init__']


def _file(module: str) -> Path | None:
    """Return the file of a module, None if it is not one of the core's."""
    parts = module.split('.')
    if parts[0] != PACKAGE or not all(part.isidentifier() for part in parts):
        return None
    place = ROOT.joinpath(*parts[1:])
    for file in (place.with_suffix('.py'), place / '__init__.py'):
        if file.is_file():
            return file
    return None


@cache
def _tree(module: str) -> ast.Module:
    file = _file(module)
    assert file is not None, module
    return ast.parse(file.read_text(encoding='utf-8'))


@cache
def _imports(module: str) -> tuple[str, ...]:
    """Return the core's modules that a module imports, wherever in it."""
    found = []
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f'{node.module}.{alias.name}' for alias in node.names)]
    return tuple(name for name in found if _file(name) is not None)


@cache
def _digest(module: str) -> str:
    tree = _tree(module)
    for node in ast.walk(tree):
        body = getattr(node, 'body', None)
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            node.body = [*body[1:], ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()
