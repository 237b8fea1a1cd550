"""Writes train.jsonl and eval.jsonl beside this file: four random digits to copy. No prompt is in both.

python recipes/quickstart/make_data.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path

DIGITS, TRAIN_ROWS, EVAL_ROWS, SEED = 4, 512, 32, 0


def main() -> None:
    numbers = random.Random(SEED).sample(range(10**DIGITS), TRAIN_ROWS + EVAL_ROWS)
    rows = [json.dumps({"prompt": f"{n:0{DIGITS}}", "label": f"{n:0{DIGITS}}"}) + "\n" for n in numbers]
    folder = Path(__file__).parent
    (folder / "train.jsonl").write_text("".join(rows[:TRAIN_ROWS]), encoding="utf-8")
    (folder / "eval.jsonl").write_text("".join(rows[TRAIN_ROWS:]), encoding="utf-8")


if __name__ == "__main__":
    main()
