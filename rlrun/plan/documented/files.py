"""Codes: files, reward, ports."""

from __future__ import annotations

CODES: dict[str, str] = {
    "output-dir-unusable": (
        "The run folder cannot be made below output_dir: a part of the path is a file, or a folder that may not be "
        "written to. A run would end before its first step."
    ),
    "sync-dir-unusable": (
        "The folder through which weights travel (weight_sync.dir) cannot be made: a part of the path is a file, or a "
        "folder that may not be written to."
    ),
    "sync-dir-not-shared": (
        "Weights that travel by disk are written on the node of trainer rank 0 and read by the engines of every node, "
        "and this folder is one that each node has for itself. It is weight_sync.dir or, without one, in the folder of "
        "the run below output_dir."
    ),
    "delta-external": (
        "Delta transport sends what changed, and code of rlrun inside of each engine applies it to the engine's own "
        "copy of the weights. A server that rlrun did not start has no such code; disk transport uses what every "
        "SGLang server has."
    ),
    "unexpanded-variable": (
        "A path contains $NAME. rlrun expands ~, and leaves $NAME to the shell: inside single quotes or a YAML "
        "file it would name a folder called `$NAME`. YAML says ${oc.env:NAME}."
    ),
    "tracking-uri": (
        "tracking.uri is an address that no MLflow store in this environment understands. It is a database "
        "(sqlite:///mlflow.db), a server (http://host:5000), or databricks."
    ),
    "file-not-found": ("A data file cannot be opened. Relative paths begin at the folder in which rlrun was started."),
    "malformed-jsonl": (
        "A data file is JSONL: every line is one JSON object with the field data.*.prompt_key (a text, or a "
        "list of {role, content} messages) and, unless it is null, data.*.label_key. With algo.loss=sft it is "
        "data.train.response_key instead of the label, a text. The first five bad lines are listed."
    ),
    "dataset-too-small": (
        "A rollout draws algo.prompts_per_rollout different prompts (times dynamic_sampling.over_sampling where groups "
        "may be dropped), so the training file needs at least that many rows; an evaluation file needs one."
    ),
    "prompt-too-long": (
        "A prompt has more tokens, after the chat template, than rollout.max_prompt_tokens. Prompts are never "
        "cut: a shortened problem is another problem."
    ),
    "response-too-long": (
        "A response to learn has, with its end-of-sequence token, more tokens than rollout.max_response_tokens. "
        "Responses are never cut: the model would learn to stop in the middle."
    ),
    "no-end-token": (
        "The tokenizer names no end-of-sequence token, and a response to learn has to end with it: a model that never "
        "saw the end of a response never stops."
    ),
    "reward-not-importable": (
        "The module of reward.function could not be imported, or has no function of that name. The exception "
        "is shown. The folder in which rlrun was started is importable."
    ),
    "reward-arguments": (
        "The reward function cannot be called as f(prompt, response_text, label, **reward.arguments)."
    ),
    "port-in-use": (
        "Engines and router take consecutive ports from rollout.port: two for each engine, then one for the "
        "router. One of them is taken on this machine. null picks free ones."
    ),
    "port-out-of-range": "Counted from rollout.port, the last port would be above 65535.",
}
