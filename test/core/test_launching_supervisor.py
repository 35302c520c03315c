"""Starting, bringing back and ending real processes."""

import os
from pathlib import Path
import signal
import subprocess
import sys
import time

from chunkpilot_core.launching.interpreter import Process
from chunkpilot_core.launching.isolation import clean_shared_memory, own_domain
from chunkpilot_core.launching.supervisor import Supervisor
import pytest

SAY_PID = 'import os, sys, time, signal, subprocess\nprint("pid", os.getpid(), flush=True)\n'


def program(code: str) -> tuple[str, ...]:
    """Return the command of a process that prints its pid and then runs some code."""
    return (sys.executable, '-c', SAY_PID + code)


def run(
    *processes: Process, grace_s: float = 0.3
) -> tuple[int, list[tuple[str, str]], Supervisor]:
    """Run processes until the end; returns exit code and what was printed."""
    lines: list[tuple[str, str]] = []
    supervisor = Supervisor(
        processes, lambda name, line: lines.append((name, line)), grace_s=grace_s
    )
    return supervisor.run(), lines, supervisor


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0] != 'Z'
    except OSError:
        return False


def wait_until(condition, timeout_s: float = 10.0) -> bool:
    """Wait for a condition."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_output_and_clean_end():
    code, lines, _ = run(Process('a', ('/bin/echo', 'hello')), Process('b', ('/bin/echo', 'you')))
    assert code == 0
    assert ('a', 'hello') in lines
    assert ('b', 'you') in lines


@pytest.mark.timeout(30)
def test_output_that_can_not_be_written_ends_everything_with_the_reason():
    """Seen on a full disk: the graph ran on for ever, its client unheard."""

    def full(name: str, line: str) -> None:
        raise OSError(28, 'No space left on device')

    sleeper = Process('a', program('time.sleep(60)'), respawn=True)
    supervisor = Supervisor([sleeper, Process('b', program('time.sleep(60)'))], full, grace_s=0.3)
    with pytest.raises(OSError, match='No space left'):
        supervisor.run()


def test_error_of_a_process_that_nobody_brings_back():
    code, lines, _ = run(Process('a', program('print("no such file"); sys.exit(3)')))
    assert code == 1
    assert ('', 'a died with exit code 3: no such file') in lines


@pytest.mark.parametrize(('exit_code', 'expected'), [(0, 0), (5, 1)])
def test_required_process_ends_everything(exit_code, expected):
    code, lines, supervisor = run(
        Process('other', program('time.sleep(60)')),
        Process('boss', program(f'time.sleep(0.2); sys.exit({exit_code})'), required=True),
    )
    assert code == expected
    assert supervisor.exit_codes['other'] == -signal.SIGINT or supervisor.exit_codes['other'] == 1
    assert ('', 'boss is required: stopping') in lines


def test_stubborn_processes_get_more_force_in_order():
    ignore = 'signal.signal(signal.SIGINT, signal.SIG_IGN)\n'
    both = ignore + 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\n'
    started = time.monotonic()
    _, lines, supervisor = run(
        Process('polite', program('time.sleep(60)')),
        Process('slow', program(ignore + 'time.sleep(60)')),
        Process('deaf', program(both + 'time.sleep(60)')),
        Process('boss', program('time.sleep(0.5)'), required=True),
    )
    assert supervisor.exit_codes['slow'] == -signal.SIGTERM
    assert supervisor.exit_codes['deaf'] == -signal.SIGKILL
    assert time.monotonic() - started < 5.0
    said = [line for name, line in lines if name == '']
    assert said.index('deaf did not end after SIGINT, sending SIGTERM') < said.index(
        'killing deaf'
    )
    assert not any('polite did not end' in line for line in said)


def test_respawn_with_delay(tmp_path):
    flag = tmp_path / 'flag'
    code, lines, supervisor = run(
        Process(
            'node',
            program(
                f'import pathlib\nfile = pathlib.Path({str(flag)!r})\n'
                'if file.exists(): time.sleep(60)\nfile.touch()\nos.kill(os.getpid(), 9)'
            ),
            respawn=True,
            respawn_delay_s=0.2,
        ),
        Process('boss', program('time.sleep(1.5)'), required=True),
    )
    assert code == 0
    assert supervisor.restarts['node'] == 1
    assert ('', 'node was killed by SIGKILL') in lines


def test_a_process_that_dies_at_once_is_not_brought_back_for_ever():
    code, lines, supervisor = run(
        Process('node', program('print("wrong parameter"); sys.exit(1)'), respawn=True),
        Process('other', program('time.sleep(60)')),
    )
    assert code == 1
    assert supervisor.restarts['node'] == 2
    assert lines.count(('node', 'wrong parameter')) == 3


def test_what_a_killed_process_leaves_behind_is_ended():
    worker = (
        f'child = subprocess.Popen([{sys.executable!r}, "-c", "import time; time.sleep(60)"])\n'
    )
    _, lines, _ = run(
        Process('node', program(worker + 'print(child.pid, flush=True); os.kill(os.getpid(), 9)'))
    )
    pid = int(next(line for name, line in lines if name == 'node' and line.isdigit()))
    assert wait_until(lambda: not alive(pid))


def test_a_program_that_does_not_exist_is_said_and_ends_the_rest():
    from chunkpilot_core.errors import ConfigError

    with pytest.raises(ConfigError, match='nowhere'):
        run(Process('a', ('/nowhere/at/all',)), Process('b', program('time.sleep(60)')))


LAUNCH = """
launch:
- executable: {{cmd: "/bin/sh -c 'echo pid $$; sleep 60'", name: one}}
- executable: {{cmd: "{python} {stubborn}", name: two}}
"""


@pytest.fixture
def up(tmp_path):
    """Run `chunkpilot up` with two processes, one of which ignores SIGINT and has a worker."""
    stubborn = tmp_path / 'stubborn.py'
    stubborn.write_text(
        'import os, signal, subprocess, sys, time\n'
        'signal.signal(signal.SIGINT, signal.SIG_IGN)\n'
        'worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])\n'
        'print("pid", os.getpid(), flush=True)\nprint("pid", worker.pid, flush=True)\n'
        'time.sleep(60)\n'
    )
    file = tmp_path / 'test.launch.yaml'
    file.write_text(LAUNCH.format(python=sys.executable, stubborn=stubborn))
    process = subprocess.Popen(
        [sys.executable, '-m', 'chunkpilot_core.cli', 'up', str(file)],
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = []
    assert process.stdout is not None
    while len(pids) < 3:
        words = process.stdout.readline().split()
        assert words, 'chunkpilot up has ended'
        if words[1] == 'pid':
            pids.append(int(words[2]))
    yield process, pids
    for pid in pids:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
    process.communicate()


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_up_ends_everything_on_a_signal(up, number):
    process, pids = up
    process.send_signal(number)
    time.sleep(0.3)
    process.send_signal(number)  # impatient: no need to wait five seconds for the stubborn one
    assert process.wait(10.0) == 0
    assert not any(alive(pid) for pid in pids)


def test_kill_9_of_up_leaves_nothing(up):
    process, pids = up
    process.kill()
    assert wait_until(lambda: not any(alive(pid) for pid in pids), 10.0)


def test_own_domains_differ():
    with own_domain() as one, own_domain() as two:
        assert one != two
        assert {one, two} <= set(range(1, 101))


def test_shared_memory_of_the_living_is_left_alone(tmp_path):
    for name in ('dead', 'alive', 'young', 'port7001'):
        (tmp_path / f'fastrtps_{name}').touch()
        (tmp_path / f'fastrtps_{name}_el').touch()
        if name != 'young':
            os.utime(tmp_path / f'fastrtps_{name}_el', (0, 0))
    import fcntl

    with (tmp_path / 'fastrtps_alive_el').open('rb') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert clean_shared_memory(tmp_path) == 1
    left = {entry.name for entry in tmp_path.iterdir()}
    kept = ('alive', 'young', 'port7001')  # a port may be opened by somebody at this moment
    assert left == {f'fastrtps_{name}{end}' for name in kept for end in ('', '_el')}
