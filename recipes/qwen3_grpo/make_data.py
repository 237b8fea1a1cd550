"""Writes train.jsonl beside this file: arithmetic word problems from a few templates, with whole-number answers.

Generated, so that it can be shipped and checked; far easier and less varied than GSM8K. It shows that a run works,
it is not a benchmark.

    python recipes/qwen3_grpo/make_data.py
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

ROWS, SEED = 512, 0
NAMES = ("Ada", "Ben", "Chen", "Dina", "Emil", "Fatima", "Goran", "Hana", "Ines", "Jonas")
THINGS = ("apples", "books", "coins", "marbles", "pencils", "stamps", "tickets")


def shopping(r: random.Random) -> tuple[str, int]:
    name, thing = r.choice(NAMES), r.choice(THINGS)
    count, price, paid = r.randint(3, 20), r.randint(2, 15), r.randint(1, 40)
    budget = count * price + paid
    return f"{name} has {budget} dollars and buys {count} {thing} at {price} dollars each. How much is left?", paid


def sharing(r: random.Random) -> tuple[str, int]:
    first, second = r.sample(NAMES, 2)
    thing, friends, each, rest = r.choice(THINGS), r.randint(3, 9), r.randint(4, 25), r.randint(1, 2)
    total = friends * each + rest
    text = f"{first} shares {total} {thing} equally among {friends} friends and gives what is left over to {second}. "
    return text + f"How many {thing} does {second} get?", rest


def travel(r: random.Random) -> tuple[str, int]:
    name, speed, hours = r.choice(NAMES), r.randint(8, 30), r.randint(2, 7)
    extra = r.randint(1, 50)
    text = f"{name} cycles {speed} kilometres an hour for {hours} hours, then {extra} kilometres more. "
    return text + "How many kilometres is that in all?", speed * hours + extra


def ages(r: random.Random) -> tuple[str, int]:
    first, second = r.sample(NAMES, 2)
    age, factor, later = r.randint(4, 15), r.randint(2, 5), r.randint(2, 12)
    text = f"{first} is {age} years old and {second} is {factor} times as old. "
    return text + f"How old are they together in {later} years?", age * (factor + 1) + 2 * later


def packing(r: random.Random) -> tuple[str, int]:
    thing, boxes, each = r.choice(THINGS), r.randint(4, 18), r.randint(6, 24)
    broken = r.randint(1, each)
    text = f"A shop receives {boxes} boxes with {each} {thing} each; {broken} of the {thing} are damaged. "
    return text + "How many are not?", boxes * each - broken


TEMPLATES: tuple[Callable[[random.Random], tuple[str, int]], ...] = (shopping, sharing, travel, ages, packing)


def main() -> None:
    r = random.Random(SEED)
    problems: dict[str, int] = {}
    while len(problems) < ROWS:
        text, answer = r.choice(TEMPLATES)(r)
        problems[text] = answer
    lines = [json.dumps({"prompt": text, "label": str(answer)}) + "\n" for text, answer in problems.items()]
    (Path(__file__).parent / "train.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
