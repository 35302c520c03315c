"""Plug-ins by name: listing imports nothing, errors name what is known, foreign ones come in."""

import subprocess
import sys

from chunkpilot_core import registry
from chunkpilot_core.errors import ConfigError, UnknownNameError
import pytest

FOREIGN = """
from chunkpilot_core.execution.fixed import {base} as Parent


class Mine(Parent):
    pass


class NoStrategy:
    pass
"""


def _foreign_package(folder, monkeypatch) -> None:
    fixed = registry.get('execution', 'fixed')
    (folder / 'my_robotics.py').write_text(FOREIGN.format(base=fixed.__name__))
    information = folder / 'my_robotics-1.0.dist-info'
    information.mkdir()
    (information / 'METADATA').write_text(
        'Metadata-Version: 2.1\nName: my-robotics\nVersion: 1.0\n'
    )
    (information / 'entry_points.txt').write_text(
        '[chunkpilot.execution]\nmine = my_robotics:Mine\nbroken = my_robotics:NoStrategy\n'
    )
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize('family', registry.FAMILIES)
def test_listing_names_imports_no_plugin(family: str) -> None:
    code = (
        'import sys\n'
        'from chunkpilot_core import registry\n'
        f'names = registry.names({family!r})\n'
        f'loaded = [n for n in names if f"chunkpilot_core.{family}.{{n}}" in sys.modules]\n'
        'assert names and not loaded, (names, loaded)\n'
        'assert "torch" not in sys.modules\n'
    )
    subprocess.run([sys.executable, '-c', code], check=True, timeout=60)


def test_unknown_plugin_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'upcycling'") as caught:
        registry.get('execution', 'upcyling')
    assert 'fixed' in str(caught.value)
    assert caught.value.nearest == 'upcycling'


@pytest.mark.parametrize('call', [registry.names, registry.base_class])
def test_unknown_family_names_the_families(call) -> None:
    with pytest.raises(UnknownNameError, match='execution'):
        call('executions')


def test_foreign_plugins_by_entry_point_and_by_path(tmp_path, monkeypatch) -> None:
    _foreign_package(tmp_path, monkeypatch)
    assert 'mine' in registry.names('execution')
    assert registry.get('execution', 'mine') is registry.get('execution', 'my_robotics:Mine')
    for name in ('broken', 'my_robotics:NoStrategy'):
        with pytest.raises(ConfigError, match=name):
            registry.get('execution', name)


@pytest.mark.parametrize('name', ['no_such_module:Thing', 'chunkpilot_core.robot:Absent'])
def test_a_path_that_leads_nowhere_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        registry.get('execution', name)


def test_a_class_attribute_is_read_without_importing_the_plugin() -> None:
    code = (
        'import sys\n'
        'from chunkpilot_core import registry\n'
        "found = registry.literal('policies', 'flow', 'capabilities')\n"
        "assert found == ('samples', 'guidance', 'future_state'), found\n"
        "assert registry.literal('policies', 'flow', 'no_such_thing', 7) == 7\n"
        "assert registry.literal('policies', 'my_package:Policy', 'capabilities', ()) == ()\n"
        'assert "torch" not in sys.modules\n'
    )
    subprocess.run([sys.executable, '-c', code], check=True, timeout=60)
