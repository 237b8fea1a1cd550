"""Runs `rlrun` commands in one process of their own, which imports Megatron once.

    python convert_process.py < [{"words": [...], "sabotage": null}, ...]

prints, for each, [exit code, stdout, stderr] as JSON. `sabotage` breaks one thing for one command.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock


def commands(*asked: Any) -> list[list[Any]]:
    """[exit code, stdout, stderr] of each; words alone, or (words, sabotage)."""
    tasks = [
        {"words": a, "sabotage": None} if isinstance(a, list) else {"words": a[0], "sabotage": a[1]} for a in asked
    ]
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(tasks),
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@contextlib.contextmanager
def sabotaged(how: str | None) -> Iterator[None]:
    if how == "bit":  # one bit of one tensor on its way to the disk
        from rlrun.backends.megatron.safetensors_file import SafetensorsFile

        write = SafetensorsFile.write

        def flip(self: Any, name: str, tensor: Any, start: int = 0) -> None:
            tensor = tensor.clone()
            if "layers.1." in name and start == 0:
                tensor.view(-1)[0] += 1
            write(self, name, tensor, start)

        with mock.patch.object(SafetensorsFile, "write", flip):
            yield
    elif how == "logits":  # weights right, the computation not
        from rlrun.convert import verify

        logits = verify.megatron_logits
        with mock.patch.object(verify, "megatron_logits", lambda *a: [x + 0.5 for x in logits(*a)]):
            yield
    elif how == "reference":
        from rlrun.convert import verify

        with mock.patch.object(verify, "reference_logits", side_effect=RuntimeError("no kernel\nhere")):
            yield
    elif how == "disk":  # no file may be larger than this
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    else:
        yield


def main() -> None:
    from rlrun.cli import main as rlrun

    results = []
    for task in json.load(sys.stdin):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), sabotaged(task["sabotage"]):
            code = rlrun(task["words"])
        results.append([code, out.getvalue(), err.getvalue()])
    print(json.dumps(results))


if __name__ == "__main__":
    main()
