"""What may be written below an open section: `rollout.sglang`, `trainer.megatron`, and sections made like them.

Judges each argument by itself. What depends on the device, the family or another argument is a rule of the plan.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any

from rlrun.config.arguments import megatron, sglang
from rlrun.config.arguments.table import Argument, table
from rlrun.config.origin import Origins, show
from rlrun.errors import Problem, Where

ENGINES: dict[str, ModuleType] = {"sglang": sglang, "megatron": megatron}


def check_sglang_arguments(
    values: Mapping[str, Any], prefix: str, origins: Origins, allow: Collection[str] = ()
) -> list[Problem]:
    """Every problem of SGLang arguments by name, written at `prefix`, e.g. `rollout.sglang`. `allow` names those that
    the caller decides about itself, such as the roles of server groups: their types are still checked."""
    found = [check_argument("sglang", name, value, prefix, origins, allow) for name, value in values.items()]
    return [problem for problem in found if problem is not None]


def check_argument(
    engine: str,
    name: str,
    value: Any,
    prefix: str,
    origins: Origins,
    allow: Collection[str] = (),
    own: Collection[str] = (),
) -> Problem | None:
    """What is wrong with one argument of `sglang` or `megatron`. `own` are the section's own keys, for the hint about
    an unknown name."""
    known = table(engine).arguments
    where = (origins.where(f"{prefix}.{name}", value),)
    if name not in known:
        return Problem("unknown-key", f"{prefix} has no key `{name}`", where, unknown_hint(engine, name, prefix, own))
    argument, path = known[name], f"{prefix}.{name}"
    return _unsettable(engine, argument, value, path, where, allow) or _wrong(engine, argument, value, path, where)


def usual(engine: str, name: str) -> Any:
    """The value that an argument has when nobody sets it: rlrun's where it has one, else the engine's default."""
    return ENGINES[engine].ALWAYS.get(name, table(engine).arguments[name].default)


def owner(engine: str, name: str) -> str | None:
    """The key that decides an argument in its place."""
    return ENGINES[engine].OWNED.get(name)


def refusal(engine: str, name: str) -> str | None:
    """Why an argument cannot have another value than its usual one; None for one that another key decides."""
    if owner(engine, name) is not None:
        return None
    return next((why for pattern, why in ENGINES[engine].REFUSED if fnmatchcase(name, pattern)), None)


def offered(engine: str) -> list[str]:
    """The arguments that a run may set."""
    known = table(engine).arguments.values()
    return [a.name for a in known if a.settable and owner(engine, a.name) is None and refusal(engine, a.name) is None]


def matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def title(engine: str) -> str:
    """Name and version, e.g. `SGLang 0.5.15.post1`."""
    recorded = table(engine)
    return f"{recorded.engine} {recorded.version}"


def about(engine: str, name: str) -> str:
    """A sentence or two about an argument, in place of the documentation that keys of our own have."""
    argument = table(engine).arguments[name]
    flag = f" (--{argument.flag})" if engine == "sglang" else f" ({', '.join(_OBJECTS[o] for o in argument.objects)})"
    key, why = owner(engine, name), refusal(engine, name)
    text = f"Argument of {title(engine)}{flag}."
    if key is not None:
        return f"{text} Not set here: {key} decides it."
    if not argument.settable:
        return f"{text} An object of Python, which YAML cannot write."
    if why is not None:
        return f"{text} It cannot be changed: {why}."
    default = argument.default
    if usual(engine, name) != default:
        return f"{text} rlrun sets it to {show(usual(engine, name))}; its own default is {show(default)}."
    return text


def unknown_hint(engine: str, name: str, prefix: str, own: Collection[str] = ()) -> str:
    """What was probably meant by a name that the section does not have."""
    recorded, settings = table(engine), ENGINES[engine]
    plain = name.lstrip("-").replace("-", "_")
    if plain != name and (plain in own or plain in recorded.arguments):
        key = None if plain in own else owner(engine, plain)
        return f"set {key} instead" if key else f"names are written with `_`: set {prefix}.{plain}"
    if plain in recorded.spellings:
        return _instead(engine, recorded.spellings[plain], prefix, own)
    scripts: dict[str, str] = getattr(settings, "LAUNCH_SCRIPTS", {})
    if plain in scripts:
        return f"{title(engine)} has no such argument; set {scripts[plain]} instead"
    if plain in settings.NEEDLESS:
        return f"remove it: {settings.NEEDLESS[plain]}"
    close = difflib.get_close_matches(plain, [*own, *recorded.arguments], n=1, cutoff=0.7)
    if close:
        key = None if close[0] in own else owner(engine, close[0])
        return (
            f"did you mean `{prefix}.{close[0]}`?" if key is None else f"did you mean `{close[0]}`? Set {key} instead"
        )
    return f"{title(engine)} has no such argument either; remove it, or see `rlrun explain {prefix}`"


_OBJECTS = {
    "transformer": "TransformerConfig",
    "mla": "MLATransformerConfig",
    "optimizer": "OptimizerConfig",
    "ddp": "DistributedDataParallelConfig",
}


def _instead(engine: str, name: str, prefix: str, own: Collection[str]) -> str:
    """The hint for an older or longer spelling of an argument."""
    key = None if name in own else owner(engine, name)
    return f"set {key} instead" if key else f"{title(engine)} calls it {name}: set {prefix}.{name}"


def _unsettable(
    engine: str, argument: Argument, value: Any, path: str, where: tuple[Where, ...], allow: Collection[str]
) -> Problem | None:
    """When no value, or only the usual one, is possible."""
    name = argument.name
    if name in allow:
        return None
    key, why = owner(engine, name), refusal(engine, name)
    if key is not None:
        summary = f"{path} is not set here: rlrun takes {name} from {key}"
        return Problem("owned-argument", summary, where, f"remove {path} and set {key} instead")
    if not argument.settable:
        summary = f"{name} takes an object of Python, which YAML cannot write"
        return Problem("argument-not-settable", summary, where, f"remove {path}")
    if why is not None and value != usual(engine, name):
        hint = f"remove {path}, or set it to {show(usual(engine, name))}"
        return Problem("argument-refused", f"{path} cannot be {show(value)}: {why}", where, hint)
    return None


def _wrong(engine: str, argument: Argument, value: Any, path: str, where: tuple[Where, ...]) -> Problem | None:
    """When the value has the wrong type or is not among the choices."""
    default = usual(engine, argument.name)
    hint = f"set {path} to {argument.expected}; the default is {show(default)}"
    if not argument.fits(value):
        if isinstance(value, int | float) and not isinstance(value, bool) and "str" in argument.types:
            hint = f"quote it: {path}='\"{value}\"'"
        summary = f"{path} is {_kind(value)} {show(value)}, it has to be {argument.expected}"
        return Problem("wrong-type", summary, where, hint)
    if value == [] and argument.how == "words" and value != argument.default:
        return Problem(
            "not-allowed", f"{path} is an empty list", where, f"set {path} to {show(default)}, or list a value"
        )
    if not argument.allows(value):
        return Problem("not-allowed", f"{path} is {show(value)}, it has to be {argument.expected}", where, hint)
    return None


def _kind(value: Any) -> str:
    kinds = {bool: "the truth value", int: "the number", float: "the number", str: "the text", dict: "the mapping"}
    return kinds.get(type(value), "the list" if isinstance(value, list) else "the value")
