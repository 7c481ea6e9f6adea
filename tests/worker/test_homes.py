"""A worker's folder goes with it, however it ends."""

import subprocess
import sys

from evokernel.worker.homes import Home, sweep

HOLD = "from evokernel.worker.homes import Home; h = Home(); print(h.folder, flush=True); input()"


def test_the_folder_of_a_killed_holder_is_removed_and_that_of_a_living_one_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    theirs = holder.stdout.readline().strip()
    ours = Home()
    sweep()
    assert {str(path) for path in ours.folder.parent.iterdir()} == {theirs, str(ours.folder)}
    holder.kill()
    holder.communicate()
    sweep()
    assert list(ours.folder.parent.iterdir()) == [ours.folder]
    ours.close()
    assert not ours.folder.exists()
