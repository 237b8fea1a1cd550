"""Every error code: what it means, why it is an error and how to fix it. `rlrun explain CODE` prints the paragraph."""

from __future__ import annotations

CODES: dict[str, str] = {
    # The command line and the files
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
    # Placement
    "too-many-gpus": (
        "The run needs more GPUs (slots on cpu) than its nodes have. Colocated runs need the larger of "
        "placement.trainer.gpus and placement.rollout.gpus, disaggregated runs their sum. Without this check "
        "Ray would wait for ever."
    ),
    "too-few-samples": (
        "A data-parallel replica of the trainer, or an engine, would have no sample to work on in any step, and its "
        "GPUs would be held for nothing. Raise the batch, or ask for fewer GPUs."
    ),
    "trainer-indivisible": (
        "A replica of the model takes tp x pp x cp GPUs, and the trainer's GPUs hold a whole number of "
        "replicas, whose number is the data-parallel size."
    ),
    "tp-indivisible": (
        "Tensor parallelism gives every rank the same number of attention heads, key/value heads, MLP columns "
        "and vocabulary rows; placement.trainer.tp has to divide all four."
    ),
    "engine-tp-indivisible": (
        "An engine with several GPUs is tensor-parallel over all of them, so "
        "placement.rollout.gpus_per_engine has to divide attention heads and MLP columns, and to divide the "
        "key/value heads or be a multiple of them."
    ),
    "ep-indivisible": (
        "Expert parallelism gives every rank the same number of experts: placement.trainer.ep has to divide the "
        "experts and the trainer's GPUs of one pipeline stage."
    ),
    "layers-indivisible": ("Pipeline stages have the same number of layers: placement.trainer.pp has to divide them."),
    "cp-unsupported": (
        "Context parallelism is not part of this version; placement.trainer.cp has to be 1. Long samples fit "
        "with trainer.recompute=full or a larger tp."
    ),
    "engines-indivisible": (
        "Every engine has placement.rollout.gpus_per_engine GPUs, and together they have "
        "placement.rollout.gpus: the first has to divide the second."
    ),
    "engine-crosses-nodes": (
        "The GPUs of one engine have to be on one node. Engines are laid out from the first GPU after the "
        "trainer's (from GPU 0 when colocated), without gaps."
    ),
    "transport-impossible": (
        "Weights reach the engines by tensor transport, which hands over memory and needs trainer and engines "
        "on the same GPUs of one node, or by distributed transport, a process group in which NCCL allows each "
        "GPU once and which therefore needs disaggregated placement on cuda."
    ),
    "attention-backend": (
        "The attention backend does not run on this device (only torch_native runs on a CPU), or cannot give "
        "results that are independent of the batch, which seeded sampling needs. auto picks one that works."
    ),
    "engine-memory-unset": (
        "A colocated engine keeps its share of the GPU while the trainer works, and SGLang's own choice leaves "
        "the trainer almost nothing: the run would end out of memory. rollout.sglang.mem_fraction_static is the "
        "engine's share of the whole GPU; shipped placements set it."
    ),
    "kv-cache-unset": (
        "On a CPU the KV cache has no natural limit, and SGLang would allocate 16 GB. "
        "rollout.sglang.max_total_tokens gives its size in tokens; shipped cpu placements set it."
    ),
    "kv-cache-too-small": (
        "rollout.sglang.max_total_tokens has to hold at least one sample of the longest prompt and response, "
        "or such a request would never be scheduled. Several times that much lets samples be decoded "
        "together."
    ),
    # Memory
    "memory-does-not-fit": (
        "By the closed forms of rlrun/plan/memory.py a phase takes more memory than placement.gpu has, so the run "
        "would end out of memory. The message names the phase and its largest term, the hint the two cheapest "
        "changes and what each of them leaves; `rlrun plan --suggest` looks for a combination."
    ),
    "engine-memory-too-small": (
        "rollout.sglang.mem_fraction_static of a GPU holds an engine's weights and its KV cache. Here the weights "
        "leave too little for a single sample of the longest prompt and response. Give the engine a larger share, "
        "or more GPUs."
    ),
    "host-memory-does-not-fit": (
        "Processes and the optimizer state that is collected on the host while a checkpoint is saved need more than "
        "placement.host_memory_gib. An estimate; null checks nothing."
    ),
    # Algorithm
    "group-size-too-small": (
        "GRPO's advantage is a sample's reward minus the mean of its group. A group of one has advantage zero "
        "everywhere, and nothing would be learned."
    ),
    "groups-per-step-indivisible": (
        "The prompt groups of a rollout are cut into optimizer steps of algo.groups_per_step groups; a rest "
        "would be thrown away. The hint lists sizes that divide."
    ),
    "min-lr-above-lr": "algo.min_lr is where a decaying learning rate ends, so it cannot be above algo.lr.",
    "warmup-longer-than-run": (
        "The run has num_steps x prompts_per_rollout / groups_per_step optimizer steps, fewer than "
        "algo.lr_warmup_steps: the learning rate would never reach algo.lr."
    ),
    "stop-after-end": "stop_after is a step at which to stop early, and it lies behind the last step.",
    "eval-without-data": "eval.interval asks for evaluations, and data.eval names no prompts.",
    "eval-samples-equal": (
        "At temperature 0 decoding is greedy and all samples of a prompt are the same, so more than one costs "
        "time and adds nothing."
    ),
    "empty-stop-text": "An empty text occurs at the start of every response, so each sample would end at once.",
    "context-too-long": (
        "rollout.max_prompt_tokens + rollout.max_response_tokens is more than the model's "
        "max_position_embeddings: its position embedding was not made for such lengths."
    ),
    # Model
    "model-not-found": (
        "model.path is neither the folder of a Hugging Face checkpoint (with a readable config.json) nor the "
        "id of a model on the Hub. Paths begin with /, ./ or ~; a bare org/name that is no folder here is "
        "taken as a Hub id."
    ),
    "model-incomplete": (
        "The folder has a config.json and lacks weights or tokenizer files that it names, for instance after "
        "an interrupted download."
    ),
    "model-unsupported": (
        "config.json describes something that the weight mapping of model.family does not compute: another "
        "model type, attention biases, a scaled rotary embedding, quantised weights. Training it would train "
        "a different function than the engine serves."
    ),
    "architecture-mismatch": (
        "model.architecture and the checkpoint's own config.json disagree; all differing fields are listed. "
        "The YAML describes another model than the folder holds: choose the matching model=..., or correct "
        "the fields."
    ),
    "heads-indivisible": (
        "Each key/value head serves the same number of query heads, so num_key_value_heads has to divide "
        "num_attention_heads; and head_dim is even, because the rotary embedding turns its columns in pairs."
    ),
    "alphabet-repeats": "Each character of model.alphabet is one token, so it may occur once.",
    "vocab-mismatch": (
        "A random model has a tokenizer of three special tokens and the characters of model.alphabet, and "
        "architecture.vocab_size is that many. A larger vocabulary would let the model sample ids that mean "
        "nothing."
    ),
    "vocab-too-small": "A random model's vocabulary cannot hold the special tokens and model.alphabet.",
    "unknown-character": (
        "A prompt contains characters that the tokenizer of a random model does not have. Add them to "
        "model.alphabet (and to architecture.vocab_size), or change the prompts."
    ),
    "random-family": "A checkpoint of random weights can be made for qwen3 only; other families need model.path.",
    # Files, reward, ports
    "output-dir-unusable": (
        "The run folder cannot be made below output_dir: a part of the path is a file, or a folder that may not be "
        "written to. A run would end before its first step."
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
        "list of {role, content} messages) and, unless it is null, data.*.label_key. The first five bad lines "
        "are listed."
    ),
    "dataset-too-small": (
        "A rollout draws algo.prompts_per_rollout different prompts, so the training file needs at least that "
        "many rows; an evaluation file needs one."
    ),
    "prompt-too-long": (
        "A prompt has more tokens, after the chat template, than rollout.max_prompt_tokens. Prompts are never "
        "cut: a shortened problem is another problem."
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
    # This machine, looked at when a run starts
    "engines-not-installed": (
        "This environment can plan but not run: Ray, torch, Megatron-core, SGLang or another package is "
        "missing. `make setup` installs them for a CPU, `pip install rlrun[gpu]` for CUDA."
    ),
    "family-not-runnable": (
        "All families can be planned, with their exact parameter counts and memory; the trainer of this version has "
        "the weight mapping of Qwen3 dense models alone."
    ),
    "too-few-gpus": (
        "The plan is consistent, and this machine (without RAY_ADDRESS naming a cluster) has fewer GPUs than it needs."
    ),
    # The weights, read when the trainer starts
    "weights-not-found": (
        "The checkpoint folder has no safetensors files. Other formats are not read; convert it once with "
        "transformers' save_pretrained."
    ),
    "weights-unreadable": "A safetensors file or its index is damaged, for instance by an interrupted download.",
    "weights-missing": "The checkpoint lacks tensors that a model of this architecture has.",
    "weights-unexpected": (
        "The checkpoint has tensors that the family's mapping does not know; leaving them out would compute "
        "something else."
    ),
    "weights-shape": "A tensor of the checkpoint has another shape than model.architecture says.",
    "weights-tied-differ": (
        "tie_word_embeddings is true, and the checkpoint stores an output layer that differs from the "
        "embedding: one of the two would be lost."
    ),
    # A run that exists
    "run-failed": (
        "A run had started and broke. The message says which part, doing what; the run folder has its logs, "
        "and `rlrun resume` goes on from the last checkpoint."
    ),
    "no-run-there": "The folder given to `rlrun resume` or `rlrun diff` is not that of a run: it has no plan.json.",
    "no-checkpoint": (
        "The run stopped before it saved anything, so there is nothing to go on from. checkpoint.interval "
        "makes runs save earlier."
    ),
    "run-finished": "The run has reached num_steps. With a constant learning rate it can be given more.",
    "stop-already-passed": "stop_after lies at or before the step from which the run would go on.",
    "data-changed": (
        "The training file has another number of prompts than when the checkpoint was made, so the place in "
        "it from which the run would go on means something else."
    ),
    "resume-changes-experiment": (
        "A resumed run is the same experiment: placement, tracking and the like may change, what is learned "
        "may not. The differing keys are listed with both values."
    ),
}
