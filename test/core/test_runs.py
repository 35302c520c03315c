"""A run of episodes against a graph of a few lines: order, refusals, deaths, cancelling."""

import json

from chunkpilot_core import robot
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.files import write_json
from chunkpilot_core.runs.episodes import (
    Announce,
    Call,
    check_request,
    Finish,
    Run,
    RunConfig,
    Start,
)
from chunkpilot_core.runs.summary import Tally
from chunkpilot_core.runs.world import Heard, World
from chunkpilot_core.types import (
    ArmState,
    EpisodeOutcome,
    ExecutionStats,
    GuardStatus,
    HorizonDecision,
    Id,
    nanoseconds,
    Task,
)
import numpy as np
import pytest

PANDA = robot.load('panda')
DT_NS = nanoseconds(0.02)


class Graph:
    """Guard, simulator, perception and policy as far as a run sees them."""

    def __init__(self, **options) -> None:
        self.world = World()
        self.now_ns = 1_000_000_000
        self.state = ArmState.DISARMED
        self.epoch = 1
        self.moving_ticks = 0
        self.away = options.pop('away', 0.0)
        self.solve_after_s = options.pop('solve_after_s', 1.0)
        self.refuse: dict[str, str] = {}
        self.deaf: set[str] = set()
        self.dead: set[str] = set()
        self.sessions = dict.fromkeys(('sim', 'guard', 'perception', 'policy', 'execution'), 7)
        self.log: list[str] = []
        self.started_ns: int | None = None
        self.counts: dict[str, int] = {'ticks': 100, 'executed_rows': 20}
        self.run = Run(
            RunConfig(**options.pop('config', {})),
            PANDA,
            self.world,
            'run',
            'push',
            options.pop('episodes', 1),
            options.pop('seed', 5),
            options.pop('timeout_s', 3.0),
        )
        self.task_id = ''

    def step(self) -> None:
        """Let 20 ms pass."""
        self.now_ns += DT_NS
        self.publish()
        for effect in self.run.tick(self.now_ns, self.now_ns):
            self.do(effect)

    def publish(self) -> None:
        """Let every living node speak."""
        world = self.world
        for node in set(self.sessions) - self.dead:
            world.hear(node, self.sessions[node], self.now_ns)
        if 'guard' not in self.dead:
            if self.moving_ticks:
                self.moving_ticks -= 1
                self.away = 0.0 if self.moving_ticks == 0 else self.away
            moving = self.moving_ticks > 0
            causes = ('too fast',) if self.state in (ArmState.HOLD, ArmState.STOPPED) else ()
            world.guard = GuardStatus(
                self.now_ns, self.state, self.epoch, 0, causes=causes, moving=moving
            )
        if 'policy' not in self.dead:
            world.policy_ready, world.policy_state = True, 'ready'
        world.observed_task, world.observation_bad = self.task_id, ''
        world.joints = {
            name: home + self.away for name, home in zip(PANDA.arm_joints, PANDA.home, strict=True)
        }
        world.scene_ns = self.now_ns
        running_ns = self.now_ns - self.started_ns if self.started_ns else 0
        world.success = running_ns > nanoseconds(self.solve_after_s)

    def do(self, effect) -> None:
        """Carry out what the run wants."""
        if isinstance(effect, Call):
            self.log.append(effect.service)
            if effect.service not in self.deaf:
                self.answer(effect)
        elif isinstance(effect, Announce):
            self.log.append('task')
            self.task_id = effect.task.id
        elif isinstance(effect, Start):
            self.log.append('START')
            self.started_ns = self.now_ns
            self.world.count_stats(stats(effect.episode_id, **self.counts))
        elif isinstance(effect, Finish):
            self.log.append(effect.outcome.name)
            self.started_ns = None

    def answer(self, call: Call) -> None:
        """Serve one call."""
        if call.service in self.refuse:
            self.run.answer(call.number, False, self.refuse[call.service])
            return
        task = None
        if call.service == 'sim/reset':
            task = Task(f'push-{call.seed}-0', 'push', goal=np.zeros(3, np.float32))
        elif call.service == 'guard/move_to':
            self.moving_ticks = 20
        elif call.service == 'driver/clear':
            self.world.driver_stopped = False
        else:
            self.state = ArmState.ARMED if call.service == 'guard/arm' else ArmState.DISARMED
            self.epoch += 1
        self.run.answer(call.number, True, '', task)

    def until(self, condition, limit_s: float = 200.0) -> None:
        """Let time pass until a condition holds."""
        end_ns = self.now_ns + nanoseconds(limit_s)
        while not condition():
            assert self.now_ns < end_ns, f'nothing happened: {self.run.phase}, {self.log}'
            self.step()

    def finish(self) -> list[Finish]:
        """Run to the end."""
        self.until(lambda: self.run.done)
        return self.run.finished


def test_order_of_an_episode():
    graph = Graph()
    (end,) = graph.finish()
    assert graph.log == ['sim/reset', 'task', 'guard/arm', 'START', 'SUCCESS', 'guard/disarm']
    assert end.outcome is EpisodeOutcome.SUCCESS
    assert end.seed == 5
    assert end.duration_s == pytest.approx(1.0, abs=0.1)
    assert not graph.run.failure
    assert graph.state is ArmState.DISARMED


def test_arm_goes_home_through_the_guard_when_it_is_not_there():
    graph = Graph(away=0.3)
    graph.finish()
    assert graph.log[2:5] == ['guard/arm', 'guard/move_to', 'START']


def test_each_episode_has_its_seed_and_a_task_id_of_its_own():
    graph = Graph(episodes=3)
    ends = graph.finish()
    assert [end.seed for end in ends] == [5, 6, 7]
    assert len({end.task.id for end in ends}) == 3
    assert graph.log.count('guard/disarm') == 3


def test_time_out_is_a_failure():
    (end,) = Graph(solve_after_s=99.0).finish()
    assert end.outcome is EpisodeOutcome.FAILURE
    assert 'within 3 s' in end.reason


@pytest.mark.parametrize(
    ('counts', 'reason'),
    [
        ({}, "whether the policy can't be executed"),
        ({'policy_calls': 3}, 'answered none of 3 requests'),
        ({'policy_calls': 3, 'chunks_rejected': 3}, 'execution refused 3 chunks'),
    ],
)
@pytest.mark.parametrize(('timeout_s', 'within'), [(10.0, '4.0 s'), (3.0, '3.0 s')])
def test_episode_in_which_nothing_was_executed_is_aborted_and_no_failure(
    counts, reason, timeout_s, within
):
    graph = Graph(solve_after_s=99.0, timeout_s=timeout_s)
    graph.counts = counts
    (end,) = graph.finish()
    assert end.outcome is EpisodeOutcome.ABORTED
    assert end.reason.startswith(f'nothing was executed within {within}')
    assert reason in end.reason


def test_statistics_of_another_episode_say_nothing_of_this_one():
    graph = Graph(episodes=2, solve_after_s=99.0, timeout_s=10.0)
    graph.until(lambda: len(graph.run.finished) == 1)
    assert graph.run.finished[0].outcome is EpisodeOutcome.FAILURE
    graph.counts = {}
    assert graph.finish()[1].outcome is EpisodeOutcome.ABORTED


@pytest.mark.parametrize(
    ('episodes', 'seed', 'timeout_s', 'words'),
    [
        (0, 1, 0.0, 'episodes is 0, must be at least 1'),
        (2, 2**64 - 1, 0.0, 'seed is 18446744073709551615'),
        (1, -1, 0.0, 'seed is -1'),
        (1, 1, -5.0, 'timeout is -5 s'),
        (1, 1, float('nan'), 'timeout is nan s'),
        (1, 1, float('inf'), 'must be finite'),
    ],
)
def test_request_that_can_not_be_served_is_refused_in_words(episodes, seed, timeout_s, words):
    with pytest.raises(InvalidDataError) as caught:
        check_request(episodes, seed, timeout_s)
    assert words in str(caught.value)
    check_request(1, 2**64 - 1, 0.0)


def test_stopped_guard_is_reset_before_it_is_armed():
    graph = Graph()
    graph.state = ArmState.STOPPED
    graph.finish()
    assert graph.log[:2] == ['guard/reset', 'sim/reset']


def test_driver_that_the_watchdog_stopped_is_cleared_explicitly():
    graph = Graph()
    graph.world.driver_stopped = True
    graph.finish()
    assert graph.log[:3] == ['driver/clear', 'sim/reset', 'task']


def test_refusal_to_arm_is_tried_again_and_then_passed_on():
    graph = Graph(config={'arm_timeout_s': 1.0, 'max_failed_starts': 1})
    graph.refuse['guard/arm'] = 'joint_states are 3 s old'
    (end,) = graph.finish()
    assert graph.log.count('guard/arm') > 2
    assert end.reason == 'guard/arm: joint_states are 3 s old'
    assert not end.started
    assert 'joint_states are 3 s old' in graph.run.failure


@pytest.mark.parametrize('service', ['guard/arm', 'sim/reset'])
def test_refusal_that_passes_does_no_harm(service):
    graph = Graph()
    graph.refuse[service] = 'not yet'
    graph.until(lambda: graph.log.count(service) == 3)
    graph.refuse.clear()
    (end,) = graph.finish()
    assert end.outcome is EpisodeOutcome.SUCCESS


def test_service_that_never_answers():
    graph = Graph(config={'max_failed_starts': 1, 'arm_timeout_s': 1.0})
    graph.deaf.add('sim/reset')
    (end,) = graph.finish()
    assert end.reason == 'sim/reset: no answer within 3 s'


@pytest.mark.parametrize('node', ['sim', 'guard', 'perception', 'execution'])
def test_dead_node_aborts_and_the_next_episode_waits_for_its_return(node):
    graph = Graph(episodes=2, solve_after_s=2.9)
    graph.until(lambda: graph.run.elapsed_s > 0.1)
    graph.dead.add(node)
    graph.until(lambda: len(graph.run.finished) == 1, limit_s=3.0)
    end = graph.run.finished[0]
    assert end.outcome is EpisodeOutcome.ABORTED
    assert end.reason.startswith(f'{node} is dead')
    for _ in range(100):
        graph.step()
    assert graph.run.phase == 'waiting'
    graph.dead.clear()
    graph.sessions[node] = 8
    if node == 'guard':
        graph.state = ArmState.DISARMED
    assert graph.finish()[1].outcome is EpisodeOutcome.SUCCESS
    assert graph.log.count('guard/arm') == 2


def test_guard_that_stops_for_a_dead_simulator_is_not_blamed():
    graph = Graph(solve_after_s=2.9)
    graph.until(lambda: graph.run.elapsed_s > 0.1)
    graph.dead.add('sim')
    graph.until(lambda: graph.run.elapsed_s > 0.8)
    graph.state = ArmState.STOPPED
    (end,) = graph.finish()
    assert end.reason.startswith('sim is dead')
    assert 'the guard is STOPPED' in end.reason


def test_perception_that_falls_silent_with_the_simulator_is_not_blamed():
    graph = Graph(solve_after_s=2.9)
    graph.until(lambda: graph.run.elapsed_s > 0.1)
    graph.dead.add('perception')
    graph.step()
    graph.step()
    graph.dead.add('sim')
    (end,) = graph.finish()
    assert end.reason.startswith('sim is dead')


@pytest.mark.parametrize('node', ['sim', 'guard', 'perception', 'policy', 'execution'])
def test_node_that_came_back_within_an_episode_aborts_it(node):
    graph = Graph()
    graph.until(lambda: graph.run.elapsed_s > 0.1)
    graph.sessions[node] = 8
    (end,) = graph.finish()
    assert (end.outcome, end.reason) == (EpisodeOutcome.ABORTED, f'{node} was started again')


def test_own_sleep_is_not_taken_for_the_death_of_others():
    graph = Graph()
    graph.until(lambda: graph.run.elapsed_s > 0.1)
    graph.now_ns += nanoseconds(1.5)
    for effect in graph.run.tick(graph.now_ns, graph.now_ns):  # before anything was heard
        graph.do(effect)
    assert graph.finish()[0].outcome is EpisodeOutcome.SUCCESS


def test_policy_that_does_not_answer_is_taken_for_dead_until_it_announces_itself():
    graph = Graph(episodes=2, solve_after_s=9.0, timeout_s=10.0)
    graph.until(lambda: graph.run.elapsed_s > 0.1)
    graph.dead.add('policy')
    for second in range(5):
        graph.world.count_stats(stats('a', starved_ticks=100 * second, chunks_accepted=2))
    graph.step()
    assert graph.run.finished[0].outcome is EpisodeOutcome.ABORTED
    assert 'policy does not answer' in graph.run.finished[0].reason
    for _ in range(100):
        graph.step()
    assert graph.run.phase == 'waiting'
    graph.dead.clear()
    graph.sessions['policy'], graph.solve_after_s = 8, 1.0
    assert graph.finish()[1].outcome is EpisodeOutcome.SUCCESS


def test_policy_that_was_only_slow_is_tried_again():
    graph = Graph(episodes=2)
    graph.dead.add('policy')
    graph.world.doubt_policy(graph.now_ns)
    graph.world.heard |= {'policy': Heard(0, 7)}
    assert graph.finish()[0].outcome is EpisodeOutcome.SUCCESS


def test_chunks_that_come_late_are_no_death_of_the_policy():
    world = World()
    for second in range(9):
        world.count_stats(stats('a', starved_ticks=50 * second, chunks_accepted=second // 2))
    assert world.unanswered < 3


def test_short_hold_is_waited_for_and_long_hold_aborts():
    graph = Graph()
    graph.until(lambda: graph.run.elapsed_s > 0.1)
    graph.state = ArmState.HOLD
    graph.until(lambda: graph.run.elapsed_s > 0.5)
    graph.state = ArmState.ARMED
    assert graph.finish()[0].outcome is EpisodeOutcome.SUCCESS

    graph = Graph(solve_after_s=2.9)
    graph.until(lambda: graph.run.elapsed_s > 0.1)
    graph.state = ArmState.HOLD
    assert graph.finish()[0].reason == 'the guard holds: too fast'


def test_stopped_guard_aborts_at_once():
    graph = Graph()
    graph.until(lambda: graph.run.elapsed_s > 0.1)
    graph.state = ArmState.STOPPED
    graph.step()
    graph.step()
    assert graph.run.finished[0].reason == 'the guard is STOPPED: too fast'


@pytest.mark.parametrize('phase', ['waiting', 'running', 'moving'])
def test_cancel(phase):
    graph = Graph(episodes=5, away=0.3)
    if phase == 'waiting':
        graph.dead.add('sim')
    graph.until(lambda: graph.run.phase == phase)
    graph.run.cancel()
    graph.until(lambda: graph.run.done, limit_s=2.0)
    assert [end.reason for end in graph.run.finished] == ['cancelled']
    assert graph.run.failure == 'cancelled'
    assert graph.state is ArmState.DISARMED


def test_policy_that_is_not_ready_is_named():
    graph = Graph(config={'ready_timeout_s': 1.0, 'max_failed_starts': 1})
    graph.dead.add('policy')
    graph.world.policy_state = 'error: no such checkpoint'
    (end,) = graph.finish()
    assert 'error: no such checkpoint' in end.reason
    assert graph.log == ['ABORTED']


def stats(episode: str, **values) -> ExecutionStats:
    """Make statistics of an episode."""
    return ExecutionStats(0, 1, 'upcycling', 0, episode_id=episode, **values)


def test_summary_adds_up(tmp_path):
    graph = Graph(episodes=2)
    tally = Tally(finished=list(graph.finish()))
    for episode in ('run-001', 'run-002'):
        tally.add_stats(
            stats(episode, ticks=10, policy_calls=1, executed_rows=1, base_horizon=4.0)
        )
        tally.add_stats(
            stats(
                episode,
                ticks=200,
                starved_ticks=1,
                late_ticks=2,
                policy_calls=5,
                executed_rows=30,
                discarded_rows=3,
                base_horizon=4.0,
            )
        )
    tally.add_stats(stats('', ticks=1000))
    for commands, latency in ((1, 0.001), (1, 0.9), (2, 0.003), (3, float('nan'))):
        tally.add_latency(commands, latency)
    tally.add_counters(1, (100, 5, 0, 0, 0, 0, 0, 0))
    tally.add_counters(1, (150, 6, 0, 0, 0, 0, 0, 0))
    tally.add_counters(2, (1, 0, 0, 0, 0, 0, 0, 0))
    tally.add_counters(2, (11, 0, 0, 0, 0, 1, 0, 0))
    summary = tally.summary(policy='mlp')
    assert summary['episodes'] == 2
    assert summary['success'] == 1.0
    assert summary['policy_calls_per_episode'] == 5.0
    assert summary['calls_saved_ratio'] == pytest.approx(60 / (4 * 10))
    assert (summary['executed_rows'], summary['discarded_rows']) == (60, 6)
    assert summary['starved_pct'] == 0.5
    assert summary['deadline_miss_pct'] == 1.0
    assert summary['command_latency_ms']['p50'] == pytest.approx(2.0)
    assert summary['guard'] | {'pass': 60, 'clamp': 1, 'hold': 1} == summary['guard']
    assert summary['seeds'] == [5, 6]
    file = tmp_path / 'deep/summary.json'
    write_json(file, summary)
    assert json.loads(file.read_text()) == summary
    assert [entry.name for entry in file.parent.iterdir()] == ['summary.json']


def test_an_episode_tells_why_its_horizons_were_cut() -> None:
    graph = Graph()
    tally = Tally(finished=list(graph.finish()))
    episode = tally.finished[0].episode_id
    tally.add_stats(stats(episode, policy_calls=3, cuts=1, delay_p50_s=0.0512))
    for reason, cut in (('fluctuation', False), ('surprise: object moved 3.1 cm', True)):
        tally.add_decision(episode, HorizonDecision(Id(1, 1), 'upcycling', 4, 6, reason, cut=cut))
    line = tally.summary()['per_episode'][0]
    assert line['interrupts'] == ['surprise: object moved 3.1 cm']
    assert (line['cuts'], line['delay_p50_s'], line['first_action_s']) == (1, 0.051, None)


def test_summary_of_nothing_has_no_invented_numbers(tmp_path):
    summary = Tally().summary()
    assert summary['success'] is None
    assert summary['command_latency_ms']['p50'] is None
    write_json(tmp_path / 'summary.json', summary)
