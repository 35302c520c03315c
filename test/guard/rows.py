"""
Where each row of the fault matrix (GUARDRAIL.md, 53 rows) has its tests: those that are marked.

    python test/guard/rows.py
"""

import ast
from collections import defaultdict
from pathlib import Path

ROWS = range(1, 54)
TESTS = Path(__file__).resolve().parents[1]


def tests_of_rows() -> dict[int, list[str]]:
    """Return file and name of the tests of each row, from ``@pytest.mark.matrix(row, ...)``."""
    found: dict[int, list[str]] = defaultdict(list)
    for file in sorted(TESTS.rglob('test_*.py')):
        for node in ast.walk(ast.parse(file.read_text(encoding='utf-8'))):
            if isinstance(node, ast.FunctionDef):
                for row in sorted(_rows(node)):
                    found[row].append(f'{file.relative_to(TESTS.parent)}::{node.name}')
    return found


def _rows(test: ast.FunctionDef) -> set[int]:
    """Return the rows in a test's decorators, those of single parameters included."""
    marks = [
        call
        for decorator in test.decorator_list
        for call in ast.walk(decorator)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == 'pytest.mark.matrix'
    ]
    return {argument.value for mark in marks for argument in mark.args}  # type: ignore[attr-defined]


if __name__ == '__main__':
    places = tests_of_rows()
    for row in ROWS:
        print(f'{row:2}  ' + '\n    '.join(places.get(row, ['-'])))
