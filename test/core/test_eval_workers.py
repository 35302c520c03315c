"""Worker processes never outlive who started them."""

import os
import signal
import subprocess
import sys
import time

import psutil

PARENT = """
import os, sys, time
from chunkpilot_core.eval import workers


def work(folder):
    open(f'{folder}/{os.getpid()}', 'w').close()
    time.sleep(60.0)


if __name__ == '__main__':
    with workers.pool(2) as pool:
        jobs = [pool.submit(work, sys.argv[1]) for _ in range(2)]
        print('running', flush=True)
        jobs[0].result()
"""


def test_workers_end_with_a_parent_that_was_killed(tmp_path) -> None:
    file, begun = tmp_path / 'parent.py', tmp_path / 'begun'
    file.write_text(PARENT)
    begun.mkdir()
    words = [sys.executable, str(file), str(begun)]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    children: list[psutil.Process] = []
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == 'running\n'
        deadline = time.monotonic() + 60.0
        while len(list(begun.iterdir())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        children = psutil.Process(parent.pid).children(recursive=True)
        assert {int(entry.name) for entry in begun.iterdir()} <= {child.pid for child in children}
        os.kill(parent.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=20.0)
        assert not alive
    finally:
        parent.kill()
        parent.wait()
        for child in children:
            if child.is_running():
                child.kill()
