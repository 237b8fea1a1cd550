"""Codes: model."""

from __future__ import annotations

CODES: dict[str, str] = {
    "model-not-found": (
        "model.path is neither the folder of a Hugging Face checkpoint (with a readable config.json) nor the "
        "id of a model on the Hub. Paths begin with /, ./ or ~; a bare org/name that is no folder here is "
        "taken as a Hub id."
    ),
    "model-incomplete": (
        "The folder has a config.json and lacks weights or tokenizer files that it names, for instance after "
        "an interrupted download."
    ),
    "checkpoint-incomplete": (
        "The safetensors files of model.path are cut short, lack tensors that their index places in them, or have none "
        "at all of a layer, the embedding or the output layer: usually an interrupted download. Only the files' "
        "headers are read. A folder with nothing but config.json can be planned."
    ),
    "sparse-attention-length": (
        "The engines of family glm_moe_dsa attend to the index_topk keys that an indexer selects, and the trainer of "
        "this version computes attention over all keys. Both are exactly the same while a sample has no more than "
        "index_topk tokens; beyond that the trainer would learn from log-probs of another function."
    ),
    "gdn-backend": (
        "model.gdn_backend names kernels that cannot compute this model's gated delta nets here: those of fla and "
        "flashqla run on a GPU, in bfloat16, and flashqla's for heads of 128 columns only. auto takes fla where it is "
        "installed and can run, and otherwise torch, which computes the same anywhere, slower."
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
}
