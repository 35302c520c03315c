"""The guard keeps the arm off itself and its surroundings, and never blocks the way out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chunkpilot_core import registry
from chunkpilot_core.clearance.runtime.bodies import Obstacle, ObstacleList, Shape, TOOL, WORLD
from chunkpilot_core.policies.runtime.demonstrations import Collector, DemonstrationConfig
from chunkpilot_core.safety.obstacles import Obstacles
from chunkpilot_core.safety.runtime.guard import Guard
from chunkpilot_core.sim.world import World
from chunkpilot_core.types import ArmState, Command, nanoseconds, Reaction
from helpers.guard import ROBOT
import numpy as np
import pytest

UPRIGHT = np.array([0.0, 0.0, 0.0, 1.0])
BACKENDS = ('capsules', 'pybullet')
GAP_M = 0.002  # by which the braking path, straight in joints, may miss a threshold


@pytest.fixture(params=BACKENDS)
def guarded(request: Any, bench: Any) -> Callable[..., Any]:
    """Return a maker of benches whose guard uses one of the computations of distances."""

    def make(**options: Any) -> Any:
        config = Guard.Config(distances=request.param)
        arm = bench(config=config, **options)
        arm.true = registry.get('clearance', request.param)(ROBOT)
        return arm

    return make


def box(name: str, at: Any, size: Any = (0.1, 0.1, 0.1), **more: Any) -> Obstacle:
    return Obstacle(name, Shape.BOX, tuple(size), np.array(at, float), UPRIGHT, **more)


def tell(arm: Any, *obstacles: Obstacle, lasting: bool = True, old_s: float = 0.0) -> None:
    told = ObstacleList(nanoseconds(arm.now_s - old_s), obstacles, lasting)
    arm.guard.on_obstacles(told, arm.now_ns())
    if hasattr(arm, 'true'):
        arm.true.set_obstacles(obstacles)


def tool_of(arm: Any) -> np.ndarray:
    return arm.guard.kinematics.forward(arm.measured[:7]).position


def slack(arm: Any) -> tuple[float, str]:
    """Return by how much the tightest pair is clear of what stops it, and its name."""
    margin = arm.true.distances(arm.last.positions) - arm.true.stop
    worst = int(np.argmin(margin))
    return float(margin[worst]), arm.true.names[worst]


def straight(arm: Any, direction: Any, speed: float = 0.2) -> Callable[[], Command]:
    """Return a sender that moves the tool along a line."""
    start, began = tool_of(arm), arm.now_s
    along = np.array(direction, float)

    def make() -> Command:
        return arm.tool(start + along * speed * (arm.now_s + 0.01 - began))

    return make


def folded(arm: Any) -> Callable[[], Command]:
    """Return a sender that folds the hand into the forearm, slowly."""
    start, began = arm.measured[:7].copy(), arm.now_s
    goal = np.array(ROBOT.home)
    goal[5] = 0.1

    def make() -> Command:
        share = min((arm.now_s + 0.01 - began) / 3.0, 1.0)
        return arm.joints(start + share * (goal - start))

    return make


@pytest.mark.matrix(28)
def test_a_motion_into_itself_is_slowed_and_held_before_contact(guarded: Any) -> None:
    arm = guarded().armed()
    make = folded(arm)
    reactions = set()
    for _ in range(600):
        tick = arm.tick(make())
        reactions.add((tick.verdict.reaction, tick.verdict.check))
        margin, pair = slack(arm)
        assert margin >= -GAP_M, (pair, margin)
        if arm.state is not ArmState.ARMED:
            break
    assert arm.state is ArmState.HOLD
    assert (Reaction.SLOW, 'clearance') in reactions
    assert (Reaction.HOLD, 'clearance') in reactions
    verdict = arm.last.verdict
    assert verdict.reason.startswith(('link5-', 'link2-'))
    arm.ticks(40)
    margin, pair = slack(arm)
    assert margin >= -GAP_M, (pair, margin)
    assert arm.guard._mover.at_rest


@pytest.mark.matrix(29)
@pytest.mark.parametrize('speed', [0.05, 0.3, 1.0])
def test_the_arm_stops_in_front_of_an_obstacle_and_may_retreat(guarded: Any, speed: float) -> None:
    arm = guarded().armed()
    tell(arm, box('wall', np.add(tool_of(arm), (0.0, 0.25, 0.0)), (0.4, 0.1, 0.4)))
    forth = straight(arm, (0.0, 1.0, 0.0), speed)
    while arm.state is ArmState.ARMED and arm.now_s < 1020.0:
        arm.tick(forth())
        margin, pair = slack(arm)
        assert margin >= -GAP_M, (pair, margin)
    assert arm.state is ArmState.HOLD
    assert arm.guard.machine.causes[0].startswith('clearance: ')
    assert '-wall' in arm.last.verdict.reason
    assert slack(arm)[0] < 0.06  # not stopped far away either
    arm.ticks(80)
    assert arm.state is ArmState.ARMED  # released by itself
    arm.ticks(101)
    reached, back = tool_of(arm), straight(arm, (0.0, -1.0, 0.0), 0.1)
    scales = [arm.tick(back()).speed_scale for _ in range(150)]
    assert arm.state is ArmState.ARMED
    assert min(scales) == 1.0  # the way out is not even slowed
    assert tool_of(arm)[1] == pytest.approx(reached[1] - 0.15, abs=0.02)


@pytest.mark.matrix(29)
def test_an_obstacle_that_appears_close_by_stops_what_nears_it_only(guarded: Any) -> None:
    """At 0.03 m: slow at once towards it, free away from it."""
    for sign, state in ((1.0, ArmState.HOLD), (-1.0, ArmState.ARMED)):
        arm = guarded().armed()
        go = straight(arm, (0.0, sign, 0.0), 0.3)
        arm.ticks(15, go)
        tell(arm, box('ball', _beside(arm, 0.03)))
        found = dict(zip(arm.true.names, arm.true.distances(arm.last.positions), strict=True))
        nearest = min(d for name, d in found.items() if name.endswith('-ball'))
        assert 0.005 < nearest < 0.035, nearest
        for _ in range(100):
            arm.tick(go())
        assert arm.state is state


def _beside(arm: Any, gap: float) -> np.ndarray:
    """Return where a box of 0.1 m is ``gap`` from the finger that is farthest along y."""
    at = np.add(tool_of(arm), (0.0, 0.3, 0.0))
    for _ in range(60):
        arm.true.set_obstacles([box('ball', at)])
        found = dict(zip(arm.true.names, arm.true.distances(arm.last.positions), strict=True))
        nearest = min(d for name, d in found.items() if name.endswith('-ball'))
        at[1] -= nearest - gap if nearest < 0.14 else 0.01
    return at


@pytest.mark.matrix(30)
def test_armed_in_contact_only_the_way_out_is_open(guarded: Any) -> None:
    arm = guarded()
    wall = box('wall', (0.0, 0.0, 0.0), (0.3, 0.1, 0.3))
    arm.last = arm.tick()
    at = np.add(tool_of(arm), (0.0, 0.08, 0.0))
    tell(arm, replace(wall, position=at))
    touching = min(arm.true.distances(arm.measured))
    assert touching < 0.0, touching
    arm.armed()
    assert arm.state is ArmState.ARMED
    start = arm.last.positions.copy()
    inwards = straight(arm, (0.0, 1.0, 0.0), 0.1)
    arm.ticks(20, inwards)
    assert arm.state is ArmState.HOLD
    assert np.abs(arm.last.positions - start).max() < 1e-3  # it did not even begin
    arm.ticks(80)
    arm.ticks(101)
    out = straight(arm, (0.0, -1.0, 0.0), 0.1)
    arm.ticks(200, out)
    assert arm.state is ArmState.ARMED
    assert min(arm.true.distances(arm.last.positions)) > 0.0


@pytest.mark.matrix(31)
def test_old_obstacles_slow_and_then_hold_and_new_ones_release(bench: Any) -> None:
    arm = bench().armed()
    tell(arm, lasting=False)
    make = arm.moving(0.3)
    slowest, slowed_s, began = 1.0, 0.0, arm.now_s
    while arm.state is ArmState.ARMED and arm.now_s < began + 4.0:
        tick = arm.tick(make())
        if arm.state is ArmState.ARMED:
            slowest = min(slowest, tick.speed_scale)
        if tick.verdict.check == 'obstacles' and not slowed_s:
            slowed_s = arm.now_s - began
    held_s = arm.now_s - began
    assert slowed_s == pytest.approx(0.5, abs=0.021)
    assert held_s == pytest.approx(2.0, abs=0.021)
    assert slowest == pytest.approx(Obstacles.Config().scale)
    assert arm.last.verdict.check == 'obstacles'
    arm.ticks(100)
    assert arm.state is ArmState.HOLD  # as long as nobody tells
    for _ in range(70):
        tell(arm, lasting=False)
        arm.tick()
    assert arm.state is ArmState.ARMED


@pytest.mark.matrix(31)
def test_an_obstacle_without_a_place_is_refused_and_the_old_one_stays(guarded: Any) -> None:
    arm = guarded().armed()
    wall = box('wall', np.add(tool_of(arm), (0.0, 0.25, 0.0)), (0.4, 0.1, 0.4))
    tell(arm, wall)
    nowhere = replace(wall, position=np.array([0.0, np.nan, 0.0]))
    arm.guard.on_obstacles(ObstacleList(arm.now_ns(), (nowhere,), True), arm.now_ns())
    forth = straight(arm, (0.0, 1.0, 0.0), 0.3)
    for _ in range(200):
        arm.tick(forth())
        assert slack(arm)[0] >= -GAP_M
    assert arm.state is ArmState.HOLD
    told = [event for event in arm.events if event.check == 'obstacles']
    assert len(told) == 1
    assert 'position' in told[0].reason


@pytest.mark.matrix(31)
def test_an_obstacle_that_is_gone_is_in_nobodys_way(guarded: Any) -> None:
    arm = guarded().armed()
    tell(arm, box('wall', np.add(tool_of(arm), (0.0, 0.2, 0.0)), (0.4, 0.1, 0.4)))
    tell(arm)
    arm.ticks(80, straight(arm, (0.0, 1.0, 0.0), 0.3))
    assert arm.state is ArmState.ARMED
    assert arm.last.verdict.reaction is Reaction.PASS


def test_lasting_obstacles_do_not_get_old(bench: Any) -> None:
    arm = bench().armed()
    tell(arm, box('post', (0.2, 0.35, 0.05)))
    arm.ticks(400)
    assert arm.state is ArmState.ARMED
    assert arm.last.speed_scale == 1.0


def test_required_obstacles_have_to_be_told_before_arming(bench: Any) -> None:
    arm = bench(checks={'obstacles': Obstacles.Config(required=True)})
    arm.ticks(2)
    done, why_not = arm.guard.arm(arm.now_ns())
    assert not done
    assert 'obstacles are required' in why_not
    tell(arm, lasting=False, old_s=10.0)
    done, why_not = arm.guard.arm(arm.now_ns())
    assert not done
    assert 'old' in why_not
    tell(arm, lasting=False)
    done, why_not = arm.guard.arm(arm.now_ns())
    assert done, why_not


def test_what_is_held_stops_at_a_shelf_that_the_hand_would_pass(guarded: Any) -> None:
    arm = guarded().armed()
    shelf = box('shelf', np.subtract(tool_of(arm), (0.0, 0.0, 0.16)), (0.3, 0.3, 0.04))
    stick = Obstacle('stick', Shape.CAPSULE, (0.01, 0.1), np.array([0, 0, 0.05]), UPRIGHT, TOOL)
    reached = []
    for obstacles in ((shelf,), (shelf, stick)):
        arm = guarded().armed()
        tell(arm, *obstacles)
        down = straight(arm, (0.0, 0.0, -1.0), 0.1)
        for _ in range(300):
            arm.tick(down())
        reached.append(float(tool_of(arm)[2] - shelf.position[2] - 0.02))
    assert stick.held
    assert shelf.frame == WORLD
    assert reached[0] == pytest.approx(0.0091, abs=0.004)  # 2 mm under the finger tips
    assert 0.09 < reached[1] < 0.115  # the stick reaches 0.11 m beyond the tool point


def test_the_verdict_names_the_nearest_pairs(guarded: Any) -> None:
    arm = guarded().armed()
    tell(arm, box('wall', np.add(tool_of(arm), (0.0, 0.18, 0.0))))
    arm.ticks(5, arm.moving(0.1))
    before = arm.last.positions
    told = arm.ticks(1, arm.moving(0.1)).verdict.clearances
    assert 1 <= len(told) <= 3
    found = dict(zip(arm.true.names, arm.true.distances(before), strict=True))
    for pair, distance in told.items():
        assert distance == pytest.approx(found[pair], abs=1e-6)
    assert 'link5-link7' in told


def test_obstacles_for_a_robot_without_a_shape_are_refused_in_words(
    bench: Any, monkeypatch
) -> None:
    from helpers import guard as helper

    monkeypatch.setattr(helper, 'ROBOT', replace(ROBOT, collision=None))
    arm = bench().armed()
    tell(arm, box('wall', (0.0, 0.0, 0.5)))
    arm.tick()
    assert any('shape of panda is not known' in event.reason for event in arm.events)
    arm.ticks(50, arm.moving(0.3))
    assert arm.state is ArmState.ARMED


# ---- nothing to object to -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('task', ['pick_and_place', 'push', 'stack'])
def test_work_at_the_table_raises_no_alarm(
    bench: Any, monkeypatch: Any, task: str, backend: str
) -> None:
    """The tool works within millimetres of the table, and the fingers push and hold cubes."""
    path: list[np.ndarray] = []
    step = World.step

    def watched(world: Any, targets: Any = None) -> None:
        path.extend([] if targets is None else [np.array(targets)])
        step(world, targets)

    monkeypatch.setattr(World, 'step', watched)
    calm = DemonstrationConfig(pushes_per_row=0.0, slips_per_row=0.0, start_pushed=0.0)
    collector = Collector(task, calm)
    assert collector.episode(3).success
    collector.close()
    arm = bench(config=Guard.Config(distances=backend))
    arm.measured = path[0].copy()
    arm.armed()
    nearest = 1.0
    for joints in path:
        place = arm.guard.kinematics.forward(joints[:7]).position
        verdict = arm.tick(arm.tool(place, width=float(joints[7:].sum()))).verdict
        assert verdict.check != 'clearance', verdict.reason
        assert arm.state is ArmState.ARMED
        nearest = min(nearest, verdict.clearances.get('finger1-table', 1.0))
    assert nearest < 0.02


@pytest.mark.parametrize('every', [10_000, 3, 1], ids=['one list', 'lists', 'a list a tick'])
def test_nobody_creeps_into_the_distance_that_stops(guarded: Any, every: int) -> None:
    arm = guarded().armed()
    wall = box('wall', tool_of(arm) + np.array([0.16, 0.0, 0.0]), (0.1, 0.3, 0.3))
    far = box('far', (0.0, 3.0, 0.5))
    tell(arm, wall)
    make = straight(arm, (1.0, 0.0, 0.0), 0.02)
    while slack(arm)[0] > 0.0005:
        assert arm.tick(make()).verdict.state is ArmState.ARMED
    make = straight(arm, (1.0, 0.0, 0.0), 0.00015)  # less in a tick than meshes are exact
    for count in range(1, 2500):
        if count % every == 0:
            tell(arm, *((far, wall) if count % 2 else (wall,)))  # other pairs, in another order
        arm.tick(make())
        if arm.state is not ArmState.ARMED:
            break
    assert (arm.state, arm.last.verdict.check) == (ArmState.HOLD, 'clearance')
    assert slack(arm)[0] > -0.0002


def test_an_obstacle_that_has_come_nearer_leaves_the_way_out_open(guarded: Any) -> None:
    arm = guarded().armed()
    at = _beside(arm, 0.015)
    tell(arm, box('ball', at))
    arm.ticks(3, arm.home)
    tell(arm, box('ball', at - np.array([0.0, 0.005, 0.0])))
    began = tool_of(arm)[1]
    arm.ticks(100, straight(arm, (0.0, -1.0, 0.0), 0.1))
    assert arm.state is ArmState.ARMED
    assert began - tool_of(arm)[1] > 0.03


def test_a_held_arm_tells_no_distance_to_what_has_gone(guarded: Any) -> None:
    arm = guarded().armed()
    tell(arm, box('gone', tool_of(arm) + np.array([0.16, 0.0, 0.0]), (0.1, 0.3, 0.3)))
    arm.ticks(20, arm.moving(0.05))
    assert any(pair.endswith('-gone') for pair in arm.last.verdict.clearances)
    arm.guard.hold(arm.now_ns())
    tell(arm)
    assert not arm.ticks(50).verdict.clearances


def test_an_arm_at_rest_begins_slowly_among_old_obstacles(bench: Any) -> None:
    arm = bench().armed()
    tell(arm, box('far', (0.0, 3.0, 0.5)), lasting=False)
    arm.ticks(60)
    make, fastest = arm.moving(2.0), 0.0
    for _ in range(50):
        tick = arm.tick(make())
        fastest = max(fastest, abs(tick.verdict.sent_velocity[0]))
    assert tick.verdict.check == 'obstacles'
    assert 0.0 < fastest <= Obstacles.Config().scale * arm.limiter.max_velocity[0] + 1e-9
