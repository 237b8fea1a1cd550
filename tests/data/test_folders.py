"""A folder is there whole, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from rlrun.data.folders import debris, refuse, whole


def test_the_folder_appears_at_the_end(tmp_path):
    target = tmp_path / "below" / "target"
    with whole(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
        assert folder.name.startswith(".")
        assert folder.parent == target.parent
    assert [p.name for p in target.iterdir()] == ["a"]
    assert os.listdir(target.parent) == ["target"]


def test_an_error_leaves_nothing(tmp_path):
    def write() -> None:
        with whole(tmp_path / "target") as folder:
            (folder / "a").write_text("1")
            raise ValueError

    with pytest.raises(ValueError):
        write()
    assert os.listdir(tmp_path) == []


def test_a_folder_is_replaced_only_on_request(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").write_text("1")
    assert [p.code for p in refuse(target)] == ["target-exists"]
    with whole(target, replace=True) as folder:
        (folder / "new").write_text("1")
        assert os.listdir(target) == ["old"]
    assert os.listdir(target) == ["new"]
    assert os.listdir(tmp_path) == ["target"]


def test_a_killed_process_leaves_nothing_under_that_name(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from rlrun.data.folders import whole\n"
        f"with whole(Path({str(tmp_path / 'target')!r})) as folder:\n"
        "    (folder / 'config.json').write_text('{}'); print('half', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    assert not (tmp_path / "target").exists()
    assert [p.name[:8] for p in debris(tmp_path / "target")] == [".target."]
    assert refuse(tmp_path / "target") == []
