"""Writes train.jsonl and eval.jsonl beside this file: two digits to reverse, all hundred of them. No prompt is in both.

python recipes/quickstart/make_data.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path

DIGITS, EVAL_ROWS, SEED = 2, 36, 0


def main() -> None:
    numbers = [f"{n:0{DIGITS}}" for n in range(10**DIGITS)]
    random.Random(SEED).shuffle(numbers)
    rows = [json.dumps({"prompt": n, "label": n[::-1]}) + "\n" for n in numbers]
    folder = Path(__file__).parent
    (folder / "eval.jsonl").write_text("".join(rows[:EVAL_ROWS]), encoding="utf-8")
    (folder / "train.jsonl").write_text("".join(rows[EVAL_ROWS:]), encoding="utf-8")


if __name__ == "__main__":
    main()
