"""Faults on purpose: what they do to a stream of messages, and what a file of them may say."""

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

from chunkpilot_core.errors import ConfigError, InvalidDataError
from chunkpilot_core.faults import fields, plan, processes
from chunkpilot_core.faults.stream import Stream
from chunkpilot_core.types import Command, CommandGroup, Id, JointState, Kind
import numpy as np
import pytest

PERIOD_NS = 10_000_000


def state(number: int) -> JointState:
    return JointState(
        number * PERIOD_NS, ('a', 'b', 'c'), np.array([1.0, 2.0, 3.0]) + number, np.ones(3)
    )


def run(faults: list[dict[str, Any]], count: int = 20, seed: int = 0) -> list[tuple[int, Any]]:
    """Return tick and message of all that leaves a stream of one message a tick."""
    stream = Stream(plan.parse({'topics': {'x': faults}}).topics['x'], seed)
    stream.begin(0)
    left = []
    for tick in range(count + 200):
        if tick < count:
            stream.push(state(tick), tick * PERIOD_NS)
        left += [(tick, message) for message in stream.due(tick * PERIOD_NS)]
    return left


def numbers(left: list[tuple[int, Any]]) -> list[int]:
    """Return which messages left, in order."""
    return [round(message.stamp_ns / PERIOD_NS) for _, message in left]


def test_outside_of_its_time_a_fault_changes_nothing() -> None:
    left = run([{'kind': 'drop', 'start_s': 0.05, 'end_s': 0.1}])
    assert numbers(left) == [*range(5), *range(10, 20)]
    stream = Stream(plan.parse({'topics': {'x': [{'kind': 'drop'}]}}).topics['x'])
    message = state(1)
    assert not stream.in_force(0)
    stream.push(message, 0)
    assert stream.due(0) == [message], 'nothing begins before it is told to'


def test_delayed_messages_leave_late_with_their_stamps() -> None:
    left = run([{'kind': 'delay', 'delay_s': 0.15}])
    assert numbers(left) == list(range(20))
    assert [tick for tick, _ in left] == [number + 15 for number in range(20)]
    mixed = numbers(run([{'kind': 'delay', 'delay_s': 0.0, 'jitter_s': 0.1}]))
    assert sorted(mixed) == list(range(20))
    assert mixed != list(range(20))


def test_probability_is_a_share_and_repeatable() -> None:
    once = numbers(run([{'kind': 'drop', 'probability': 0.3}], count=1000))
    assert 600 < len(once) < 800
    assert once == numbers(run([{'kind': 'drop', 'probability': 0.3}], count=1000))
    assert once != numbers(run([{'kind': 'drop', 'probability': 0.3}], count=1000, seed=1))


def test_duplicates_reorder_and_bursts_lose_nothing() -> None:
    twice = run([{'kind': 'duplicate', 'copies': 2, 'after_s': 0.02}], count=2)
    assert [(tick, number) for (tick, _), number in zip(twice, numbers(twice), strict=True)] == [
        (0, 0), (1, 1), (2, 0), (3, 1), (4, 0), (5, 1),
    ]  # fmt: skip
    assert numbers(run([{'kind': 'reorder'}], count=6)) == [1, 0, 3, 2, 5, 4]
    ended = numbers(run([{'kind': 'reorder', 'end_s': 0.03}], count=6))
    assert ended == [1, 0, 3, 2, 4, 5], 'what is held leaves with the next one'
    assert {tick for tick, _ in run([{'kind': 'burst', 'period_s': 0.05}], count=11)} == {
        0, 5, 10,
    }  # fmt: skip


@pytest.mark.parametrize(
    ('fault', 'expected'),
    [
        ({'kind': 'nan', 'index': 1}, [1.0, np.nan, 3.0]),
        ({'kind': 'inf', 'negative': True}, [-np.inf] * 3),
        ({'kind': 'jump', 'offset': -0.5, 'index': [0, 2]}, [0.5, 2.0, 2.5]),
        ({'kind': 'scale', 'factor': 3}, [3.0, 6.0, 9.0]),
        ({'kind': 'permute', 'order': [2, 0, 1]}, [3.0, 1.0, 2.0]),
    ],
)
def test_values_change_where_it_is_said(fault: dict[str, Any], expected: list[float]) -> None:
    (_, message), *_ = run([fault])
    np.testing.assert_array_equal(message.positions, expected)
    np.testing.assert_array_equal(message.velocities, np.ones(3))
    assert message.names == ('a', 'b', 'c')


def test_names_and_numbers_change_places_together() -> None:
    fault = {'kind': 'permute', 'field': ['names', 'positions']}
    (_, message), (_, later), *_ = run([fault], seed=3)
    assert sorted(message.names) == ['a', 'b', 'c']
    for name, value in zip(message.names, message.positions, strict=True):
        assert value == {'a': 1.0, 'b': 2.0, 'c': 3.0}[name]
    assert tuple(later.names) == tuple(message.names), 'drawn once'


def test_frozen_content_has_new_stamps() -> None:
    left = run([{'kind': 'freeze', 'start_s': 0.03, 'end_s': 0.06}], count=8)
    assert numbers(left) == list(range(8))
    assert [message.positions[0] for _, message in left] == [1, 2, 3, 4, 4, 4, 7, 8]


def test_noise_has_its_size() -> None:
    left = run([{'kind': 'noise', 'sigma': 0.01}], count=2000)
    off = np.array([message.positions - state(round(message.stamp_ns / PERIOD_NS)).positions
                    for _, message in left])  # fmt: skip
    assert np.std(off) == pytest.approx(0.01, rel=0.05)


def test_stamps_jump() -> None:
    left = run([{'kind': 'clock_jump', 'jump_s': 10.0, 'start_s': 0.1}], count=12)
    assert numbers(left) == [*range(10), 1010, 1011]


def test_faults_work_one_after_the_other() -> None:
    left = run([{'kind': 'duplicate'}, {'kind': 'nan', 'probability': 0.5}], count=50)
    assert len(left) == 100
    assert 20 < sum(np.isnan(message.positions).all() for _, message in left) < 80


def test_how_often_each_fault_took_place_is_counted() -> None:
    """One whose time never comes, or whose messages an earlier one takes, did not."""
    entries = [
        {'kind': 'drop', 'start_s': 0.1, 'end_s': 0.15},
        {'kind': 'nan', 'end_s': 0.05},
        {'kind': 'inf', 'start_s': 0.1, 'end_s': 0.15},
        {'kind': 'noise', 'probability': 0.5},
        {'kind': 'delay', 'start_s': 1000.0},
    ]
    found = plan.parse({'topics': {'x': entries}})
    stream = Stream(found.topics['x'])
    stream.push(state(0), -PERIOD_NS)  # before its time begins
    stream.begin(0)
    for number in range(200):
        stream.push(state(number), number * PERIOD_NS)
    drop, nan, inf, noise, delay = stream.applied
    assert (drop, nan, inf, delay) == (5, 5, 0, 0)
    assert 70 < noise < 130
    assert plan.described(found) == [
        'x: drop from 0.1 s to 0.15 s',
        'x: nan to 0.05 s',
        'x: inf from 0.1 s to 0.15 s',
        'x: noise',
        'x: delay from 1000 s',
    ]


def test_fields_deep_in_a_message_are_reached_and_the_original_stays() -> None:
    arm = CommandGroup('arm', Kind.JOINT_POSITION, np.zeros(7), np.zeros(0))
    command = Command(Id(1, 2), 5, 6, (arm, replace(arm, name='other')))
    changed = fields.edit(command, 'groups[1].values', lambda values: values + 1.0)
    assert changed.groups[1].values.tolist() == [1.0] * 7
    assert changed.groups[0] is arm
    assert not command.groups[1].values.any()
    with pytest.raises(InvalidDataError, match="Did you mean 'values'"):
        fields.edit(command, 'groups[0].value', lambda value: value)
    with pytest.raises(InvalidDataError, match='no entry 2 of 2'):
        fields.edit(command, 'groups[2].values', lambda value: value)


@pytest.mark.parametrize(
    'value', [np.float32([[1, 2], [3, 4]]), array('d', [1, 2, 3, 4]), [1.0, 2.0, 3.0, 4.0]]
)
def test_numbers_keep_their_type_and_shape(value: Any) -> None:
    changed = fields.numbers(value, lambda some: some * 2.0, (3,))
    assert type(changed) is type(value)
    assert np.shape(changed) == np.shape(value)
    assert np.ravel(changed).tolist() == [1.0, 2.0, 3.0, 8.0]


def test_pixels_stay_pixels() -> None:
    pixels = np.array([0, 100, 200], np.uint8)
    assert fields.numbers(pixels, lambda some: some + 100.0).tolist() == [100, 200, 255]
    with pytest.raises(InvalidDataError, match='whole numbers'):
        fields.numbers(pixels, lambda some: some * np.nan)


@pytest.mark.parametrize(
    ('faults', 'words'),
    [
        ([{'kind': 'nan', 'index': 7}], 'no entry 7 of 3'),
        ([{'kind': 'nan', 'field': 'effort'}], "unknown field of JointState 'effort'"),
        ([{'kind': 'nan', 'field': 'names'}], 'holds no numbers'),
        ([{'kind': 'permute', 'order': [1, 0]}], 'order of 2, the field has 3'),
    ],
)
def test_a_fault_that_does_not_fit_the_message_says_so(
    faults: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(InvalidDataError, match=words):
        run(faults)


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('{}', 'there is no fault in it'),
        ('[]', 'no mapping'),
        ('topic: {}', "Did you mean 'topics'"),
        ('topics: {chunk: {kind: nan}}', 'chunk: .* is no list'),
        ('topics: {chunk: [{kind: nann}]}', r"chunk\[0\]: unknown kind of fault 'nann'.*'nan'"),
        ('topics: {chunk: [{kind: [nan]}]}', 'unknown kind of fault'),
        ('topics: {chunk: [{kind: drop, start_s: 5, end_s: 4}]}', 'must be after start_s, 5'),
        ('topics: {chunk: [{kind: nan, end_s: 0}]}', 'must be after start_s, 0'),
        ('topics: {chunk: [{kind: nan, indx: 3}]}', r"chunk\[0\]: nan: .*Did you mean 'index'"),
        ('topics: {chunk: [{kind: drop, probability: 2}]}', 'above the maximum 1'),
        ('topics: {chunk: [{kind: nan, field: "a b"}]}', "'a b' is no field"),
        ('topics: {chunk: [{kind: permute, order: [0, 2]}]}', 'does not name each place once'),
        ('topics: {chunk: [{kind: delay, delay_s: .nan}]}', 'NaN is not allowed'),
        ('processes: [{kind: kill}]', "node: '' is no name"),
        ('processes: [{kind: drop, node: x}]', "unknown kind of fault 'drop'"),
        ('{seed: -1, processes: [{kind: kill, node: x}]}', 'seed: -1'),
        ('{begin: soon, processes: [{kind: kill, node: x}]}', 'value of begin'),
        ('topics: {chunk: [', 'faults.yaml'),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / 'faults.yaml'
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        plan.load(file)
    assert 'faults.yaml' in str(caught.value)


def test_the_example_is_a_plan() -> None:
    found = plan.load(Path(plan.__file__).parents[3] / 'config/faults/example.yaml')
    assert set(found.topics) == {
        'joint_states', 'command', 'chunk', 'camera/front/image/compressed',
    }  # fmt: skip
    assert [fault.kind for fault in found.processes] == ['sigstop', 'kill']


def test_processes_of_others_are_never_found(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv('ROS_DOMAIN_ID', '7')

    def process(pid: int, parent: int, words: str, domain: str = '7') -> None:
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / 'cmdline').write_bytes(words.replace(' ', '\0').encode())
        (folder / 'stat').write_text(f'{pid} (a ) b) S {parent} 0')
        (folder / 'environ').write_bytes(f'A=b\0ROS_DOMAIN_ID={domain}\0'.encode())

    import os

    mine = os.getppid()
    guard = 'python /opt/lib/chunkpilot/guard_node --ros-args -r __node:=guard_node'
    process(11, mine, guard, domain='8')
    process(12, mine + 1, guard)
    process(13, mine, 'vim guard_node.py')
    process(14, mine, 'python /opt/lib/chunkpilot/guard_node -r __node:=other')
    (tmp_path / 'self').mkdir()
    with pytest.raises(ConfigError, match=r"0 processes .* node 'guard_node'"):
        processes.find('guard_node', tmp_path)
    process(15, mine, guard)
    assert processes.find('guard_node', tmp_path) == 15
    process(16, mine, 'python -m chunkpilot_nodes.guard_node')
    with pytest.raises(ConfigError, match='2 processes'):
        processes.find('guard_node', tmp_path)
