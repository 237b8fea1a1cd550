from __future__ import annotations

import io

from rlrun.runtime.progress import Progress, duration


def test_durations_are_short_words():
    assert [duration(s) for s in (1.44, 48.2, 200, 7500)] == ["1.4 s", "48 s", "3m20s", "2h05m"]


def test_off_a_terminal_every_step_is_a_line_without_control_characters():
    stream = io.StringIO()
    progress = Progress(stream)
    progress.phase(1, "generate")
    metrics = {
        "rollout/reward_mean": 0.25,
        "train/loss": 0.01,
        "train/grad_norm": 1.0,
        "train/train_rollout_logprob_abs_diff": 1e-6,
        "perf/step_s": 2.0,
    }
    progress.step(1, 2, metrics)
    progress.step(2, 2, metrics)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("step 1/2  reward 0.250")
    assert lines[1].endswith("left 0.0 s")
    assert "\x1b" not in stream.getvalue()
