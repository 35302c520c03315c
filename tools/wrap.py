#!/usr/bin/env python3
"""
Wrap docstring and comment lines that are longer than 99 columns; part of ``make format``.

ruff formats code but leaves prose alone. Only the paragraphs with a long line are touched.
"""

import io
from pathlib import Path
import sys
import textwrap
import tokenize

WIDTH = 99
# A line that begins so starts something of its own: it is not joined with the line before.
STARTS = (':', '- ', '* ', '>>>', '|', '#', '.. ')
SKIPPED = {'.venv', 'build', 'install', 'log', 'runs', '.git'}


def indent_of(line: str) -> str:
    """Return the leading blanks."""
    return line[: len(line) - len(line.lstrip())]


def wrap_prose(lines: list[str], prefix: str = '') -> list[str]:
    """Wrap each long line and let its rest run into the next line of the same paragraph."""
    result: list[str] = []
    rest = ''
    for line in lines:
        body = line[len(prefix) :] if prefix else line
        own = not body.strip() or body.strip().startswith(STARTS) or '"""' in body
        if rest:
            hanging = rest_indent(result[-1], prefix)
            if own or indent_of(body) != hanging:
                result += fill(rest, prefix + hanging)
            else:
                body = hanging + rest + ' ' + body.strip()
                line = prefix + body
            rest = ''
        if len(line) > WIDTH and ' ' in body.strip():
            first, *others = fill(body.strip(), prefix + indent_of(body))
            result.append(first)
            rest = ' '.join(other[len(prefix) :].strip() for other in others)
        else:
            result.append(line)
    return result + (fill(rest, prefix + rest_indent(result[-1], prefix)) if rest else [])


def rest_indent(line: str, prefix: str) -> str:
    """Return the indentation of what follows a line: fields and list items hang."""
    body = line[len(prefix) :]
    hang = {':': '    ', '-': '  ', '*': '  '}.get(body.strip()[:1], '')
    return indent_of(body) + hang


def fill(text: str, start: str) -> list[str]:
    """Return a text as lines that fit, each after the given start."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=start, subsequent_indent=start,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def wrap_docstring(lines: list[str]) -> list[str]:
    """Return a docstring's lines, wrapped; the one-line form opens up if it does not fit."""
    if max(map(len, lines)) <= WIDTH:
        return lines
    indent = indent_of(lines[0])
    opening = lines[0][: lines[0].index('"""') + 3]
    body = [indent + lines[0][len(opening) :], *lines[1:]]
    if body[-1].rstrip().endswith('"""'):
        body[-1] = body[-1].rstrip()[:-3].rstrip()
    body = [line for i, line in enumerate(body) if line.strip() or 0 < i < len(body) - 1]
    return [opening, *wrap_prose(body), indent + '"""']


def wrap_source(source: str) -> str:
    """Return a module's source with wrapped prose."""
    lines = source.split('\n')
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    blanks = {tokenize.NL, tokenize.COMMENT}
    code = [token for token in tokens if token.type not in blanks]
    edits: list[tuple[int, int, list[str]]] = []
    for before, token, after in zip([None, *code], code, code[1:], strict=False):
        starts = before is None or before.type in (
            tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        )  # fmt: skip
        if token.type == tokenize.STRING and starts and after.type == tokenize.NEWLINE:
            first, last = token.start[0] - 1, token.end[0]
            if '"""' in lines[first] and lines[last - 1].rstrip().endswith('"""'):
                edits.append((first, last, wrap_docstring(lines[first:last])))
    edits += comment_blocks(lines, tokens)
    for first, last, new in sorted(edits, reverse=True):
        lines[first:last] = new
    return '\n'.join(lines)


def comment_blocks(
    lines: list[str], tokens: list[tokenize.TokenInfo]
) -> list[tuple[int, int, list[str]]]:
    """Return the edits of comments: whole lines are wrapped, long trailing ones go above."""
    edits: list[tuple[int, int, list[str]]] = []
    whole = [
        token.start[0] - 1
        for token in tokens
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith('#')
    ]
    for row in whole:
        line = lines[row]
        if len(line) > WIDTH and not line.lstrip().startswith(('#!', '# type:', '# ruff:')):
            prefix = indent_of(line) + '# '
            edits.append((row, row + 1, wrap_prose([line], prefix)))
    for token in tokens:
        row, column = token.start[0] - 1, token.start[1]
        line = lines[row]
        pragma = token.string.startswith(('# type:', '# noqa', '# fmt:', '# ruff:'))
        if (
            token.type == tokenize.COMMENT
            and row not in whole
            and len(line) > WIDTH
            and not pragma
        ):
            comment = fill(token.string.lstrip('# '), indent_of(line) + '# ')
            if not line[:column].lstrip().startswith((')', ']', '}')):
                edits.append((row, row + 1, [*comment, line[:column].rstrip()]))
    return edits


def main() -> None:
    """Wrap the files below the given paths."""
    for argument in sys.argv[1:]:
        path = Path(argument)
        for file in [path] if path.is_file() else sorted(path.rglob('*.py')):
            if SKIPPED.isdisjoint(file.parts):
                old = file.read_text()
                new = wrap_source(old)
                if new != old:
                    compile(new, str(file), 'exec')
                    file.write_text(new)
                    print(f'wrapped {file}')


if __name__ == '__main__':
    main()
