"""Quality of recorded data: each fault is found in the episode that has it, and only there."""

import json
from pathlib import Path
from typing import Any

from chunkpilot_core import cli
from chunkpilot_core.bags import cache, quality
from chunkpilot_core.bags.cache import Cache
from chunkpilot_core.bags.quality import QualityOptions
from chunkpilot_core.errors import BagError, UnknownNameError
from chunkpilot_core.types import RowSource
import numpy as np
import pytest

pytestmark = pytest.mark.ros


@pytest.fixture(scope='module')
def faulty(tmp_path_factory: pytest.TempPathFactory, made: Any) -> Path:
    """Twelve good episodes and one of each kind."""
    folder = tmp_path_factory.mktemp('bags')

    def reaching(seed: int) -> Any:
        return made.reaching(seed, spread=0.05)

    for i in range(12):
        made.write(folder / f'good{i}', reaching(i))
    idle = reaching(60)
    idle.rows[20:50] = [0.0, 0.0, 0.0, 1.0]
    frozen = reaching(61)
    frozen.state[10:30] = frozen.state[10]
    stuck = reaching(62)
    stuck.state[:, 1] = 0.1
    duplicated = reaching(63)
    duplicated.rows[:, :2] *= 0.4
    duplicated.rows[1::2] = duplicated.rows[0::2]
    unknown = reaching(64)
    unknown.features[:20] = np.nan
    gaps = reaching(65)
    gaps.seen_ns[20:30] = [gaps.seen_ns[19] + i for i in range(1, 11)]
    saturated = reaching(66)
    saturated.rows[:40, 0] = 1.0
    bad = {
        'idle': idle, 'frozen': frozen, 'stuck': stuck, 'duplicated': duplicated,
        'unknown': unknown, 'gaps': gaps, 'saturated': saturated,
    }  # fmt: skip
    for name, recording in bad.items():
        made.write(folder / name, recording)
    return folder


@pytest.fixture(scope='module')
def built(faulty: Path, tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return cache.build(sorted(faulty.iterdir()), tmp_path_factory.mktemp('cache'))


def found(report: quality.Report) -> dict[str, list[quality.Finding]]:
    by_bag: dict[str, list[quality.Finding]] = {}
    for finding in report.findings:
        by_bag.setdefault(Path(finding.bag).name, []).append(finding)
    return by_bag


def test_each_fault_is_found_where_it_is(built: Cache) -> None:
    by_bag = found(quality.report(built, QualityOptions(disagrees=100.0)))
    assert not [name for name in by_bag if name.startswith('good')]
    kinds = {name: {finding.kind for finding in entries} for name, entries in by_bag.items()}
    for name in ('idle', 'frozen', 'duplicated', 'unknown', 'gaps', 'saturated'):
        assert name in kinds[name], name
    assert kinds['stuck'] == {'frozen'}
    assert by_bag['stuck'][0].text == 'ee.y never changed; elsewhere it does'
    assert by_bag['idle'][0].frames == ((20, 50),)
    assert by_bag['idle'][0].value == pytest.approx(1.2)
    assert by_bag['frozen'][0].frames == ((11, 30),)
    told = by_bag['unknown'][0].text
    assert told.startswith('33% of frames: object.x, object.y unknown: their messages begin late')
    assert 'end early' in told
    assert 'max_age_s' in told  # what to change


def test_an_episode_that_contradicts_the_others_is_found(tmp_path: Path, made: Any) -> None:
    paths = []
    for i in range(16):
        recording = made.reaching(i, 20, spread=0.02)
        if i == 7:
            recording.rows[:, :2] *= -1.0  # recorded in a frame that is turned around
        paths.append(made.write(tmp_path / f'b{i:02d}', recording))
    built = cache.build(paths, tmp_path / 'cache')
    report = quality.report(built)
    told = {finding.episode for finding in report.findings if finding.kind == 'disagrees'}
    assert told == {7}
    assert report.left_out(built).sum() == 20


def test_limits_are_options(built: Cache) -> None:
    lenient = QualityOptions(
        idle_s=2.0, frozen_s=3.0, duplicated=0.9, saturated=1.0, unknown=0.5, gaps=0.5,
        disagrees=10.0,
    )  # fmt: skip
    nothing = quality.report(built, lenient)
    assert nothing.findings == ()
    with pytest.raises(UnknownNameError, match='idel'):
        nothing.left_out(built, ('idel',))


def test_what_is_left_out_is_chosen(built: Cache, tmp_path: Path) -> None:
    report = quality.report(built)
    mask = report.left_out(built, ('idle',))
    assert mask.sum() == 30
    by_name = {Path(episode.bag).name: episode for episode in built.episodes}
    start = by_name['idle'].start
    assert mask[start + 20 : start + 50].all()
    usual = report.left_out(built)
    assert usual[by_name['stuck'].rows].all()
    assert not usual[by_name['unknown'].rows][:20].any()
    with pytest.raises(UnknownNameError, match="Did you mean 'idle'"):
        report.left_out(built, ('idel',))
    file = tmp_path / 'report.json'
    file.write_text(json.dumps(report.to_json(built)))
    np.testing.assert_array_equal(quality.read_left_out(file, built), usual)
    for damage in ('{}', '[', json.dumps({**report.to_json(built), 'dt_s': 0.1})):
        file.write_text(damage)
        with pytest.raises(BagError, match=r'report\.json'):
            quality.read_left_out(file, built)


def test_the_command_writes_a_report_that_others_take(
    faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ['bag', 'check', str(faulty), '--data', '--json', '--cache', str(tmp_path / 'cache')]
    out = tmp_path / 'report.json'
    assert cli.main([*words, '--out', str(out), '--limit', 'idle_s=1.5']) == 1
    told = json.loads(capsys.readouterr().out)['bags']
    kinds = {Path(bag).name: {f['kind'] for f in found} for bag, found in told.items()}
    assert 'idle' not in kinds['idle']
    assert 'unknown' in kinds['unknown']
    built = Cache.open(tmp_path / 'cache')
    assert quality.read_left_out(out, built, ('unknown',)).sum() == 20
    assert cli.main([*words, '--limit', 'idel_s=1.5']) == 1
    assert "Did you mean '--limit idle_s'" in capsys.readouterr().err


def test_few_or_only_short_episodes_are_no_reason_to_fail(tmp_path: Path, made: Any) -> None:
    one = made.reaching(1, 3)
    one.sources = [RowSource.GUARD] * 3
    alone = cache.build([made.write(tmp_path / 'one', one)], tmp_path / 'cache')
    assert quality.report(alone).findings == ()
