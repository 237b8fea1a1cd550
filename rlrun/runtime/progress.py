"""What a person watching sees, on stderr: start-up phases, one line a step, notes. On a terminal the step line is
rewritten in place; elsewhere every line stays."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO


def duration(seconds: float) -> str:
    """1.4 s, 48 s, 3m20s, 2h05m."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def shown(path: str) -> str:
    """A path as one would type it: relative below the current folder, absolute elsewhere."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


class Progress:
    def __init__(self, stream: TextIO | None = None, quiet: bool = False):
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._live = self._stream.isatty()
        self._began: float | None = None
        self._first_step = 0
        self._status = ""

    def note(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self._clear()
            print(text, file=self._stream, flush=True)

    def phase(self, step: int, name: str) -> None:
        """What is happening now; shown only where the line can be rewritten."""
        if self._began is None:
            self._began, self._first_step = time.monotonic(), step - 1
        if self._live and not self._quiet:
            self._clear()
            self._stream.write(f"{self._status}  [step {step}: {name}]".strip())
            self._stream.flush()

    def step(self, step: int, last: int, metrics: dict[str, float]) -> None:
        began = self._began if self._began is not None else time.monotonic()
        done = max(step - self._first_step, 1)
        left = (time.monotonic() - began) / done * (last - step)
        self._status = (
            f"step {step:>{len(str(last))}}/{last}"
            f"{_shown(metrics)}  {metrics['perf/step_s']:.1f} s  left {duration(left)}"
        )
        if self._quiet:
            return
        self._clear()
        self._stream.write(self._status if self._live and step != last else self._status + "\n")
        self._stream.flush()

    def _clear(self) -> None:
        if self._live:
            self._stream.write("\r\x1b[2K")


def _shown(metrics: dict[str, float]) -> str:
    """What was learned in the step, as far as there is something: a critic may learn alone, or not exist, and given
    responses have no reward."""
    parts = []
    for name, text in (
        ("rollout/reward_mean", "reward {:.3f}"),
        ("train/loss", "loss {:+.4f}"),
        ("train/grad_norm", "grad {:.2f}"),
        ("train/value_loss", "value loss {:.4f}"),
        ("train/explained_variance", "explained {:.2f}"),
        ("train/train_rollout_logprob_abs_diff", "|dlogp| {:.1e}"),
    ):
        if name in metrics:
            parts.append(f"  {text.format(metrics[name])}")
    return "".join(parts)
