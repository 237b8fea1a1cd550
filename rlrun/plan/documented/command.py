"""Codes: the command line and the files."""

from __future__ import annotations

CODES: dict[str, str] = {
    "bad-usage": (
        "The command itself is wrong: a verb or flag that does not exist, or one that this verb would ignore. "
        "`rlrun --help` lists them."
    ),
    "bad-override": (
        "A word of the command line cannot be read. Words are key=value in Hydra's override grammar: lists "
        "are [a,b], mappings {a:1}, null is null, and a text with commas, brackets, quotes or equal signs is "
        "quoted for Hydra inside quotes for the shell, key='\"a, b\"'."
    ),
    "sweep-not-possible": (
        "A word gives several values (a,b or range(1,4)) to a command that makes one run, or describes values "
        "that cannot be listed (interval(0,1)). Add -m to run every value, or write [a,b] when a list is "
        "meant."
    ),
    "choice-not-possible": (
        "`rlrun resume` goes on with a stored configuration, so groups and experiments can no longer be "
        "chosen: that would replace many keys at once. Set the single keys that should differ."
    ),
    "chosen-twice": (
        "The command line chooses a group or experiment more than once. The later choice would replace the earlier one "
        "with all its keys. A single key may be given twice: the last one counts, as in any shell script."
    ),
    "config-dir-not-found": (
        "The folder given with --config-dir does not exist. It has the shape of conf/: a folder for each "
        "group, e.g. my_conf/experiment/first_try.yaml."
    ),
    "unknown-option": (
        "A group has no file of that name, in conf/ or in --config-dir. The hint lists the options there are. "
        "The choice may be in the defaults list of an experiment; its file and line are shown."
    ),
    "twin-of-cpu": (
        "+twin=cpu scales an experiment until it runs on a CPU, and this one is placed on a CPU already. Choose the "
        "experiment as it is meant for GPUs, or leave the twin out."
    ),
    "yaml-syntax": (
        "A YAML file cannot be parsed. Usual causes: a tab, a missing space after a colon, unequal "
        "indentation, or the same key twice. Its other keys are unknown, so complaints about missing values "
        "may follow once it is readable."
    ),
    "not-composable": (
        "Each file is readable but Hydra cannot compose them: an experiment overrides a group that the root "
        "does not have, or a group is chosen twice. An experiment says `override /group: option` in its "
        "defaults list."
    ),
    "bad-interpolation": (
        "A ${...} refers to a key or resolver that does not exist, or raised an error. Keys are written from "
        "the root: ${algo.group_size}. ${recipes:folder/file.jsonl} is a file of recipes/, ${oc.env:NAME} a "
        "variable of the environment."
    ),
    "unknown-key": (
        "The schema has no such key. Keys are never ignored: one that was misspelt would leave its default in "
        "place without notice. The hint names the nearest key; `rlrun explain GROUP` lists those of a group."
    ),
    "missing-value": "A key that has no default, or that another key makes necessary, was not set.",
    "wrong-type": (
        "The value has another type than the key. Values are never converted: 1.0 is not a whole number, and "
        "a name made of digits has to be quoted."
    ),
    "not-allowed": (
        "The value has the right type but is outside the range, or not one of the choices, that the key allows."
    ),
    "inactive-key": (
        "The key was set away from its default and would do nothing, because another key switches off what it "
        "shapes. Reset it, or change the other key; both are shown."
    ),
    "words-unreadable": (
        "The file given as @FILE to `rlrun diff` cannot be read, or has a quote that is not closed. It holds the "
        "words of one run as a shell would take them; # begins a comment."
    ),
    "plan-unreadable": (
        "A saved plan is not JSON, or lacks what every plan has: resolved_config, config_hash and the decided "
        "fields. `rlrun diff` reads the plan.json of a run and what `rlrun plan --json` prints."
    ),
}
