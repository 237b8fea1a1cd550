"""The command line. Plans and explanations go to stdout, errors to stderr; what a user can fix shows no traceback.

Exit codes: 0 fine, 1 the run failed, 2 the configuration or the command is wrong, 130 interrupted.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rlrun.errors import EXIT_CONFIG, EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED, Problem, RlrunError, RunFailed, Where

FLAGS = ("-h", "--help", "--version", "-m", "--multirun", "--json", "--suggest", "--verify")
FOLDERS = ("--config-dir", "--origin", "--fill-missing-from")
VERBS = ("run", "plan", "explain", "diff", "schema", "resume", "models", "convert")

HELP = """\
Usage: rlrun [run|plan] +experiment=NAME [group=option] [key=value ...]
       rlrun explain KEY|CODE [+experiment=NAME ...]
       rlrun diff A B
       rlrun schema [GROUP]
       rlrun resume RUN_DIR [key=value ...]
       rlrun models
       rlrun convert hf-to-megatron|megatron-to-hf|hf-to-hf SOURCE TARGET

  run      validate, launch and train (default); -m runs every point of key=a,b
  plan     show what run would do; starts nothing, needs no GPU
  explain  say what a key means, its value here and who set it, or what an error code means
  diff     say what differs between A and B, each the name of an experiment, the folder or plan.json
           of a run, or @FILE with words such as +experiment=quickstart algo.lr=1e-4
  schema   print a JSON Schema of the files in conf/experiment (or of those in conf/GROUP), for editors
  resume   go on with a run that stopped, from its newest checkpoint
  models   say which models there are, what works with each, and how that was tested
  convert  turn a Hugging Face checkpoint into Megatron's format, or back, e.g. the checkpoint of a run;
           hf-to-hf [dtype=bfloat16|float32] changes the type, and undoes FP8

  +twin=cpu          run, plan, diff @FILE: the same experiment scaled to this machine's CPU, with the real engines;
                     `rlrun explain twin` says how
  -m, --multirun     a sweep: key=a,b  key=range(1,4)  group=x,y
  --config-dir DIR   also look for groups and experiments in DIR, which has the shape of conf/
  --json             plan, diff, models: print the result, or the problems, as JSON
  --suggest          plan: print the changes that make a run fit into its GPUs' memory
  --compare GROUP    plan: every option of a group side by side, e.g. async_mode or placement, by estimated time
  --verify           convert: compare every tensor, and the logits with those of transformers
  --origin DIR       convert megatron-to-hf: the Hugging Face checkpoint whose config.json and tokenizer belong to it
  --fill-missing-from DIR   the same: a checkpoint with the tensors that are not trained, e.g. a vision tower
  -h, --help         show this text
  --version          show the version

An editor that runs the YAML language server completes and checks keys after `rlrun schema > rlrun.schema.json`
and the line `# yaml-language-server: $schema=/path/to/rlrun.schema.json` in a file.

"""


@dataclass(frozen=True)
class Command:
    """The words of the command line, sorted."""

    verb: str
    words: tuple[str, ...]
    multirun: bool = False
    as_json: bool = False
    suggest: bool = False
    config_dir: str | None = None
    compare: str | None = None
    """The group whose options are to be compared."""
    show: str | None = None
    """help or version, when that is all that was asked for."""
    verify: bool = False
    origin: str | None = None
    fill_from: str | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = None
    try:
        command = parse(arguments)
        return _run(command)
    except RlrunError as e:
        _report(e.problems, as_json=command is not None and command.as_json)
        return EXIT_CONFIG
    except RunFailed as e:
        from rlrun.plan.render import render_failure

        print(render_failure(e, sys.stderr), file=sys.stderr)
        return EXIT_RUN_FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader, e.g. `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def parse(arguments: Sequence[str]) -> Command:
    """Sorts the words. Raises RlrunError (bad-usage) for a verb or flag that there is not."""
    words: list[str] = []
    flags: dict[str, bool] = {}
    folders: dict[str, str] = {}
    compare = None
    rest = iter(arguments)
    for word in rest:
        name, has_value, value = word.partition("=")
        if word in FLAGS:
            flags[{"-h": "--help", "-m": "--multirun"}.get(word, word)] = True
        elif name in FOLDERS:
            folders[name] = value if has_value else next(rest, "")
            if not folders[name]:
                raise _usage(f"{name} needs a folder", word, f"write {name} DIR")
        elif name == "--compare":
            compare = value if has_value else next(rest, None)
            if not compare or not compare.isidentifier():
                raise _usage("--compare needs a group", word, "write --compare async_mode, or another folder of conf/")
        elif word.startswith("-"):
            raise _usage(f"there is no flag {word}", word, "see rlrun --help")
        else:
            words.append(word)
    verb = words.pop(0) if words and words[0] in VERBS else "run"
    if not arguments or "--help" in flags or "--version" in flags:
        return Command(
            verb, (), config_dir=folders.get("--config-dir"), show="version" if "--version" in flags else "help"
        )
    if verb == "run" and words and words[0].isalpha():
        close = difflib.get_close_matches(words[0], VERBS, n=1)
        hint = f"did you mean `rlrun {close[0]}`?" if close else f"the verbs are {', '.join(VERBS)}; see rlrun --help"
        raise _usage(f"there is no verb `{words[0]}`", words[0], hint)
    command = Command(
        verb,
        tuple(words),
        multirun="--multirun" in flags,
        as_json="--json" in flags,
        suggest="--suggest" in flags,
        config_dir=folders.get("--config-dir"),
        compare=compare,
        verify="--verify" in flags,
        origin=folders.get("--origin"),
        fill_from=folders.get("--fill-missing-from"),
    )
    _refuse_idle_flags(command)
    return command


def _refuse_idle_flags(command: Command) -> None:
    """Flags that the verb would ignore, and operands that it needs."""
    if command.as_json and command.verb not in ("plan", "diff", "models"):
        raise _usage(f"--json belongs to plan, diff and models, not to {command.verb}", "--json", "leave it out")
    for flag, given in (
        ("--verify", command.verify),
        ("--origin", command.origin),
        ("--fill-missing-from", command.fill_from),
    ):
        if given and command.verb != "convert":
            raise _usage(f"{flag} belongs to convert, not to {command.verb}", flag, "leave it out")
    if command.suggest and (command.verb != "plan" or command.multirun or command.as_json):
        raise _usage("--suggest belongs to plan, without -m and --json", "--suggest", "write rlrun plan --suggest ...")
    if command.compare and (command.verb != "plan" or command.multirun or command.suggest):
        raise _usage(
            "--compare belongs to plan, without -m and --suggest", "--compare", "write rlrun plan --compare GROUP ..."
        )
    if command.multirun and command.verb not in ("run", "plan"):
        raise _usage(f"-m belongs to run and plan, not to {command.verb}", "-m", "leave it out")
    reads = {
        "resume": "resume reads the run's own folder",
        "schema": "the schema is the same for every folder",
        "models": "the models are the shipped ones",
        "convert": "a conversion reads no configuration",
    }
    if command.verb in reads and command.config_dir is not None:
        raise _usage(reads[command.verb], "--config-dir", "leave --config-dir out")
    if command.verb == "diff" and len(command.words) != 2:
        hint = "write rlrun diff A B; changed keys go into a file of words, @FILE"
        raise _usage(f"diff compares two things, and got {len(command.words)}", " ".join(command.words), hint)
    if command.verb == "models" and command.words:
        raise _usage("models takes no words", " ".join(command.words), "write rlrun models, or rlrun models --json")
    if command.verb == "schema" and len(command.words) > 1:
        raise _usage("schema takes one group", " ".join(command.words), "write rlrun schema GROUP")
    if command.verb in ("resume", "explain") and (not command.words or "=" in command.words[0]):
        operand = {"resume": "RUN_DIR", "explain": "KEY or CODE"}[command.verb]
        raise _usage(f"{command.verb} needs {operand}", command.verb, f"write rlrun {command.verb} {operand} ...")


def _usage(summary: str, word: str, hint: str) -> RlrunError:
    return RlrunError(Problem("bad-usage", summary, (Where("command line", word),), hint))


def _run(command: Command) -> int:
    if command.show == "version":
        from importlib.metadata import version

        print(f"rlrun {version('rlrun')}")
    elif command.show == "help":
        print(HELP + _experiments(command.config_dir))
    elif command.verb == "explain":
        from rlrun.plan.explain import explain

        print(explain(command.words[0], command.words[1:], command.config_dir))
    elif command.verb == "plan":
        _plan(command)
    elif command.verb == "diff":
        from rlrun.plan.diff import diff, diff_document, render_diff

        found = diff(command.words, command.config_dir)
        print(json.dumps(diff_document(found), indent=1) if command.as_json else render_diff(found, sys.stdout))
    elif command.verb == "schema":
        from rlrun.config.json_schema import json_schema

        print(json.dumps(json_schema(*command.words), indent=1, ensure_ascii=False))
    elif command.verb == "models":
        from rlrun.plan.catalog import catalog, catalog_document, render_catalog

        models = catalog()
        print(json.dumps(catalog_document(models), indent=1) if command.as_json else render_catalog(models))
    elif command.verb == "convert":
        _convert(command)
    elif command.verb == "resume":
        from rlrun.runtime.launch import resume

        return resume(command.words[0], list(command.words[1:]))
    elif command.multirun:
        from rlrun.config.load import expand_sweep
        from rlrun.runtime.sweep import sweep

        return sweep(expand_sweep(command.words), command.config_dir)
    else:
        from rlrun.plan.build import load_plan

        plan = load_plan(list(command.words), command.config_dir)
        from rlrun.runtime.launch import run

        return run(plan)
    return EXIT_OK


def _convert(command: Command) -> None:
    from rlrun.convert.request import notes, parse

    request = parse(command.words, command.origin, command.fill_from, command.verify)
    for note in notes(request):
        print(note, file=sys.stderr)
    # Conversions run on the CPU, whatever else the machine has; torch is told before it is imported.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from rlrun.convert.convert import convert

    print("\n".join(convert(request)))


def _plan(command: Command) -> None:
    from rlrun.plan.build import load_plan
    from rlrun.plan.render import plan_document, render_plan, render_sweep

    if command.suggest:
        from rlrun.plan.suggest import suggest_text

        print(suggest_text(list(command.words), command.config_dir))
        return
    if command.compare:
        from rlrun.plan.compare import compare, comparison_document, render_comparison

        comparison = compare(command.compare, list(command.words), command.config_dir)
        text = comparison_document(comparison) if command.as_json else None
        print(json.dumps(text, indent=1) if text is not None else render_comparison(comparison, sys.stdout))
        return
    if not command.multirun:
        plan = load_plan(list(command.words), command.config_dir)
        print(json.dumps(plan_document(plan), indent=1) if command.as_json else render_plan(plan, sys.stdout))
        return
    from rlrun.config.load import expand_sweep
    from rlrun.runtime.sweep import plan_all, varying

    points = expand_sweep(command.words)
    plans = plan_all(points, command.config_dir)
    if command.as_json:
        print(json.dumps([plan_document(plan) for plan in plans], indent=1))
    else:
        print(render_sweep(plans, varying(points), sys.stdout))


def _report(problems: Sequence[Problem], as_json: bool) -> None:
    """Text for people on stderr; with --json the same as data on stdout."""
    from rlrun.plan.render import problems_document, render_problems

    if as_json:
        print(json.dumps(problems_document(problems), indent=1))
    print(render_problems(problems, stream=sys.stderr), file=sys.stderr)


def _experiments(config_dir: str | None) -> str:
    from rlrun.config.compose import Groups

    return "Experiments: " + ", ".join(Groups(config_dir).options("experiment"))
