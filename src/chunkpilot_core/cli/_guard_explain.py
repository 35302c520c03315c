"""``chunkpilot guard explain``: what a guard did in a recorded run, and why, in words."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
import json
import math
from pathlib import Path
import typing
from typing import Any

if typing.TYPE_CHECKING:
    from chunkpilot_core.bags.guard_story import GuardLog, Span, Story

HELP = 'say in words what a guard did in a recorded run, and why'
NEAR_S = 1.0  # around --at, what else is told


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add('bag', type=Path)
    add('--at', type=float, metavar='T', help='[s] from the first verdict, or since 1970')
    add('--episode', type=int, metavar='N', help='only the Nth episode of the bag, from 1')
    add('--json', action='store_true', help='for machines')


def main(args: argparse.Namespace) -> str | None:
    """Tell the story of a bag."""
    from chunkpilot_core.bags import guard_story
    from chunkpilot_core.bags.reader import BagReader
    from chunkpilot_core.cli import _checks

    if args.at is not None:
        _checks.number('--at', args.at, 0.0, 1e11)
    with BagReader(args.bag) as bag:
        log = guard_story.GuardLog(bag)
        begin_s, end_s = _episode(log, args.episode)
        if args.at is None:
            story = guard_story.tell(log, str(args.bag), begin_s, end_s)
            _print_story(story, args.json)
            return None
        moment_s = args.at - log.first_ns / 1e9 if args.at > 1e9 else args.at
        if args.episode is not None and args.at <= 1e9:
            moment_s += begin_s
        said_s, verdict = guard_story.at(log, moment_s)
        near = guard_story.tell(log, str(args.bag), moment_s - NEAR_S, moment_s + NEAR_S)
        if args.json:
            print(json.dumps({'at_s': said_s, **_fields(verdict), 'near': _plain(near)}, indent=1))
        else:
            _print_moment(said_s, verdict, near)
    return None


def _episode(log: 'GuardLog', number: int | None) -> tuple[float, float]:
    """
    Return begin and end of an episode [s].

    :raises BagError: the bag does not have so many
    """
    from chunkpilot_core.errors import BagError

    if number is None:
        return -math.inf, math.inf
    episodes = log.episodes()
    if not 1 <= number <= len(episodes):
        raise BagError(f'--episode {number}: the bag has {len(episodes)} episodes')
    return episodes[number - 1][:2]


def _print_story(story: 'Story', as_json: bool) -> None:
    from chunkpilot_core.bags import guard_story

    if as_json:
        print(json.dumps(_plain(story), indent=1))
        return
    robot = f' of {story.robot}' if story.robot else ''
    counts = ', '.join(f'{name} {count}' for name, count in story.reactions.items())
    print(
        f'{story.bag}: guard{robot}, {story.verdicts} verdicts from {story.begin_s:.3f} '
        f'to {story.end_s:.3f} s: {counts or "none"}'
    )
    for at_s, entry in guard_story.timeline(story):
        if isinstance(entry, guard_story.Span):
            _print_span(entry)
        else:
            more = f' ({entry.suppressed} more before, not told)' if entry.suppressed else ''
            print(f'{at_s:9.3f} s  {entry.text}{more}')
    for name, count in story.suppressed.items():
        print(f'  not repeated as events: {count} of {name}')
    for note in story.notes:
        print(f'  {note}')


def _print_span(span: 'Span') -> None:
    what = f'{span.reaction} by {span.check}' if span.check else span.reaction
    joint = f', {span.joint}' if span.joint else ''
    often = 'for one tick'
    if span.ticks > 1:
        often = f'to {span.end_s:.3f} s, {span.ticks} ticks'
    print(f'{span.begin_s:9.3f} s  {what}{joint}: {span.reason} ({often})')
    for check, reason in span.further.items():
        print(f'{"":13}then {check}: {reason}')
    details = []
    if math.isfinite(span.requested):
        details.append(f'requested {span.requested:.4f}, sent {span.sent:.4f}')
    if span.slowest < 1.0:
        details.append(f'speed scale down to {span.slowest:.2f}')
    if span.before:
        details.append(f'before it: {span.before}')
    if details:
        print(f'{"":13}{"; ".join(details)}')


def _print_moment(said_s: float, verdict: Any, near: 'Story') -> None:
    from chunkpilot_core.bags import guard_story
    from chunkpilot_core.types import Reaction

    reaction = Reaction(int(verdict.reaction))
    print(f'at {said_s:.3f} s (tick {verdict.tick}): {guard_story.in_a_word(verdict)}')
    if reaction:
        joint = f', {verdict.joint}' if verdict.joint else ''
        numbers = ''
        if math.isfinite(verdict.value):
            numbers = f' [value {verdict.value:.6g}, limit {verdict.limit:.6g}]'
        print(f'  {reaction.name} because of {verdict.check}{joint}: {verdict.reason}{numbers}')
    else:
        print('  nothing was changed: what was asked for was sent')
    ages = (
        ('joint state', verdict.state_age_s),
        ('command', verdict.command_age_s),
        ('observation behind the row', verdict.row_age_s),
    )
    told = [f'{name} {age:.3f} s old' for name, age in ages if math.isfinite(age)]
    print(f'  {", ".join(told) or "no inputs"}; speed scale {verdict.speed_scale:.2f}')
    for name, clearance in zip(verdict.clearance_names, verdict.clearances, strict=False):
        print(f'  {name}: {clearance * 1e3:.1f} mm apart')
    columns = verdict.joint_names, verdict.requested, verdict.sent, verdict.sent_velocity
    for name, asked, sent, speed in zip(*columns, strict=False):
        off = '' if asked == sent else f'  off by {sent - asked:+.6f}'
        print(f'  {name:24} requested {asked:9.5f}  sent {sent:9.5f}  at {speed:8.4f}/s{off}')
    entries = guard_story.timeline(near)
    if entries:
        print(f'within {NEAR_S:g} s of it:')
    for at_s, entry in entries:
        if isinstance(entry, guard_story.Span):
            _print_span(entry)
        else:
            print(f'{at_s:9.3f} s  {entry.text}')


def _plain(story: 'Story') -> Mapping[str, Any]:
    """Return a story as JSON can hold it: NaN is none of its numbers."""
    plain: Mapping[str, Any] = _without_nan(asdict(story))
    return plain


def _fields(verdict: Any) -> dict[str, Any]:
    names = (
        'tick', 'arm_epoch', 'state', 'reaction', 'source', 'check', 'joint', 'value', 'limit',
        'margin', 'reason', 'joint_names', 'requested', 'sent', 'sent_velocity', 'speed_scale',
        'state_age_s', 'command_age_s', 'row_age_s', 'clearance_names', 'clearances',
    )  # fmt: skip
    return {name: _without_nan(getattr(verdict, name)) for name in names}


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)) or hasattr(value, 'tolist'):
        plain = value.tolist() if hasattr(value, 'tolist') else value
        if not isinstance(plain, (list, tuple)):
            return _without_nan(plain)
        return [_without_nan(entry) for entry in plain]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
