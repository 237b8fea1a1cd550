"""Records which arguments the installed engines take, so that a plan can check them without importing an engine.

    python -m rlrun.config.tables.record

Writes a JSON file an engine beside this module: each argument's type, choices and default, one argument a line. Run it
after changing a pinned version, and read the difference: it is what users may write below `rollout.sglang` and
`trainer.megatron`.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import types
import typing
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

HERE = Path(__file__).parent
FILES = {"sglang": "sglang_0_5_15_post1.json", "megatron": "megatron_core_0_16_1.json"}
SIMPLE = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null"}

Row = dict[str, Any]


def sglang_table() -> dict[str, Any]:
    """Fields of ServerArgs, with the type and choices of the command line, which is how an engine gets them."""
    from rlrun.backends.sglang.cpu import install_torchvision_ops

    install_torchvision_ops()
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    fields = {field.name: field for field in dataclasses.fields(ServerArgs)}
    actions: dict[str, argparse.Action] = {}
    spellings: dict[str, str] = {}
    for action in parser._actions:
        if action.dest in fields:
            actions.setdefault(action.dest, action)
            words = [option.lstrip("-").replace("-", "_") for option in action.option_strings]
            spellings.update({word: action.dest for word in words if word not in fields and not word.startswith("no_")})
    hints = typing.get_type_hints(ServerArgs)
    rows = {name: _sglang_row(field, hints[name], actions.get(name)) for name, field in fields.items()}
    return {"engine": "SGLang", "version": version("sglang"), "arguments": rows, "spellings": spellings}


def _sglang_row(field: dataclasses.Field, hint: Any, action: argparse.Action | None) -> Row:
    default = _default(field)
    if action is None:
        return {"type": "object", "default": None}
    row: Row = {"default": default}
    if isinstance(action, argparse.BooleanOptionalAction):
        kinds, row["how"] = ["bool"], "switch"
    elif action.nargs == 0:
        kinds, row["how"] = ["bool"], "flag"
        if default is None:  # the command line can only switch it on
            row["choices"] = [True]
    elif getattr(action.type, "__name__", "") in ("loads", "json_list_type", "parse_cuda_graph_config_arg"):
        kinds, row["how"] = [k for k in _kinds(hint) if k not in ("str", "null", "object")] or ["mapping"], "json"
    else:
        kind = {"int": "int", "human_readable_int": "int", "float": "float"}.get(
            getattr(action.type, "__name__", ""), "str"
        )
        many = action.nargs in ("+", "*")
        kinds, row["how"] = [f"list[{kind}]" if many else kind], "words" if many else "value"
    if "float" in kinds and default is not None:
        row["default"] = float(default)
    if action.choices is not None:
        ordered = not isinstance(action.choices, set | frozenset)  # a set's order differs from process to process
        row["choices"] = list(action.choices) if ordered else sorted(action.choices)
    row["type"] = "|".join([*kinds, *(["null"] if default is None else [])])
    flag = action.option_strings[0].lstrip("-")
    if flag != field.name.replace("_", "-"):
        row["flag"] = flag
    return row


def megatron_table() -> dict[str, Any]:
    """Fields of the config classes that a trainer builds, with the objects to which each name belongs."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    import rlrun.backends.megatron._quiet  # noqa: F401  (first: it imports Megatron without its warnings)

    rows: dict[str, Row] = {}
    for config, label in (
        (TransformerConfig, "transformer"),  # a ModelParallelConfig
        (MLATransformerConfig, "mla"),  # a TransformerConfig
        (OptimizerConfig, "optimizer"),
        (DistributedDataParallelConfig, "ddp"),
    ):
        hints = typing.get_type_hints(config)
        for field in dataclasses.fields(config):
            row = _megatron_row(field, hints[field.name])
            known = rows.get(field.name)
            if known is None:
                rows[field.name] = row | {"of": [label]}
            elif label != "mla":  # which has all fields of a TransformerConfig
                known["of"].append(label)
                if row["default"] != known["default"]:
                    known.setdefault("defaults", {})[label] = row["default"]
    return {"engine": "megatron-core", "version": version("megatron-core"), "arguments": rows, "spellings": {}}


def _megatron_row(field: dataclasses.Field, hint: Any) -> Row:
    kinds, choices = [k for k in _kinds(hint) if k != "object"], _choices(hint)
    if not [k for k in kinds if k != "null"] or field.name.startswith("_"):
        return {"type": "object", "default": None}
    default = _default(field)
    if "float" in kinds and isinstance(default, int) and not isinstance(default, bool):
        default = float(default)
    if default is None and "null" not in kinds:
        kinds.append("null")
    row: Row = {"type": "|".join(kinds), "default": default}
    if choices:
        row["choices"] = choices
    return row


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _plain(None if field.default is dataclasses.MISSING else field.default)


def _plain(value: Any) -> Any:
    """A default as JSON has it: dtypes and enum members by their names."""
    if isinstance(value, enum.Enum):
        return value.name
    if str(value).startswith("torch."):
        return str(value).removeprefix("torch.")
    return value if isinstance(value, bool | int | float | str | list | None) else None


def _kinds(hint: Any) -> list[str]:
    """The types of YAML that an annotation admits; `object` for what YAML cannot write."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return list(dict.fromkeys(kind for argument in arguments for kind in _kinds(argument)))
    if origin is Literal:
        return list(dict.fromkeys(SIMPLE[type(argument)] for argument in arguments))
    if origin in (list, tuple, set):
        inner = "mapping" if get_origin(arguments[0]) is dict else SIMPLE.get(arguments[0])
        return [f"list[{inner}]"] if inner else ["object"]
    if origin is dict:
        return ["mapping"]
    if hint in SIMPLE:
        return [SIMPLE[hint]]
    if str(hint) == "<class 'torch.dtype'>":
        return ["dtype"]
    return (
        ["enum"]
        if isinstance(hint, type) and issubclass(hint, enum.Enum) and "Backend" in hint.__name__
        else ["object"]
    )


def _choices(hint: Any) -> list[Any]:
    if get_origin(hint) is Literal:
        return [argument for argument in get_args(hint) if argument is not None]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [member.name for member in hint]
    if str(hint) == "<class 'torch.dtype'>":
        return ["float32", "bfloat16", "float16", "uint8"]
    return [choice for argument in get_args(hint) for choice in _choices(argument)]


def text_of(table: dict[str, Any]) -> str:
    """A table as the file has it: sorted, one argument a line."""
    rows = table["arguments"]
    lines = [f"  {json.dumps(name)}: {json.dumps(rows[name], sort_keys=True)}" for name in sorted(rows)]
    head = f'{{"engine": {json.dumps(table["engine"])}, "version": {json.dumps(table["version"])},\n'
    spellings = json.dumps(table["spellings"], sort_keys=True, indent=1)
    return head + ' "arguments": {\n' + ",\n".join(lines) + f'\n }},\n "spellings": {spellings}\n}}\n'


def main() -> None:
    for engine, table in (("sglang", sglang_table()), ("megatron", megatron_table())):
        (HERE / FILES[engine]).write_text(text_of(table), encoding="utf-8")
        print(f"{len(table['arguments'])} arguments of {table['engine']} {table['version']} in {FILES[engine]}")


if __name__ == "__main__":
    main()
