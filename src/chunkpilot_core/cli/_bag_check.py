"""``chunkpilot bag check``: whether bags are whole."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
import json
from pathlib import Path
from typing import Any

from chunkpilot_core.cli import _frames

HELP = 'look for gaps, clock jumps, drops, damage, and what contradicts in bags'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add('bags', nargs='+', type=Path, help='bags, or folders of bags')
    add('--gap', type=float, default=0.5, help='[s] silence that is told (default: %(default)s)')
    add('--data', action='store_true', help='and whether the data is worth learning from')
    add('--json', action='store_true', help='for machines')
    data = parser.add_argument_group('with --data')
    _frames.add_arguments(data)
    data.add_argument(
        '--limit',
        nargs='+',
        metavar='NAME=VALUE',
        help='from where on something is a finding, e.g. idle_s=2.0 (docs/bags.md)',
    )
    data.add_argument(
        '--out', type=Path, metavar='FILE', help='report for the option --quality of training'
    )


def main(args: argparse.Namespace) -> str | None:
    """Check; exit code 1 when a bag has a problem."""
    from chunkpilot_core.bags.check import check
    from chunkpilot_core.bags.definitions import Definitions
    from chunkpilot_core.bags.findings import Finding
    from chunkpilot_core.cli import _checks
    from chunkpilot_core.cli._bags import expand, told
    from chunkpilot_core.errors import BagError

    _checks.number('--gap', args.gap, 0.001, 1e6)
    found: dict[str, list[dict[str, Any]]] = {}
    bags, known = expand(args.bags), Definitions()
    for path in told(bags, 'bags', args.json):
        try:
            findings = check(path, args.gap, known)
        except BagError as error:
            findings = [Finding('damaged', str(error))]
        found[str(path)] = [finding.to_json() for finding in findings]
    if args.data:
        for bag, entry in _quality(args, bags):
            found.setdefault(bag, []).append(entry)
    problems = sum(finding['problem'] for entries in found.values() for finding in entries)
    if args.json:
        print(json.dumps({'problems': problems, 'bags': found}, indent=1))
    else:
        _show(found, problems)
    return '' if problems else None


def _quality(
    args: argparse.Namespace, bags: Sequence[Path]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over bags and what is wrong with them as data."""
    from chunkpilot_core import config, files
    from chunkpilot_core.bags import quality
    from chunkpilot_core.bags.findings import Finding
    from chunkpilot_core.errors import BagError

    limits = config.build(quality.QualityOptions, _assignments(args.limit or []), '--limit ')
    try:
        built = _frames.cache(args, args.bags, quiet=args.json)
    except BagError as error:  # none makes frames
        yield str(bags[0].parent), Finding('data', str(error)).to_json()
        return
    with _frames.bar('quality', len(built.episodes), args.json) as progress:
        report = quality.report(built, limits, progress)
    if args.out is not None:
        files.write_json(args.out, report.to_json(built))
    given = {str(bag.resolve()): str(bag) for bag in bags}
    for skipped in built.skipped:
        bag = given.get(skipped.bag, skipped.bag)
        yield bag, Finding('data', f'no frames: {skipped.reason}').to_json()
    for found in report.findings:
        at_s = found.frames[0][0] * built.dt_s if found.frames else None
        text = f'{found.text} ({found.value:.3g}, limit {found.limit:g})'
        yield given.get(found.bag, found.bag), Finding(found.kind, text, '', at_s).to_json()


def _assignments(words: Sequence[str]) -> dict[str, Any]:
    """Return names and numbers of NAME=VALUE."""
    from chunkpilot_core.errors import ConfigError

    values: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition('=')
        try:
            values[name] = int(text) if text.isdigit() else float(text)
        except ValueError:
            raise ConfigError(f'--limit {word!r}: must be NAME=NUMBER') from None
    return values


def _show(found: Mapping[str, Sequence[Mapping[str, Any]]], problems: int) -> None:
    from chunkpilot_core.cli._bags import console
    from rich.markup import escape
    from rich.table import Table

    out = console()
    for bag, findings in found.items():
        if not findings:
            continue
        out.print(bag, markup=False, soft_wrap=True, style='italic')
        table = Table(box=None, header_style='bold')
        for name in ('', 'kind', 'at s', 'topic', 'what'):
            table.add_column(name, justify='right' if name == 'at s' else 'left', overflow='fold')
        for finding in findings:
            at_s = '' if finding['at_s'] is None else f'{finding["at_s"]:.3f}'
            mark = '[red]problem[/]' if finding['problem'] else 'note'
            table.add_row(
                mark, finding['kind'], at_s, escape(finding['topic']), escape(finding['text'])
            )
        out.print(table)
    out.print(f'{len(found)} bags, {problems} problems')
