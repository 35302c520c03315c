"""Where a chunk is bad and other rows are known to be good, these run: guided, not stopped."""

from dataclasses import replace
from typing import Any

from chunkpilot_core import registry, spaces
from chunkpilot_core import robot as robots
from chunkpilot_core.clearance.runtime.bodies import Obstacle, Shape, TOOL
from chunkpilot_core.execution.fixed import Fixed
from chunkpilot_core.execution.runtime.executor import Executor, GUIDED_ROWS
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.prediction import candidates
from chunkpilot_core.prediction.predictor import Predictor
from chunkpilot_core.types import (
    ActionChunk,
    ArmState,
    ChunkPart,
    ChunkVerdict,
    GuardEvent,
    GuardStatus,
    Id,
    JointState,
    PolicySpec,
)
import numpy as np
import pytest

ROBOT = robots.load('panda')
EE = spaces.ee_delta_space()  # rows of 40 ms; 1 = 0.05 m; gripper 1 = open, -1 = closed
HOME = np.array([*ROBOT.home, 0.0, 0.0])
TOOL_AT = Kinematics(ROBOT).forward(HOME[:7]).position
NOW, DT = 10**10, 0.04
UPRIGHT = np.array([0.0, 0.0, 0.0, 1.0])


def chunk_of(rows: Any, **changes: Any) -> ActionChunk:
    actions = np.asarray(rows, np.float32)
    made = ActionChunk(
        Id(3, 1), Id(7, 1), 1, 'task', Id(8, 1), NOW, NOW, DT, actions, EE.hash, 'test', 1
    )
    return replace(made, **changes)


def rows(x: float = 0.0, z: float = 0.0, grip: Any = -1.0) -> np.ndarray:
    """Return 16 rows that move the tool by so many metres each."""
    made = np.tile(np.array([x / 0.05, 0.0, z / 0.05, 0.0], np.float32), (16, 1))
    made[:, 3] = grip
    return made


def predictor(*obstacles: Obstacle, **options: Any) -> Predictor:
    clearance = registry.get('clearance', 'capsules')(ROBOT)
    clearance.set_obstacles(obstacles)
    made = Predictor(ROBOT, Predictor.Config(**options), clearance)
    made.space = EE
    return made


def box(name: str, size: tuple[float, float, float], *place: float, **more: Any) -> Obstacle:
    return Obstacle(name, Shape.BOX, size, np.array(place), UPRIGHT, **more)


def post() -> Obstacle:
    """Return what stands in front of the hand, within half a chunk."""
    return box('post', (0.02, 0.03, 0.5), TOOL_AT[0] + 0.1, TOOL_AT[1], 0.25)


def judge(by: Predictor, chunk: ActionChunk) -> ChunkVerdict:
    return by.judge(chunk, JointState(NOW, ROBOT.joints, HOME, np.zeros(9)), NOW)


# ---- which rows -------------------------------------------------------------------------------


def test_a_way_around_is_named_and_is_good_itself() -> None:
    chunk = chunk_of(rows(x=0.006))
    verdict = judge(predictor(post(), detours=True), chunk)
    assert not verdict.ok
    other = candidates.rows_of(chunk, EE, verdict.best_sample)
    assert judge(predictor(post()), replace(chunk, actions=other)).ok
    assert np.abs(other - chunk.actions).max() > 0.01


def test_nothing_but_the_policys_own_rows_is_named_unless_it_is_wished() -> None:
    chunk = chunk_of(rows(x=0.006))
    assert judge(predictor(post()), chunk).best_sample == -1
    sampled = replace(chunk, samples=np.stack((chunk.actions, rows(x=-0.006))))
    for detours in (False, True):  # what the policy has predicted comes first
        assert judge(predictor(post(), detours=detours), sampled).best_sample == 1


def test_the_next_detour_goes_the_same_way_around() -> None:
    by, chunk = predictor(post(), detours=True), chunk_of(rows(x=0.006))
    for side in (1.0, -1.0):
        by._side = side
        assert candidates.side(chunk, judge(by, chunk).best_sample) * side >= 0.0


def test_rows_of_an_answer_that_comes_in_parts_are_not_guided() -> None:
    parts = tuple(ChunkPart(first, 8, Id(8, 1), NOW, executable_rows=8) for first in (0, 8))
    chunk = chunk_of(rows(x=0.006), parts=parts)
    assert judge(predictor(post(), detours=True), chunk).best_sample == -1


def test_a_detour_begins_when_the_gripper_has_closed_and_never_opens_it() -> None:
    closing = np.where(np.arange(16) < 6, 1.0, -1.0)
    chunk = chunk_of(rows(x=0.004, grip=closing))
    for number in range(len(candidates.DETOURS)):
        other = candidates.rows_of(chunk, EE, number)
        np.testing.assert_array_equal(other[:6], chunk.actions[:6])
        np.testing.assert_array_equal(other[:, 3], closing.astype(np.float32))
    opening = chunk_of(rows(x=0.004, grip=-closing))
    assert candidates.rows_of(opening, EE, 0)[:, 3].max() == -1.0


def test_a_gripper_that_closes_with_larger_rows_is_not_opened_either() -> None:
    arm, gripper = EE.groups
    upside_down = replace(gripper, scale=(-gripper.scale[0],))
    space = spaces.make(replace(EE, groups=(arm, upside_down)))
    grip = np.where(np.arange(16) < 6, -1.0, 1.0)  # open, then closed
    grip[12:] = -1.0
    for number in range(len(candidates.DETOURS)):
        other = candidates.rows_of(chunk_of(rows(x=0.004, grip=grip)), space, number)
        np.testing.assert_array_equal(other[:6, 3], -1.0)
        np.testing.assert_array_equal(other[6:, 3], 1.0)


@pytest.mark.parametrize('number', [-1, len(candidates.DETOURS)])
def test_there_are_no_other_numbers(number: int) -> None:
    assert candidates.rows_of(chunk_of(rows()), EE, number) is None


def test_a_detour_keeps_the_bounds_of_the_space() -> None:
    for number in range(len(candidates.DETOURS)):
        assert np.abs(candidates.rows_of(chunk_of(rows(x=0.05)), EE, number)).max() <= 1.0


# ---- what is carried ----------------------------------------------------------------------------


def test_what_is_carried_keeps_clear_of_obstacles_and_may_be_put_on_the_table() -> None:
    held = box('cube', (0.04, 0.04, 0.04), 0.0, 0.0, 0.0, frame=TOOL)
    below = box('ledge', (0.2, 0.2, 0.01), *(TOOL_AT - np.array([0.0, 0.0, 0.06])))
    sinking = chunk_of(rows(z=-0.002))  # 3.2 cm down: fingers clear of the ledge, the cube not
    assert judge(predictor(below), sinking).ok
    assert 'cube-ledge' in judge(predictor(below, held), sinking).reason
    put = chunk_of(rows(z=-(TOOL_AT[2] - 0.01) / 16.0))
    assert judge(predictor(held), put).check != 'clearance'


# ---- that they run ------------------------------------------------------------------------------


class Rig:
    """An executor that has been given one chunk; the arm follows perfectly."""

    def __init__(self, **config: Any) -> None:
        self.executor = Executor(Fixed(Fixed.Config(8)), Executor.Config(**config), ROBOT, 7)
        self.executor.configure(PolicySpec('fake', 'fake', 1, EE, 16, DT), 5)
        self.executor.set_guard(GuardStatus(NOW, ArmState.ARMED, 1, NOW), NOW)
        self.executor.set_episode(True, 'task', NOW, 'episode')
        self.now, self.at = NOW, np.array([0.0, 0.0, 0.2, 0.08])
        self.sources: list[str] = []
        request = self.tick().request
        self.chunk = chunk_of(
            rows(x=0.01), request_id=request.id, observation_stamp_ns=self.now, start_ns=self.now,
            samples=np.stack((rows(x=0.01), rows(z=0.01))),
        )  # fmt: skip
        self.offer = ChunkVerdict(
            self.now, self.chunk.id, ok=False, first_bad_row=9, executable_rows=2,
            check='clearance', reason='row 9', best_sample=1,
        )  # fmt: skip

    def tick(self) -> Any:
        self.now += 10_000_000
        tick = self.executor.tick(self.now, self.at, self.now)
        if tick.command is not None:
            self.at = np.concatenate([group.values for group in tick.command.groups])
            self.sources.append(tick.command.source)
        return tick

    def ticks(self, count: int) -> list[Any]:
        return [self.tick() for _ in range(count)]

    def receive(self) -> None:
        assert self.executor.receive(self.chunk, self.now) is None

    def judged(self, verdict: ChunkVerdict) -> bool:
        return self.executor.judged(verdict, self.now)

    def withdraw(self) -> bool:
        event = GuardEvent(
            self.now, 1, 'replan', ArmState.ARMED, ArmState.ARMED, check='chunk_verdict',
            chunk_id=self.chunk.id, keep_rows=2,
        )  # fmt: skip
        return self.executor.replan(event, self.now)


def test_the_rows_that_a_verdict_names_run_from_the_next_row_on() -> None:
    rig = Rig()
    rig.receive()
    rig.ticks(6)  # in the second row
    assert rig.judged(rig.offer)
    rig.ticks(12)
    assert rig.at[0] == pytest.approx(0.02, abs=2e-3)
    assert rig.at[2] > 0.22
    assert (rig.sources[0], rig.sources[-1]) == ('policy', 'guided')


def test_all_of_them_run_and_no_wish_about_the_chunks_own_rows_cuts_them() -> None:
    rig = Rig()
    rig.receive()
    assert rig.judged(rig.offer)
    assert not rig.withdraw()
    rig.ticks(65)  # longer than the horizon of 8 rows
    assert 0.36 <= rig.at[2] < 0.365  # 16 rows of 1 cm, then it brakes
    assert rig.at[0] == pytest.approx(0.0, abs=1e-6)


def test_a_verdict_may_come_before_its_chunk_or_after_the_guards_wish() -> None:
    early, late = Rig(), Rig()
    assert not early.judged(early.offer)
    early.receive()
    late.receive()
    late.ticks(2)
    assert late.withdraw()
    assert late.judged(late.offer)
    for rig in (early, late):
        rig.ticks(20)
        assert rig.sources[-1] == 'guided'


@pytest.mark.parametrize('changes', [{'ok': True}, {'best_sample': -1}, {'chunk_id': Id(3, 2)}])
def test_any_other_verdict_changes_nothing(changes: dict[str, Any]) -> None:
    rig = Rig()
    rig.receive()
    assert not rig.judged(replace(rig.offer, **changes))
    rig.ticks(10)
    assert set(rig.sources) == {'policy'}
    assert rig.at[2] == pytest.approx(0.2)


def test_rows_that_are_named_too_late_do_not_run() -> None:
    rig = Rig()
    rig.receive()
    rig.ticks(round((GUIDED_ROWS + 1.0) * DT / 0.01))
    assert not rig.judged(rig.offer), 'it has gone on where nobody began to judge'
    rig.ticks(10)
    assert set(rig.sources) == {'policy'}


def test_a_verdict_about_a_scene_that_is_no_more_changes_nothing() -> None:
    rig = Rig()
    rig.receive()
    rig.ticks(3)
    assert rig.executor.cut('surprise: object moved', rig.now)
    assert not rig.judged(rig.offer)
    rig.ticks(40)
    assert rig.at[0] < 0.06, 'the cut holds'


def test_the_first_rows_that_are_named_stay() -> None:
    rig = Rig()
    rig.receive()
    assert rig.judged(rig.offer)
    assert not rig.judged(replace(rig.offer, best_sample=0))
    rig.ticks(20)
    assert rig.at[0] == pytest.approx(0.0, abs=1e-6)


def test_rows_of_an_answer_in_parts_are_not_replaced_by_those_of_its_first_part() -> None:
    rig = Rig()
    part = ChunkPart(0, 16, Id(8, 1), rig.now, final=False, executable_rows=16)
    coarse = replace(rig.chunk, parts=(part,))
    assert rig.executor.receive(coarse, rig.now) is None
    assert not rig.judged(rig.offer)
    fine = replace(rig.chunk, id=Id(3, 2), parts=(replace(part, revision=1, final=True),))
    rig.executor.receive(fine, rig.now)
    assert not rig.judged(rig.offer)


def test_of_an_answer_in_parts_nothing_is_named() -> None:
    judging, whole = predictor(post(), detours=True), chunk_of(rows(x=0.006))
    assert judge(judging, whole).best_sample >= 0
    part = ChunkPart(0, 16, Id(8, 1), NOW, final=False, executable_rows=16)
    coarse = replace(whole, id=Id(3, 5), request_id=Id(7, 5), parts=(part,))
    fine = replace(coarse, id=Id(3, 6), parts=(replace(part, revision=1, final=True),))
    assert [judge(judging, each).best_sample for each in (coarse, fine)] == [-1, -1]


def test_a_change_of_policy_forgets_what_was_named() -> None:
    rig = Rig()
    rig.receive()
    finer = spaces.ee_delta_space(step_m=0.02)
    rig.executor.configure(PolicySpec('fake', 'other', 2, finer, 16, DT), 6)
    assert not rig.judged(rig.offer)


def test_no_way_around_is_looked_for_where_nothing_is_in_the_way() -> None:
    there_and_back = np.where(np.arange(16) % 2, 1.0, -1.0)[:, None]
    wild = chunk_of(there_and_back * rows(x=0.05, z=0.05))
    verdict = judge(predictor(detours=True), wild)
    assert not verdict.ok
    assert verdict.check != 'clearance'
    assert verdict.best_sample == -1


def test_the_next_chunk_is_the_policys_own_again() -> None:
    rig = Rig()
    rig.receive()
    rig.judged(rig.offer)
    request = next(tick.request for tick in rig.ticks(100) if tick.request)
    rig.chunk = replace(
        rig.chunk, id=Id(3, 2), request_id=request.id, observation_stamp_ns=rig.now,
        start_ns=rig.now,
    )  # fmt: skip
    rig.receive()
    rig.ticks(10)
    assert rig.sources[-1] == 'policy'


def test_when_the_guard_wants_another_chunk_samples_are_asked_for_once() -> None:
    rig = Rig(replan_samples=8)
    rig.receive()
    rig.ticks(2)
    assert rig.withdraw()
    urgent = next(tick.request for tick in rig.ticks(5) if tick.request)
    assert urgent.n_samples == 8
    rig.chunk = replace(
        rig.chunk, id=Id(3, 2), request_id=urgent.id, observation_stamp_ns=rig.now,
        start_ns=rig.now,
    )  # fmt: skip
    rig.receive()
    assert next(tick.request for tick in rig.ticks(100) if tick.request).n_samples == 1
