"""Other programs on our cores are noticed; our own work is not taken for theirs."""

import os
import subprocess
import sys
import time

from evokernel.worker.neighbours import Neighbours

BURN = "import time; end = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"


def test_a_busy_stranger_is_counted_and_a_process_of_ours_is_not():
    stranger = subprocess.Popen([sys.executable, "-c", BURN])
    time.sleep(0.2)
    anyone, others = Neighbours([]), Neighbours([os.getpid(), stranger.pid])
    time.sleep(0.8)
    with_stranger, without = anyone.cores(), others.cores()
    stranger.kill()
    stranger.wait()
    assert 0.5 < with_stranger - without < 1.2
