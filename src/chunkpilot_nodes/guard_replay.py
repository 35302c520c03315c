"""
Decides a recorded run of the guard once more and compares every verdict, to the last bit.

Each verdict names what the guard had taken before it, in order, and its two clocks. So a fresh
guard with the recorded parameters is told the same and has to say the same. Used by ``chunkpilot
guard replay``; prints one JSON object.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
import json
from pathlib import Path
import sys
import tempfile
from typing import Any

from chunkpilot.msg import SafetyVerdict
from chunkpilot_core import robot as robots
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.cli import version
from chunkpilot_core.errors import BagError, ChunkpilotError, ConfigError
from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.runtime import resumption, setup
from chunkpilot_core.safety.runtime.guard import Guard
from chunkpilot_core.safety.runtime.tightening import Tightening
from chunkpilot_core.types import seconds
from chunkpilot_nodes import convert
from chunkpilot_nodes.guard_inputs import Inputs, SERVICES
from chunkpilot_nodes.guard_replay_bag import GuardBag, REQUEST, Taken
import numpy as np

NOT_DECIDED = ('header', 'session', 'tick_cpu_s', 'input_topics', 'input_stamps', 'input_times')
FIELDS = {
    name: kind
    for name, kind in SafetyVerdict.get_fields_and_field_types().items()
    if name not in NOT_DECIDED
}
KEPT = 20  # differences that are told
MISSHAPEN = ArithmeticError, AssertionError, LookupError, TypeError, ValueError
"""What arrays of a wrong length in a forged bag raise."""


@dataclass
class Difference:
    """The first verdict that is another one, after which the two guards go different ways."""

    tick: int
    at_s: float
    fields: dict[str, tuple[str, str]]  # recorded, decided now
    reason: tuple[str, str]
    taken: list[str]


@dataclass
class Run:
    """What came of one run of a guard; times in seconds from the first verdict of the bag."""

    session: int
    robot: str
    version: str
    limits_hash: str
    begins_s: float
    verdicts: int = 0
    followed: int = 0
    identical: int = 0
    followed_from_s: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether something could be followed, and all of it was decided the same."""
        return bool(self.followed) and not self.differences


class Follower:
    """Leads a guard along one recorded run."""

    def __init__(
        self, parameters: Any, begins_s: float, folder: Path, own_robot: str = ''
    ) -> None:
        """
        Make the guard.

        :param folder: where files that parameters name are put
        :param own_robot: a robot's file of which the URDF may be read, beside the installed ones
        :raises ConfigError: parameters that this version does not understand
        """
        values = setup.from_json(parameters.names, parameters.values)
        _refuse_code(values)
        values |= _files(parameters, values, folder)
        robot = setup.robot_of(parameters.robot_yaml)
        _refuse_files(robot, values, own_robot)
        epoch = int(parameters.arm_epoch)
        self.guard = Guard(robot, epoch=epoch, **setup.parts_of(values))
        self._inputs = Inputs(self.guard)
        self.run = Run(
            int(parameters.session),
            parameters.robot,
            parameters.version,
            parameters.limits_hash,
            begins_s,
        )
        if parameters.version != version():
            self.run.notes.append(
                f'recorded with chunkpilot {parameters.version}, decided with {version()}'
            )
        if robot.limits_hash != parameters.limits_hash:
            self.run.notes.append(
                f"the robot's hash was {parameters.limits_hash}, is {robot.limits_hash} now"
            )
        self._following = False
        self._last: Any = None
        self._missing: list[str] = []  # since the guard was followed

    def remember(self, known: Iterable[Taken]) -> None:
        """Take latched messages that the guard had heard before the bag began."""
        for one in known:
            self._hand_over(one)

    def see(self, said: Any, taken: Sequence[Taken], at_s: float) -> None:
        """Decide one verdict once more."""
        run = self.run
        run.verdicts += 1
        if self._last is not None and said.tick != self._last.tick + 1:
            lost = int(said.tick) - int(self._last.tick) - 1
            self._lose(f'{at_s:.3f} s: {lost} verdicts are not in the bag')
        elif self._last is None and said.tick == 1:
            self._follow(at_s)
        for one in taken:
            self._hand_over(one)
        verdict = convert.verdict_from_msg(said)
        stamp_ns, steady_ns = verdict.stamp_ns, verdict.steady_ns
        again = self.guard.tick(stamp_ns, steady_ns, verdict.on_timer).verdict
        self.guard.on_cost(float(said.tick_cpu_s), stamp_ns)
        self._last = said
        if self._following:
            self._compare(said, convert.verdict_to_msg(again, run.session), taken, at_s)
            return
        told = convert.verdict_to_msg(again, run.session)
        resumption.resume(self.guard, verdict)
        # A bag may begin after the guard heard its first joint state, and before the second.
        if resumption.settled(verdict) and _same(said.state_age_s, told.state_age_s, 'float'):
            self._follow(at_s)

    def _follow(self, at_s: float) -> None:
        self._following, self._missing = True, []
        self.run.followed_from_s.append(round(at_s, 3))

    def _lose(self, why: str) -> None:
        self._following = False
        self.run.notes.append(why)

    def _hand_over(self, one: Taken) -> None:
        entry, message = one.entry, one.message
        if message is None:
            self._missing.append(f'{entry.topic} of {entry.stamp_ns}')
            self.run.missing[entry.topic] = self.run.missing.get(entry.topic, 0) + 1
        elif entry.topic == REQUEST:
            _serve(self.guard, message, entry.taken_ns)
        else:
            try:
                self._inputs.take(entry.topic, message, entry.taken_ns)
            except ChunkpilotError:  # the node dropped it, too
                pass

    def _compare(self, said: Any, again: Any, taken: Sequence[Taken], at_s: float) -> None:
        run = self.run
        fields = {
            name: (_text(getattr(said, name)), _text(getattr(again, name)))
            for name, kind in FIELDS.items()
            if not _same(getattr(said, name), getattr(again, name), kind)
        }
        if not fields:
            run.followed += 1
            run.identical += 1
            return
        names = ', '.join(fields)
        if self._missing:  # nobody knows what it would have decided with them
            self._lose(f'{at_s:.3f} s: {names} differ after inputs that the bag lacks')
            return
        run.followed += 1
        if len(run.differences) < KEPT:
            words = [f'{one.entry.topic} of {one.entry.stamp_ns}' for one in taken]
            reasons = said.reason, again.reason
            found = Difference(int(said.tick), round(at_s, 3), fields, reasons, words)
            run.differences.append(found)
        self._lose(f'{at_s:.3f} s: {names} differ; the guards part here')


def replay(path: Path, own_robot: str = '') -> list[Run]:
    """
    Decide every run of a guard in a bag once more.

    :param own_robot: a robot's file of which the URDF may be read, beside the installed ones
    :raises BagError: no such bag, or one that does not tell enough
    """
    with BagReader(path) as reader, tempfile.TemporaryDirectory(prefix='chunkpilot-') as folder:
        bag = GuardBag(reader)
        followers: dict[int, Follower] = {}
        unknown: set[int] = set()
        first_ns = 0
        for said in bag.verdicts():
            session, stamp_ns = int(said.session), convert.to_ns(said.header.stamp)
            first_ns = first_ns or stamp_ns
            at_s = seconds(stamp_ns - first_ns)
            if session not in followers and session not in unknown:
                if session in bag.parameters:
                    place = Path(folder) / str(session)
                    followers[session] = Follower(bag.parameters[session], at_s, place, own_robot)
                    if said.tick != 1:
                        followers[session].remember(bag.known_before(stamp_ns))
                else:
                    unknown.add(session)
            taken = [bag.take(entry) for entry in convert.inputs_from_msg(said)]
            if session in followers:
                try:
                    followers[session].see(said, taken, at_s)
                except MISSHAPEN as error:
                    raise BagError(
                        f'{path}: tick {said.tick} tells what no guard does '
                        f'({type(error).__name__}: {error})'
                    ) from error
        runs = [follower.run for follower in followers.values()]
        if not runs:
            raise BagError(f'{path}: no verdict of a guard whose parameters are in the bag')
        for session in unknown:
            runs[0].notes.append(f'a guard of session {session} did not tell its parameters')
        return runs


def _serve(guard: Guard, request: Any, now_ns: int) -> None:
    """
    Do once more what was asked for by service.

    :raises BagError: no guard offers that
    """
    if request.check == 'move_to':
        goal = np.array(request.requested) if len(request.requested) else None
        guard.move_to(goal, float(request.value), now_ns)
    elif request.check == 'approve':
        guard.approve(request.joint, bool(request.value), now_ns)
    elif request.check == 'tighten':
        guard.tighten(Tightening(*(float(value) for value in request.requested)), now_ns)
    elif request.check == 'fault':
        guard.stop(now_ns, request.reason)
    elif request.check in SERVICES:
        getattr(guard, request.check)(now_ns)
    else:
        raise BagError(f'request {request.check!r}, known: {", ".join(SERVICES)}')


def _refuse_code(values: dict[str, Any]) -> None:
    """
    Let no bag, which may come from anywhere, have modules imported by ``package.module:Class``.

    :raises ConfigError: a parameter that names code; as an entry point it may be named
    """
    extra = values.get(setup.EXTRA, [])
    for name in [*(extra if isinstance(extra, list) else [extra]), values.get('distances', '')]:
        if ':' in str(name):
            raise ConfigError(
                f'{name!r}: code that a bag names by module is not run; install the plug-in with '
                'an entry point of chunkpilot.safety or chunkpilot.clearance'
            )


def _refuse_files(robot: Robot, values: dict[str, Any], own_robot: str) -> None:
    """
    Let no bag have any file read as a URDF: only those that a robot's file on this machine names.

    :raises ConfigError: another one, which would be read
    """
    urdf = robot.collision.urdf if robot.collision else ''
    if not urdf or values.get('distances') == 'capsules':
        return
    names = [file.stem for file in (robots.config_dir() / 'robots').glob('*.yaml')]
    for name in [*names, *([own_robot] if own_robot else [])]:
        collision = robots.load(name).collision
        if collision is not None and collision.urdf == urdf:
            return
    raise ConfigError(
        f"collision.urdf of the bag's robot is {urdf!r}, which no robot of config/robots names, "
        'so it is not read; if it is yours, give its robot file with --robot'
    )


def _files(parameters: Any, values: dict[str, Any], folder: Path) -> dict[str, str]:
    """
    Return parameters that name a file, with the file as it was.

    :raises ConfigError: no parameter of that name
    """
    changed: dict[str, str] = {}
    for name, text in zip(parameters.file_names, parameters.file_texts, strict=False):
        if name not in values:
            raise ConfigError(f'parameter {name!r} of the guard names a file, and is not told')
        suffix = Path(str(values[name])).suffix
        folder.mkdir(parents=True, exist_ok=True)
        # Nothing else in a bag says where it goes.
        place = folder / f'{len(changed)}{suffix if suffix[1:].isalnum() else ""}'
        place.write_text(text, encoding='utf-8')
        changed[name] = str(place)
    return changed


def _same(was: Any, now: Any, kind: str) -> bool:
    if kind == 'chunkpilot/Id':
        return (was.session, was.seq) == (now.session, now.seq)
    if kind in ('float', 'sequence<float>'):
        return np.array_equal(np.asarray(was, '<f4'), np.asarray(now, '<f4'), equal_nan=True)
    if kind in ('double', 'sequence<double>'):
        return np.array_equal(np.asarray(was), np.asarray(now), equal_nan=True)
    if kind.startswith('sequence'):
        return list(was) == list(now)
    return bool(was == now)


def _text(value: Any) -> str:
    if hasattr(value, 'tolist'):
        value = value.tolist()
    if hasattr(value, 'seq'):
        return f'{value.session}/{value.seq}'
    return (
        str(list(value))
        if hasattr(value, '__len__') and not isinstance(value, str)
        else str(value)
    )


def main(words: Sequence[str]) -> int:
    """Print what came of each bag."""
    parser = argparse.ArgumentParser(prog='guard_replay', description=__doc__)
    parser.add_argument('bags', nargs='+')
    parser.add_argument('--robot', default='')
    args = parser.parse_args(words)
    told, agree = [], True
    for word in args.bags:
        try:
            runs = replay(Path(word), args.robot)
            agree = agree and all(run.agrees for run in runs)
            told.append({'bag': word, 'runs': [{**asdict(r), 'agrees': r.agrees} for r in runs]})
        except ChunkpilotError as error:
            agree = False
            told.append({'bag': word, 'error': str(error)})
    print(json.dumps(told, indent=1))
    return 0 if agree else 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
