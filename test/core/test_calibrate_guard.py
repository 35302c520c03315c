"""``chunkpilot calibrate guard``: what its thresholds promise, the file, and the whole way."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from chunkpilot_core import cli, spaces
from chunkpilot_core import robot as robots
from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.eval import guard_calibration, odd_policies
from chunkpilot_core.robot import config_dir
from chunkpilot_core.safety.runtime import calibration as calibrations
from chunkpilot_core.safety.runtime import conformal
from chunkpilot_core.safety.runtime.guard import Guard
from chunkpilot_core.safety.runtime.moments import Moment, Record
from chunkpilot_core.types import ActionChunk, Id, nanoseconds, PolicySpec
import numpy as np
import pytest
import yaml

ROBOT = robots.load('panda')
SPACE = spaces.ee_delta_space()
CHECKPOINT = config_dir() / 'policies' / 'mlp_pick_and_place'
SPEC = PolicySpec('mlp', 'mine', 3, SPACE, 16, 0.04, manifest_sha256='abc')


# ---- thresholds --------------------------------------------------------------------------------


@pytest.mark.parametrize('alpha', [0.02, 0.1])
def test_new_episodes_exceed_a_constant_threshold_as_rarely_as_promised(alpha: float) -> None:
    random = np.random.default_rng(1)
    above, promised = [], []
    for _ in range(300):
        peaks = random.gamma(2.0, 1.0, 60).tolist()
        threshold, expected = conformal.constant(peaks, alpha)
        above.append(float((random.gamma(2.0, 1.0, 500) > threshold).mean()))
        promised.append(expected)
    assert np.mean(above) <= np.mean(promised) + 3.0 * np.std(above) / np.sqrt(300)
    assert np.mean(above) > 0.2 * alpha, 'and it is no threshold that nothing reaches'


def test_the_rank_is_that_of_the_paper() -> None:
    assert conformal.rank(99, 0.1) == 90
    assert conformal.constant([float(i) for i in range(1, 100)], 0.1) == (90.0, 0.1)
    threshold, expected = conformal.constant([float(i) for i in range(1, 21)], 0.01)
    assert threshold == 20.0, 'too few for alpha: the largest, and what that promises is said'
    assert expected == pytest.approx(1.0 / 21.0)


def course(random: Any) -> Any:
    """Return times in bins and scores of an episode whose scores grow with time."""
    times = np.arange(0.0, 6.0, 0.5)
    return np.stack((times, times + random.normal(0.0, 0.2 + 0.1 * times)), axis=1)


def test_the_band_follows_the_course_and_keeps_its_promise() -> None:
    random = np.random.default_rng(2)
    above = []
    for _ in range(100):
        normal, fresh = [course(random) for _ in range(40)], [course(random) for _ in range(40)]
        band, expected = conformal.band(normal, fresh, 6, 0.1)
        assert np.all(np.diff(band) > 0.0)
        new = [course(random) for _ in range(100)]
        above.append(np.mean([np.any(e[:, 1] > band[e[:, 0].astype(int)]) for e in new]))
    assert expected == pytest.approx(0.1)
    assert np.mean(above) <= 0.1 + 3.0 * np.std(above) / 10.0


def test_too_few_episodes_are_refused() -> None:
    with pytest.raises(ConfigError, match='9 episodes held out, at least 10'):
        conformal.constant([1.0] * 9, 0.1)
    with pytest.raises(ConfigError, match='19 successful episodes, at least 20'):
        guard_calibration.make([normal(i) for i in range(19)], SPEC, ROBOT, 'reach', 0.1, 'test')


# ---- from episodes to a file -------------------------------------------------------------------


def normal(seed: int, change: Any = None, since: int = 99) -> Record:
    """Return an episode that goes along x as the state says; a fault begins at a chunk."""
    random = np.random.default_rng(seed)
    moments: list[Moment] = []
    for i in range(10):
        x = 0.1 + 0.02 * i + random.normal(0.0, 0.01)
        rows = np.tile([x, 0.02, -0.02, 1.0 if i < 5 else -1.0], (16, 1)).astype(np.float32)
        rows[:, :3] += random.normal(0.0, 0.01, (16, 3)).astype(np.float32)
        if change is not None and i >= since:
            rows = change(SPEC, rows)
        stamp_ns = nanoseconds(10.0 + 0.32 * i)
        chunk = ActionChunk(
            Id(1, i + 1), Id(2, i + 1), 1, '', Id(3, i + 1), stamp_ns, stamp_ns, 0.04, rows,
            SPACE.hash, 'mlp', 3, stamp_ns,
        )  # fmt: skip
        before = moments[-1].chunk if moments else None
        state = np.array([x, 1.0], np.float32)
        moments.append(Moment(chunk, before, SPACE, state, 0.32 * i + 0.05))
    return Record(tuple(moments), 3.2)


@pytest.fixture(scope='module')
def found() -> calibrations.GuardCalibration:
    records = [normal(seed) for seed in range(60)]
    return guard_calibration.make(records, SPEC, ROBOT, 'reach', 0.05, 'a test')


def test_detectors_without_anything_to_look_at_have_no_part(found: Any) -> None:
    assert {'odd_chunk', 'odd_observation', 'consistency', 'freeze'} <= set(found.detectors)
    assert not {'stac', 'disagreement', 'perturbation'} & set(found.detectors)


def test_normal_episodes_alarm_rarely_and_faults_always(found: Any) -> None:
    fresh = [normal(seed) for seed in range(1000, 1100)]
    for name, trial in guard_calibration.trial(found, fresh).items():
        assert trial.alarmed <= 15, f'{name}: three times what is promised, of 100'
    for fault, name in (('shuffled dims', 'odd_chunk'), ('oscillation', 'oscillation')):
        odd = [normal(seed, odd_policies.CHANGES[fault], 4) for seed in range(2000, 2020)]
        trial = guard_calibration.trial(found, odd, 4)[name]
        assert trial.alarmed == trial.episodes, fault
        assert min(trial.first_s) >= 4 * 0.32


def test_the_file_is_what_was_measured(found: Any, tmp_path: Path) -> None:
    calibrations.save(found, tmp_path / 'guard.yaml')
    again = calibrations.load(tmp_path / 'guard.yaml')
    assert repr(again) == repr(found)  # NaN is not equal to itself
    assert (again.policy, again.task, again.episodes) == ('mine', 'reach', 60)
    assert len(again.data_sha256) == 64
    Guard(ROBOT, Guard.Config(calibration=str(tmp_path / 'guard.yaml')))


def test_the_same_episodes_give_the_same_file_and_others_another_hash(found: Any) -> None:
    same = [normal(seed) for seed in range(60)]
    assert guard_calibration.make(same, SPEC, ROBOT, 'reach', 0.05, 'a test') == found
    other = [normal(seed) for seed in range(1, 61)]
    made = guard_calibration.make(other, SPEC, ROBOT, 'reach', 0.05, 'a test')
    assert made.data_sha256 != found.data_sha256


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        (lambda data: data.update(format='other'), "not of format 'chunkpilot-guard-1'"),
        (lambda data: data['detectors']['freeze'].pop('threshold'), 'threshold'),
        (lambda data: data['detectors']['odd_chunk'].update(threshold=[float('nan')]), 'no num'),
        (lambda data: data['detectors']['odd_chunk'].update(threshold=[1.0, 2.0]), 'in bins of'),
        (lambda data: data['detectors']['freeze']['statistics'].update(way='x'), 'not finite'),
        (lambda data: data.update(extra=1), 'extra'),
        (lambda data: data.pop('policy'), 'policy'),
    ],
)
def test_an_edited_file_is_refused_by_name(
    found: Any, tmp_path: Path, change: Any, words: str
) -> None:
    file = tmp_path / 'guard.yaml'
    calibrations.save(found, file)
    data = yaml.safe_load(file.read_text())
    change(data)
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigError, match=words) as caught:
        calibrations.load(file)
    assert 'guard.yaml' in str(caught.value)


def test_a_file_that_is_none_and_a_name_that_is_unknown(tmp_path: Path) -> None:
    (tmp_path / 'x.yaml').write_text('{broken')
    with pytest.raises(ConfigError, match=r'x\.yaml'):
        calibrations.load(tmp_path / 'x.yaml')
    with pytest.raises(ConfigError, match=r'none\.yaml'):
        calibrations.load(tmp_path / 'none.yaml')
    with pytest.raises(UnknownNameError, match='guard calibration'):
        calibrations.load('none_such')


def test_another_version_of_the_policy_is_allowed_and_another_policy_is_not(found: Any) -> None:
    assert found.misfit(SPACE, 0.04, 'mine') == ''
    assert "policy 'mine', in force is 'yours'" in found.misfit(SPACE, 0.04, 'yours')
    assert 'row period' in found.misfit(SPACE, 0.05, 'mine')
    other = spaces.ee_delta_space(step_m=0.04)
    assert 'action space' in found.misfit(other, 0.04, 'mine')
    with pytest.raises(ConfigError, match='limits of the robot'):
        replace(found, limits_hash='x').check_robot(ROBOT)


# ---- the verb ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--episodes', '19'], '--episodes 19: allowed 20 to'),
        (['--alpha', '0.9'], '--alpha 0.9: allowed 1e-06 to 0.5'),
        (['--out', '/dev/null/c.yaml'], 'can not be written'),
        (['--bags', '/dev/null'], 'no finished bags'),
        (['--robot', 'my_robot.yaml'], 'simulated is panda'),
        (['--bags', '/dev/null', '--robot', 'nobody'], 'nobody'),
        (['--samples', '0'], '--samples 0: allowed 1 to'),
        (['--samples', '8'], 'mlp_pick_and_place gives none'),
        (['--other', 'mlp_poosh', '--check', '1'], 'mlp_poosh'),
    ],
)
def test_it_refuses_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    pytest.importorskip('torch')
    out = tmp_path / 'c.yaml'
    command = ['calibrate', 'guard', '--policy', str(CHECKPOINT), '--out', str(out)]
    assert cli.main([*command, *words]) == 1
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_way_with_a_real_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip('pybullet')
    pytest.importorskip('torch')
    out = tmp_path / 'c.yaml'
    words = ['--policy', str(CHECKPOINT), '--episodes', '22', '--check', '1', '--out', str(out)]
    assert cli.main(['calibrate', 'guard', *words]) == 0
    text = capsys.readouterr().out
    assert 'successful episodes of 22' in text
    assert '| frozen policy, per episode |' in text
    made = calibrations.load(out)
    assert made.policy == 'mlp_pick_and_place'
    assert made.task == 'pick_and_place'
    Guard(ROBOT, Guard.Config(calibration=str(out)))
