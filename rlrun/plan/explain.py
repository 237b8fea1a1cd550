"""`rlrun explain`: what a key means, its value here and who set it; or what an error code means."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Sequence

from rlrun.config import twin
from rlrun.config.keys import Key, find_key, nearest_key, open_sections, own_keys
from rlrun.config.load import Loaded, load
from rlrun.config.origin import COMMAND_LINE, show
from rlrun.config.partial import Unreadable
from rlrun.config.sections.base import plain
from rlrun.errors import Problem, RlrunError, Where
from rlrun.plan.codes import CODES
from rlrun.plan.context import Context
from rlrun.plan.render import shorten

WIDTH = 100


def explain(name: str, words: Sequence[str], config_dir: str | None = None) -> str:
    """Text about a key (`algo.lr`), a group of keys (`algo`) or a code (`unknown-key`).

    Values are those of the configuration that `words` choose, whatever else is wrong with it. Raises RlrunError
    (unknown-key) when there is neither.
    """
    if name in CODES:
        return f"error[{name}]\n{_paragraph(CODES[name])}"
    if name == "twin":
        return "\n".join(
            ["twin", textwrap.indent((twin.__doc__ or "").strip(), "  "), "  Expects only cpu, as +twin=cpu."]
        )
    key = find_key(name)
    if key is None:
        close = difflib.get_close_matches(name, CODES, n=1) if "-" in name else []
        meant = close[0] if close else nearest_key(name)
        hint = f"did you mean `{meant}`?" if meant else f"the groups are {', '.join(own_keys(''))}"
        where = (Where(COMMAND_LINE, f"explain {name}"),)
        raise RlrunError(Problem("unknown-key", f"there is no key and no error code `{name}`", where, hint))
    loaded = load(words, config_dir)
    return _section(key, loaded) if key.section is not None else _leaf(key, loaded)


def _leaf(key: Key, loaded: Loaded) -> str:
    default = "required" if key.required else f"default {show(key.default)}"
    lines = [key.path, _paragraph(key.doc), _paragraph(f"Expects {key.expected}.")]
    value, origin = _value(key, loaded)
    if origin is not None:
        lines.append(f"  {value}   {origin}   ({default})")
    else:
        lines.append(f"  {value}   ({default})")
    if key.item is not None:
        lines.append("Each entry has")
        width = max(map(len, key.item.model_fields))
        for name, field in key.item.model_fields.items():
            row = f"  {name:<{width}}  {' '.join((field.description or '').split())}"
            lines.append(textwrap.fill(row, WIDTH, subsequent_indent=" " * (width + 4), break_on_hyphens=False))
    return "\n".join(lines)


def _section(key: Key, loaded: Loaded) -> str:
    children = own_keys(key.path)
    engine = open_sections().get(key.path)
    if engine is not None:
        children += list(Context(loaded.config, loaded.origins).value(key.path).engine_arguments)
    if not children:
        return "\n".join([key.path, _paragraph(key.doc), *_offered(key.path, engine)])
    width = max(map(len, children))
    values = {name: _value(_key(key.path, name), loaded)[0] for name in children}
    value_width = min(max(map(len, values.values())), 24)
    lines = [key.path, _paragraph(key.doc)] if key.doc else [key.path]
    indent = " " * (width + value_width + 6)
    for name in children:
        doc = _key(key.path, name).doc
        row = f"  {name:<{width}}  {shorten(values[name], value_width):<{value_width}}  "
        lines.append(
            textwrap.fill(row + doc, WIDTH, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True)
        )
    return "\n".join([*lines, *_offered(key.path, engine)])


def _key(section: str, name: str) -> Key:
    key = find_key(f"{section}.{name}")
    assert key is not None, f"{section}.{name}"
    return key


def _offered(section: str, engine: str | None) -> list[str]:
    """What an open section takes beside its own keys."""
    if engine is None:
        return []
    from rlrun.config.arguments.check import offered, title

    names = [name for name in offered(engine) if name not in own_keys(section)]
    listed = f"Also takes {len(names)} arguments of {title(engine)}, explained by `rlrun explain {section}.NAME`: "
    return [_paragraph(listed + ", ".join(names) + ".")]


def _value(key: Key, loaded: Loaded) -> tuple[str, str | None]:
    """A key's value as text, and who set it (None: nobody)."""
    if key.section is not None:
        return "...", None
    try:
        value = show(plain(Context(loaded.config, loaded.origins).value(key.path)))
    except Unreadable:
        unset = "no value" if key.required else show(key.default)
        value = unset if key.path not in loaded.origins else "no usable value"
    return value, loaded.origins.of(key.path) if key.path in loaded.origins else None


def _paragraph(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent="  ", subsequent_indent="  ")
