"""The map of a plan: one row a node, one cell a GPU, and who lives there."""

from __future__ import annotations

from collections.abc import Sequence

from rlrun.plan.types import RunPlan

LETTERS = {"regular": "E", "prefill": "P", "decode": "D", "encoder": "V"}
WORDS = {
    "T": "trainer rank",
    "C": "critic rank",
    "E": "engine",
    "P": "prefill engine",
    "D": "decode engine",
    "V": "encoder",
}
IDLE, RESERVED, PLACEHOLDER = ".", "x", "-"


def map_rows(plan: RunPlan) -> list[list[str]]:
    """Cells of each node in the order of its GPUs: `T0+E0`, `P1`, `.` idle, `x` reserved, `-` placeholder."""
    cells: list[list[list[str]]] = [[[] for _ in range(plan.gpus_per_node)] for _ in range(plan.num_nodes)]
    place = {slot.index: (slot.node, slot.gpu) for slot in plan.slots}

    def put(slot: int, who: str) -> None:
        node, gpu = place[slot]
        cells[node][gpu].append(who)

    for rank, slot in enumerate(plan.train.slots):
        put(slot, f"T{rank}")
        if plan.critic is not None:  # rank r of the critic beside rank r of the policy
            put(slot, f"C{rank}")
    for engine in plan.engines:
        for slot in engine.slots:
            put(slot, f"{LETTERS[engine.type]}{engine.index}")
    for group in plan.deployment.groups:
        for slot in group.slots if group.type == "placeholder" else ():
            put(slot, PLACEHOLDER)
    for entry in plan.deployment.reserved:
        for gpu in entry.gpus:
            cells[entry.node][gpu].append(RESERVED)
    return [["+".join(who) or IDLE for who in row] for row in cells]


def map_lines(plan: RunPlan, width: int) -> list[str]:
    """The map under its title; consecutive nodes whose rows say the same are one row. A row that is too wide goes on
    below itself."""
    rows = map_rows(plan)
    folded = _folded(rows)
    unit = "slot" if plan.device == "cpu" else "GPU"
    names = [f"node {first}" if first == last else f"node {first}-{last}" for first, last, _ in folded]
    head = max(map(len, [*names, unit]))
    cell = max(len(text) for row in rows for text in [*row, str(len(row) - 1)])
    fit = max(1, (width - head - 4 + 1) // (cell + 1))
    lines = []
    for start in range(0, plan.gpus_per_node, fit):
        piece = range(start, min(start + fit, plan.gpus_per_node))
        lines.append(_line(unit, [str(gpu) for gpu in piece], head, cell))
        lines += [
            _line(name, [row[gpu] for gpu in piece], head, cell)
            for name, (_, _, row) in zip(names, folded, strict=True)
        ]
    return [*lines, *_legend(plan, rows)]


def _folded(rows: Sequence[list[str]]) -> list[tuple[int, int, list[str]]]:
    """(first node, last node, cells) of each run of equal rows."""
    found: list[tuple[int, int, list[str]]] = []
    for node, row in enumerate(rows):
        if found and found[-1][2] == row:
            found[-1] = (found[-1][0], node, row)
        else:
            found.append((node, node, row))
    return found


def _line(name: str, cells: Sequence[str], head: int, cell: int) -> str:
    return f"  {name:<{head}}  {' '.join(f'{text:<{cell}}' for text in cells)}".rstrip()


def _legend(plan: RunPlan, rows: Sequence[Sequence[str]]) -> list[str]:
    """What the letters that occur mean, and how numbers here and on the machines belong together."""
    cells = {part for row in rows for text in row for part in text.split("+")}
    words = [f"{letter} {word}" for letter, word in WORDS.items() if any(part.startswith(letter) for part in cells)]
    words += [f"{IDLE} idle"] * (IDLE in cells) + [f"{PLACEHOLDER} placeholder"] * (PLACEHOLDER in cells)
    for entry in plan.deployment.reserved:
        words.append(f"{RESERVED} {entry.what} (node {entry.node})")
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) + 2 <= 100:
            lines[-1] += f", {word}"
        else:
            lines.append(f"  {word}")
    if plan.device == "cuda":
        lines.append(_numbers(plan))
    return lines


def _numbers(plan: RunPlan) -> str:
    counted = "free GPUs" if plan.deployment.reserved else "GPUs"
    return f"  slots count {counted} node by node; nodes are in the order of their addresses, GPUs of their CUDA ids"
