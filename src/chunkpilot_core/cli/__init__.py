"""
The command ``chunkpilot <verb>``: one file per verb in this folder.

A verb's file has ``HELP`` (one line), ``add_arguments(parser)`` and ``main(args)``, which returns
None, or a text: the error, with exit code 1. Only the file of the verb that runs is imported.

A verb with sub-verbs has ``HELP`` and ``SUB_VERBS``, their names and files: see bag.py.
"""

import argparse
import ast
from collections.abc import Mapping, Sequence
from importlib import import_module, metadata
from pathlib import Path
import pkgutil
import sys

from chunkpilot_core.errors import ChunkpilotError, UnknownNameError


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run a verb.

    :param argv: words after the program's name; None = the process's
    :returns: exit code: 0, 1 after an error, 2 after a wrong call, 130 after Ctrl-C
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if not words or words[0] in ('-h', '--help', 'help'):
            print(_overview())
            return 0 if words else 2
        if words[0] == '--version':
            print(f'chunkpilot {version()}')
            return 0
        if words[0] not in verbs():
            print(f'chunkpilot: {UnknownNameError("verb", words[0], verbs())}', file=sys.stderr)
            return 2
        return _run(words[0], words[1:])
    except ChunkpilotError as error:
        print(f'chunkpilot: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # ... | head
        sys.stderr.close()
        return 1
    except OSError as error:  # a full disk, a folder that may not be written
        print(f'chunkpilot {words[0]}: {error}', file=sys.stderr)
        return 1


def verbs() -> list[str]:
    """List the verbs without importing them."""
    names = (module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)
    return sorted(name.replace('_', '-') for name in names if not name.startswith('_'))


def version() -> str:
    """Return the version of the installed package, or of the source tree."""
    try:
        return metadata.version('chunkpilot')
    except metadata.PackageNotFoundError:
        pass
    try:
        return metadata.version('chunkpilot_core')
    except metadata.PackageNotFoundError:
        return 'of an unbuilt source tree'


def _run(verb: str, words: Sequence[str]) -> int:
    module = import_module(f'{__name__}.{verb.replace("-", "_")}')
    subs: Mapping[str, str] = getattr(module, 'SUB_VERBS', {})
    if subs:
        if not words or words[0] in ('-h', '--help', 'help'):
            print(_overview(f'{verb} ', subs))
            return 0 if words else 2
        if words[0] not in subs:
            print(
                f'chunkpilot: {UnknownNameError(f"verb of {verb}", words[0], subs)}',
                file=sys.stderr,
            )
            return 2
        module = import_module(f'{__name__}.{subs[words[0]]}')
        verb, words = f'{verb} {words[0]}', words[1:]
    parser = argparse.ArgumentParser(prog=f'chunkpilot {verb}', description=module.HELP)
    module.add_arguments(parser)
    if not {'-h', '--help'}.isdisjoint(words):  # intermixed parsing forgets defaults in its help
        parser.print_help()
        return 0
    try:
        args = parser.parse_intermixed_args(words)  # options may stand between arguments
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    failure: str | None = module.main(args)
    if failure is None:
        return 0
    if failure:
        print(f'chunkpilot {verb}: {failure}', file=sys.stderr)
    return 1


def _overview(prefix: str = '', subs: Mapping[str, str] | None = None) -> str:
    known = {verb: verb.replace('-', '_') for verb in verbs()} if subs is None else subs
    width = max(len(verb) for verb in known)
    lines = [
        f'usage: chunkpilot {prefix}VERB ...',
        '',
        f'verbs (chunkpilot {prefix}VERB --help says more):',
    ]
    lines += [f'  {verb.ljust(width)}  {_help(file)}' for verb, file in known.items()]
    return '\n'.join(lines)


def _help(file: str) -> str:
    """Read a verb's HELP from its source: importing all of them would take seconds."""
    for statement in ast.parse(_file(file).read_text(encoding='utf-8')).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == 'HELP':
            return str(ast.literal_eval(statement.value))
    return ''


def _file(module: str) -> Path:
    return Path(__file__).with_name(f'{module}.py')
