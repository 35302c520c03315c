"""Messages carry exactly what the dataclasses hold, through real serialisation."""

from dataclasses import fields, replace

import numpy as np
import pytest

pytest.importorskip('rclpy')

from chunkpilot_core import spaces, types
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_nodes import convert
from rclpy.serialization import deserialize_message, serialize_message

pytestmark = pytest.mark.ros
SPACE = spaces.ee_delta_space()
ID = types.Id(2**63 + 5, 7)


def make_chunk(horizon: int = 4) -> types.ActionChunk:
    """Return a chunk with every optional field filled."""
    rng = np.random.default_rng(0)

    def random(*shape: int) -> types.F32:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    return types.ActionChunk(
        id=ID,
        request_id=types.Id(1, 2),
        arm_epoch=1_796_070_705_466_417_772,
        task_id='t1',
        observation_id=types.Id(3, 4),
        observation_stamp_ns=1_796_070_705_000_000_001,
        start_ns=1_796_070_705_000_000_001,
        dt_s=0.04,
        actions=random(horizon, 4),
        space_hash=SPACE.hash,
        policy='flow',
        policy_version=3,
        stamp_ns=1_796_070_705_000_000_005,
        observation_oldest_ns=1_796_070_704_900_000_000,
        parts=(types.ChunkPart(0, 4, types.Id(3, 4), 17, 1, False, 2, 0.5),),
        confidence=random(horizon),
        waypoint=random(horizon),
        samples=random(3, horizon, 4),
        residual=random(horizon, 4),
        residual_bound=random(4),
        expected_features=random(horizon, 5),
        diagnostics={'entropy': 0.5},
        answered_by='flow',
        inference_s=0.25,
        max_row_age_s=1.25,
    )


def through_wire(msg):
    """Serialise and deserialise a message."""
    return deserialize_message(serialize_message(msg), type(msg))


def assert_same(left, right):
    """Compare two dataclasses field by field, arrays included."""
    for field in fields(left):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b, err_msg=field.name)
        elif isinstance(a, tuple) and a and hasattr(a[0], '__dataclass_fields__'):
            assert len(a) == len(b)
            for one, other in zip(a, b, strict=True):
                assert_same(one, other)
        else:
            assert a == pytest.approx(b, rel=1e-6) if isinstance(a, float) else a == b, field.name


def test_chunk_survives_the_wire_with_every_field():
    chunk = make_chunk()
    assert_same(chunk, convert.chunk_from_msg(through_wire(convert.chunk_to_msg(chunk))))


@pytest.mark.parametrize('field', ['actions', 'samples', 'residual', 'expected_features'])
def test_chunk_whose_array_is_short_by_one_is_refused_by_name(field):
    msg = convert.chunk_to_msg(make_chunk())
    setattr(msg, field, getattr(msg, field)[:-1])
    with pytest.raises(InvalidDataError, match=field):
        convert.chunk_from_msg(msg)


def test_request_command_rows_verdict_survive_the_wire():
    request = types.ChunkRequest(
        ID,
        5,
        6,
        't',
        'horizon',
        7,
        8,
        0.05,
        2,
        np.ones((2, 4)),
        np.zeros((2, 4)),
        9,
        0.04,
        1,
        'h',
        'jacobian',
        np.array([1.0, 0.5], np.float32),
        5.0,
        True,
        'act',
    )
    assert_same(request, convert.request_from_msg(through_wire(convert.request_to_msg(request))))
    target = np.array([0.1, 0.2, 0.3, 0.04])
    command = types.Command(
        ID,
        1,
        2,
        spaces.command_groups(SPACE, target, target),
        'policy',
        ID,
        3,
        4,
        5,
        1.0,
        True,
        SPACE.hash,
        99,
    )
    assert_same(command, convert.command_from_msg(through_wire(convert.command_to_msg(command))))
    rows = types.ExecutedRows(
        ID,
        1,
        2,
        ID,
        3,
        0.04,
        np.ones((2, 4), np.float32),
        (types.RowSource.POLICY, types.RowSource.GUARD),
        (1, 2),
        ('a', 'b'),
        np.ones((2, 2)),
        'h',
        't',
        'e',
    )
    back = convert.executed_rows_from_msg(through_wire(convert.executed_rows_to_msg(rows)))
    assert_same(rows, back)
    verdict = types.SafetyVerdict(
        1,
        2,
        3,
        types.ArmState.ARMED,
        types.Reaction.SLOW,
        ('a',),
        np.ones(1),
        np.ones(1),
        np.zeros(1),
        check='workspace',
        value=1.0,
        limit=0.5,
        margin=-0.5,
        state_age_s=0.1,
        command_age_s=0.2,
        row_age_s=0.3,
        clearances={'a/b': 0.5},
        counters=(1, 2, 0, 0, 0, 0, 0, 0),
    )
    assert_same(
        verdict, convert.verdict_from_msg(through_wire(convert.verdict_to_msg(verdict, 4)))
    )
    armed, held = types.ArmState.ARMED, types.ArmState.HOLD
    event = types.GuardEvent(
        1, 2, 'replan', armed, held, types.Reaction.REPLAN, 'c', 'j', 1.0, 2.0
    )
    event = replace(event, margin=1.0, reason='r', chunk_id=ID, keep_rows=5, escalate=True)
    back = convert.guard_event_from_msg(through_wire(convert.guard_event_to_msg(event, 4)))
    assert_same(event, back)
    judged = types.ChunkVerdict(
        1, ID, False, 9, 7, 0.5, 2, 'c', 'r', 0.25, 0.5, 0.75, 0.125, 'a-b', 3, 0.5
    )
    there = through_wire(convert.chunk_verdict_to_msg(judged))
    assert_same(judged, convert.chunk_verdict_from_msg(there))


def test_observation_and_task_survive_the_wire():
    task = types.Task('t', 'reach', 'go', ('goal.x',), np.array([0.5], np.float32))
    assert_same(task, convert.task_from_msg(through_wire(convert.task_to_msg(task, 5))))
    estimate = types.ObjectEstimate(
        'object', 5, np.ones(3), np.array([0.0, 0, 0, 1]), np.eye(6), types.ObjectStatus.HELD, 0.5
    )
    observation = types.Observation(
        ID,
        10,
        5,
        ('ee.x',),
        np.array([1], np.float32),
        ('object.x',),
        np.array([np.nan], np.float32),
        ('goal.x',),
        np.array([2], np.float32),
        (estimate,),
        3,
        't',
        {'front': 0.5},
        ('a',),
        ('b',),
        ('c',),
        types.Health.DEGRADED,
        'old',
    )
    back = convert.observation_from_msg(through_wire(convert.observation_to_msg(observation)))
    assert_same(observation, back)


def test_policy_info_with_a_tampered_space_is_refused():
    spec = types.PolicySpec('mlp', 'm', 1, SPACE, 16, 0.04, ('ee.x',), max_row_age_s=1.0)
    options = {'session': 1, 'stamp_ns': 2, 'state': 'ready', 'warm_inference_s': 0.1}
    msg = convert.policy_info_to_msg(spec, **options)
    assert_same(spec, convert.policy_info_from_msg(through_wire(msg)))
    tampered = replace(spec, space=replace(SPACE, upper=(2.0,) * 4))
    with pytest.raises(InvalidDataError, match='hash'):
        convert.policy_info_from_msg(convert.policy_info_to_msg(tampered, **options))


def test_joint_state_with_uneven_arrays_is_refused():
    state = types.JointState(5, ('a', 'b'), np.ones(2), np.zeros(2))
    msg = convert.joint_state_to_msg(state)
    assert_same(state, convert.joint_state_from_msg(through_wire(msg)))
    msg.name = ['a']
    with pytest.raises(InvalidDataError, match='1 names, 2 positions'):
        convert.joint_state_from_msg(msg)


def test_latency_label_is_read_back_and_foreign_labels_are_ignored():
    msg = through_wire(convert.positions_to_msg(np.ones(3), 123))
    assert convert.tick_of(msg) == 123
    msg.layout.dim[0].label = 'joints'
    assert convert.tick_of(msg) == 0
    msg.layout.dim = []
    assert convert.tick_of(msg) == 0


@pytest.mark.parametrize('field', ['state', 'reaction'])
def test_a_value_that_no_enumeration_has_is_refused_with_those_allowed(field):
    verdict = convert.verdict_to_msg(
        types.SafetyVerdict(
            1, 2, 3, types.ArmState.ARMED, types.Reaction.SLOW, ('a',), np.ones(1), np.ones(1),
            np.zeros(1),
        ),
        4,
    )  # fmt: skip
    setattr(verdict, field, 99)
    with pytest.raises(InvalidDataError, match='99 is not one of: 0, 1, 2'):
        convert.verdict_from_msg(verdict)
