"""Writes train.jsonl, eval.jsonl and sft.jsonl beside this file: two digits to reverse, all hundred of them. No prompt
is in both of the first two. sft.jsonl has the prompts of train.jsonl with the responses to learn, for a warm start.

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
    shown = [json.dumps({"prompt": n, "response": n[::-1]}) + "\n" for n in numbers[EVAL_ROWS:]]
    (folder / "sft.jsonl").write_text("".join(shown), encoding="utf-8")


if __name__ == "__main__":
    main()
