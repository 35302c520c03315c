"""The contract that every plug-in of every family keeps, found by the registry."""

from dataclasses import fields, is_dataclass
from importlib import import_module
import inspect

from chunkpilot_core import registry
from chunkpilot_core.config import build, options, reference
from chunkpilot_core.errors import ConfigError
import pytest

PLUGINS = [(family, name) for family in registry.FAMILIES for name in registry.names(family)]


@pytest.mark.parametrize('family', registry.FAMILIES)
def test_every_family_has_a_base_and_a_member(family: str) -> None:
    base = registry.base_class(family)
    assert inspect.isabstract(base)
    assert inspect.getdoc(base)
    assert any(found == family for found, _ in PLUGINS)


@pytest.mark.parametrize(('family', 'name'), PLUGINS)
def test_one_documented_class_under_its_name(family: str, name: str) -> None:
    plugin = registry.get(family, name)
    module = import_module(plugin.__module__)
    assert module.__doc__, f'{module.__name__} has no docstring'
    assert plugin.__doc__, f'{plugin.__name__} has no docstring'
    assert issubclass(plugin, registry.base_class(family))
    assert not inspect.isabstract(plugin)


@pytest.mark.parametrize(('family', 'name'), PLUGINS)
def test_configuration_is_complete_and_defaults_are_allowed(family: str, name: str) -> None:
    config = registry.get(family, name).Config
    assert is_dataclass(config)
    assert config.__dataclass_params__.frozen
    assert config.__doc__
    defaults = {}
    for info in options(config):
        assert info.doc, f'{family}/{name}: option {info.name} has no doc'
        defaults[info.name] = list(info.default) if info.sequence else info.default
    assert build(config, defaults) == config()
    assert reference(config).count('\n') == 1 + len(fields(config))


@pytest.mark.parametrize(('family', 'name'), PLUGINS)
def test_values_out_of_range_are_refused(family: str, name: str) -> None:
    config = registry.get(family, name).Config
    for info in options(config):
        if info.min is not None:
            value = info.element(info.min - 1)
            with pytest.raises(ConfigError, match=info.name):
                build(config, {info.name: [value] if info.sequence else value})


@pytest.mark.parametrize('family', registry.FAMILIES)
def test_only_plugins_lie_beside_the_base(family: str) -> None:
    """Support code belongs in a sub-package, otherwise it would be listed as a plug-in."""
    for name in registry.names(family):
        registry.get(family, name)
