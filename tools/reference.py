#!/usr/bin/env python3
"""
Write docs/parameters.md and docs/interfaces.md from the code; ``make docs``.

The parameters come from the dataclasses that the nodes themselves declare, the interfaces from
their files, so that neither page can be wrong for long: a test compares them.
"""

import ast
from importlib import import_module
from pathlib import Path

from chunkpilot_core import config, registry
from chunkpilot_nodes.spin import ProcessConfig

ROOT = Path(__file__).resolve().parents[1]
# Families whose plug-ins a node declares with their name as prefix.
FAMILY_OF = {
    'perception_node': 'perception',
    'execution_node': 'execution',
    'guard_node': 'safety',
    'learner_node': 'learning',
    'sim_node': 'tasks',
    'teleop_node': 'teleop',
}


def parameters() -> str:
    """Return the page of parameters: per node what it declares, per plug-in what it adds."""
    parts = [
        '# Parameters',
        'Made by `make docs` from the code. All are read-only while a node runs, but `limits.*` '
        'of the guard, which can be tightened; a misspelt or '
        'out-of-range one stops the node with the nearest name or the allowed range.',
        '## Every node\n\n' + config.reference(ProcessConfig),
    ]
    for file in sorted((ROOT / 'src/chunkpilot_nodes').glob('*_node.py')):
        name = file.stem
        about = first_line(import_module(f'chunkpilot_nodes.{name}'))
        parts.append(f'## {name}\n\n{about}\n\n{one_table(declared_configs(file))}')
        family = FAMILY_OF.get(name)
        for plugin in registry.names(family) if family else ():
            cls = registry.get(family, plugin)
            table = config.reference(cls.Config, f'{plugin}.')
            about = first_line(import_module(cls.__module__))
            parts.append(f'### {family}/{plugin}\n\n{about}\n\n{table}')
    return '\n\n'.join(parts) + '\n'


def one_table(classes: list[tuple[type, str]]) -> str:
    """Return the options of several classes, each with its prefix, under one header."""
    tables = [config.reference(cls, prefix).split('\n') for cls, prefix in classes]
    return '\n'.join([*tables[0][:2], *(row for table in tables for row in table[2:])])


def declared_configs(file: Path) -> list[tuple[type, str]]:
    """Return classes and prefixes of ``params.declare(self, <class>, '<prefix>')``, in order."""
    module = import_module(f'chunkpilot_nodes.{file.stem}')
    found = []
    for call in ast.walk(ast.parse(file.read_text())):
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == 'params.declare'):
            continue
        name = ast.unparse(call.args[1])
        prefix = call.args[2].value if isinstance(call.args[-1], ast.Constant) else ''
        if len(call.args) == 2 + bool(prefix) and name.replace('.', '').isidentifier():
            found.append((eval(name, vars(module)), prefix))
    return found


def first_line(module: object) -> str:
    """Return the summary of a module's docstring."""
    return (module.__doc__ or '').strip().split('\n\n')[0].replace('\n', ' ')


def interfaces() -> str:
    """Return the page of messages, services and actions: their files, with an index."""
    files = [
        file
        for folder, suffix in (('msg', 'msg'), ('srv', 'srv'), ('action', 'action'))
        for file in sorted((ROOT / folder).glob(f'*.{suffix}'))
    ]
    index = ['| interface | what it is |', '|---|---|']
    bodies = []
    for file in files:
        text = file.read_text().strip()
        summary = text.split('\n', 1)[0].lstrip('# ')
        anchor = f'{file.parent.name}{file.stem}'.lower()
        index.append(f'| [{file.parent.name}/{file.stem}](#{anchor}) | {summary} |')
        bodies.append(f'## {file.parent.name}/{file.stem}\n\n```\n{text}\n```')
    head = '# Interfaces\n\nMade by `make docs` from the files in `msg/`, `srv/` and `action/`.'
    return '\n\n'.join([head, '\n'.join(index), *bodies]) + '\n'


PAGES = {'parameters.md': parameters, 'interfaces.md': interfaces}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (ROOT / 'docs' / name).write_text(page())
        print(f'wrote docs/{name}')


if __name__ == '__main__':
    main()
