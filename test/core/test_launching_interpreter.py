"""Launch files: what each tag means, and where errors point to."""

import os
from pathlib import Path
import textwrap

from chunkpilot_core.errors import UnknownNameError
from chunkpilot_core.launching import interpreter
from chunkpilot_core.launching.document import LaunchError
import pytest
import yaml


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """Make a ROS package `robot` with the executables `arm` and `eye`."""
    root = tmp_path / 'prefix'
    (root / 'share/ament_index/resource_index/packages').mkdir(parents=True)
    (root / 'share/ament_index/resource_index/packages/robot').touch()
    (root / 'lib/robot').mkdir(parents=True)
    for name in ('arm', 'eye'):
        program = root / 'lib/robot' / name
        program.touch()
        program.chmod(0o755)
    monkeypatch.setenv('AMENT_PREFIX_PATH', str(root))
    return root


def write(folder: Path, text: str, name: str = 'test.launch.yaml') -> Path:
    """Write a launch file."""
    file = folder / name
    file.write_text(textwrap.dedent(text))
    return file


def run(folder: Path, text: str, **arguments: str) -> list[interpreter.Process]:
    """Interpret a launch file given as text."""
    return interpreter.interpret(write(folder, text), arguments)


def inline(process: interpreter.Process) -> dict:
    """Return the inline parameters of a process."""
    (text,) = (entry for entry in process.parameters if isinstance(entry, str))
    ((key, value),) = yaml.safe_load(text).items()
    return {key: value['ros__parameters']}


def test_node_becomes_a_command_with_ros_arguments(tmp_path, prefix):
    (process,) = run(
        tmp_path,
        """
        launch:
        - node:
            pkg: robot
            exec: arm
            name: left
            namespace: lab
            args: --speed 'very slow'
            remap:
            - {from: command, to: left/command}
        """,
    )
    assert process.name == 'left'
    assert process.command == (
        str(prefix / 'lib/robot/arm'),
        '--speed',
        'very slow',
        '--ros-args',
        '-r',
        '__node:=left',
        '-r',
        '__ns:=/lab',
        '-r',
        'command:=left/command',
    )


def test_parameters_keep_order_and_yaml_types(tmp_path, prefix):
    (tmp_path / 'base.yaml').write_text('{}')
    (process,) = run(
        tmp_path,
        """
        launch:
        - arg: {name: rate, default: '5'}
        - node:
            pkg: robot
            exec: arm
            name: arm
            param:
            - {name: first, value: true}
            - {from: $(dirname)/base.yaml}
            - {name: rate, value: $(var rate)}
            - {name: label, value: $(var rate), type: str}
            - {name: gain, value: $(var rate), type: float}
            - {name: flag, value: '1', type: bool}
            - {name: empty, value: ''}
            - {name: scale, value: 1.0}
            - {name: names, value: [a, b]}
            - name: limits
              param:
              - {name: low, value: -1}
        """,
    )
    first, file, last = process.parameters
    assert yaml.safe_load(first) == {'/arm': {'ros__parameters': {'first': True}}}
    assert file == tmp_path / 'base.yaml'
    values = yaml.safe_load(last)['/arm']['ros__parameters']
    assert values == {
        'rate': 5,
        'label': '5',
        'gain': 5.0,
        'flag': True,
        'empty': '',
        'scale': 1.0,
        'names': ['a', 'b'],
        'limits.low': -1,
    }
    assert isinstance(values['gain'], float)
    assert isinstance(values['scale'], float)


def test_node_without_a_name_takes_parameters_for_every_node(tmp_path, prefix):
    (process,) = run(
        tmp_path,
        'launch: [{node: {pkg: robot, exec: arm, param: [{name: a, value: 1}]}}]',
    )
    assert process.name == 'arm'
    assert inline(process) == {'/**': {'a': 1}}


def test_life_of_a_process(tmp_path, prefix):
    processes = run(
        tmp_path,
        """
        launch:
        - node: {pkg: robot, exec: arm, respawn: 'true', respawn_delay: 2.0}
        - node: {pkg: robot, exec: eye, on_exit: shutdown}
        - node: {pkg: robot, exec: eye}
        """,
    )
    assert [process.name for process in processes] == ['arm', 'eye', 'eye-2']
    assert [process.respawn for process in processes] == [True, False, False]
    assert processes[0].respawn_delay_s == 2.0
    assert [process.required for process in processes] == [False, True, False]


def test_conditions(tmp_path, prefix):
    text = """
    launch:
    - arg: {name: view, default: 'false'}
    - node: {pkg: robot, exec: eye, if: $(var view)}
    - node: {pkg: robot, exec: arm, unless: $(var view)}
    - group:
        if: $(not-equals $(var view) false)
        children:
        - node: {pkg: robot, exec: arm, name: extra}
    """
    assert [process.name for process in run(tmp_path, text)] == ['arm']
    assert [process.name for process in run(tmp_path, text, view='True')] == ['eye', 'extra']
    with pytest.raises(LaunchError, match=r"test.launch.yaml:4: node: if: condition 'maybe'"):
        run(tmp_path, text, view='maybe')


def test_group_scopes_variables_environment_and_namespace(tmp_path, prefix):
    inner, outer = run(
        tmp_path,
        """
        launch:
        - let: {name: who, value: outer}
        - group:
          - push_ros_namespace: {namespace: cell}
          - push_ros_namespace: {namespace: one}
          - let: {name: who, value: inner}
          - set_env: {name: COLOUR, value: red}
          - node: {pkg: robot, exec: arm, name: $(var who), env: [{name: SIZE, value: '3'}]}
        - node: {pkg: robot, exec: arm, name: $(var who)}
        """,
    )
    assert inner.name == 'inner'
    assert outer.name == 'outer'
    assert '__ns:=/cell/one' in inner.command
    assert '__ns:=/cell/one' not in outer.command
    assert inner.environment == {'COLOUR': 'red', 'SIZE': '3'}
    assert outer.environment == {}


def test_include_passes_arguments(tmp_path, prefix):
    write(
        tmp_path,
        """
        launch:
        - arg: {name: robot_name}
        - arg: {name: speed, default: slow, description: how fast}
        - node: {pkg: robot, exec: arm, name: $(var robot_name)_$(var speed)}
        """,
        'inner.launch.yaml',
    )
    text = """
    launch:
    - include:
        file: $(dirname)/inner.launch.yaml
        arg:
        - {name: robot_name, value: left}
    """
    assert [process.name for process in run(tmp_path, text)] == ['left_slow']
    assert [process.name for process in run(tmp_path, text, speed='fast')] == ['left_fast']
    assert list(interpreter.declared(write(tmp_path, text))) == ['speed']


def test_executable_keeps_substituted_paths_whole(tmp_path, monkeypatch):
    monkeypatch.setenv('PLACE', '/a folder')
    (process,) = run(
        tmp_path,
        """
        launch:
        - executable:
            cmd: ls -l "$(env PLACE)/x" $(env PLACE) $(env NOT_THERE 'plan b')
            name: list
            cwd: /tmp
        """,
    )
    assert process.command == ('ls', '-l', '/a folder/x', '/a folder', 'plan b')
    assert process.folder == '/tmp'


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('launch: [{nod: {}}]', r":1: nod: unknown tag 'nod'. Did you mean 'node'\?"),
        ('launch:\n- node: {pkgs: robot, exec: arm}', r':2: .*Did you mean .pkg.'),
        ('launch:\n- node: {pkg: robot}', r":2: node: attribute 'exec' is missing"),
        ('launch:\n\n- node: {pkg: robt, exec: arm}', r":3: .*package 'robt'.*mean 'robot'"),
        ('launch:\n- node: {pkg: robot, exec: army}', r":2: .*'army'.*mean 'arm'"),
        ('launch:\n- node: {pkg: robot, exec: arm, exec: eye}', r"'exec' is given twice"),
        ('launch:\n- node: {pkg: robot, exec: $(vra x)}', r':2: .*\$\(vra\).*mean .\$\(var\).'),
        ('launch:\n- node: {pkg: robot, exec: $(var x)}', r":2: .*unknown launch variable 'x'"),
        ('launch:\n- node: {pkg: robot, exec: "$(var x"}', r':2: .*"\)" is missing'),
        ('launch:\n- node: {pkg: robot, exec: $(env NOT_THERE)}', r":2: .*'NOT_THERE' is not set"),
        ('launch:\n- node: {pkg: robot, exec: arm, on_exit: go}', r':2: .*allowed is .shutdown'),
        ('launch:\n- node: {pkg: robot, exec: arm, respawn: "yes"}', r":2: .*'yes' is neither"),
        # What ROS 2 itself refuses: text where it wants text, a float where it wants a float.
        ('launch:\n- node: {pkg: robot, exec: arm, respawn: true}', r':2: .*must be text'),
        ('launch:\n- node: {pkg: robot, exec: arm, respawn_delay: 2}', r':2: .*must be float'),
        ('launch:\n- let: {name: n, value: 5}', r':2: let: .*must be text, in quotes: 5'),
        ('launch:\n- arg: {name: n, default: 5}', r':2: arg: .*must be str'),
        ('launch:\n- arg: {name: n}', r":2: arg: argument 'n' has to be given"),
        ('launch:\n- include: {file: other.launch.py}', r':2: .*only YAML'),
        ('launch:\n- node: {pkg: robot, exec: arm, param: [{from: no.yaml}]}', r'does not exist'),
        ('launch:\n- timer: {period: 3}', r":2: timer: unknown tag 'timer'"),
        ('launch: {a: [}', r':1: no YAML'),
        ('nodes: []', r':1: a launch file is'),
        ('launch:\n- node', r':2: an action is one tag'),
    ],
)
def test_errors_name_file_line_and_what_is_allowed(tmp_path, prefix, text, message):
    with pytest.raises(
        LaunchError, match=r'test.launch.yaml' + message if message[0] == ':' else message
    ):
        run(tmp_path, text)


def test_arguments_are_checked(tmp_path):
    text = """
    launch:
    - arg:
        name: strategy
        default: upcycling
        description: how chunks are executed
        choice:
        - {value: upcycling}
        - {value: fixed}
    """
    with pytest.raises(UnknownNameError, match=r"'stratgy'. Did you mean 'strategy'"):
        run(tmp_path, text, stratgy='fixed')
    with pytest.raises(LaunchError, match=r":3: .*'fixd'. Did you mean 'fixed'"):
        run(tmp_path, text, strategy='fixd')
    argument = interpreter.declared(write(tmp_path, text))['strategy']
    assert argument.default == 'upcycling'
    assert argument.choices == ('upcycling', 'fixed')


def test_launch_files_are_found_by_bare_name():
    assert interpreter.find('demo').name == 'demo.launch.yaml'
    with pytest.raises(UnknownNameError, match=r'demo.launch.yaml'):
        interpreter.find('dmo.launch.yaml')


def test_no_environment_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv('AMENT_PREFIX_PATH')
    assert 'AMENT_PREFIX_PATH' not in os.environ
    with pytest.raises(LaunchError, match=r'source env.sh'):
        run(tmp_path, 'launch: [{node: {pkg: robot, exec: arm}}]')
