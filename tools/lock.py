#!/usr/bin/env python3
"""
Pin every package of the PyPI route: requirements/direct.txt -> requirements/lock.txt.

Run with the environment's Python (3.11, Linux, x86-64) after an edit of direct.txt. Versions that
are pinned already stay, unless ``--upgrade`` is given.
"""

import argparse
import json
from pathlib import Path
import re
import subprocess
import sys
import tempfile

FOLDER = Path(__file__).resolve().parent.parent / 'requirements'
HEADER = """\
# Every package of the environment that `make setup` makes from wheels: Python 3.11, Linux, x86-64.
# Written by tools/lock.py from direct.txt; installed with --no-deps. torch is in torch.txt.
"""


def resolve(constraints: Path | None) -> dict[str, str]:
    """Return the version of each package that pip would install into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / 'report.json'
        command = [sys.executable, '-m', 'pip', 'install', '--dry-run', '--ignore-installed']
        command += ['--quiet', '--report', str(report)]
        command += ['-r', str(FOLDER / 'direct.txt'), '-r', str(FOLDER / 'torch.txt')]
        command += ['-c', str(constraints)] if constraints else []
        subprocess.run(command, check=True)
        items = [item['metadata'] for item in json.loads(report.read_text())['install']]
    return {re.sub(r'[-_.]+', '-', item['name']).lower(): item['version'] for item in items}


def main() -> None:
    """Write the lock."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--upgrade', action='store_true', help='take the newest of everything')
    lock = FOLDER / 'lock.txt'
    pinned = resolve(None if parser.parse_args().upgrade or not lock.exists() else lock)
    # pip adds no build tag to the CPU build's dependencies, but torch itself is in its own file.
    lines = [f'{name}=={version}' for name, version in sorted(pinned.items()) if name != 'torch']
    lock.write_text(HEADER + '\n'.join(lines) + '\n')
    print(f'{lock}: {len(lines)} packages')


if __name__ == '__main__':
    main()
