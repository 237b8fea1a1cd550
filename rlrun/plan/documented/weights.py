"""Codes: the weights of a checkpoint, and their conversion."""

from __future__ import annotations

CODES: dict[str, str] = {
    "weights-not-found": (
        "The checkpoint folder has no safetensors files. Other formats are not read; convert it once with "
        "transformers' save_pretrained."
    ),
    "weights-unreadable": "A safetensors file or its index is damaged, for instance by an interrupted download.",
    "weights-missing": (
        "The checkpoint lacks tensors that a model of this architecture has. Experts may be stored one by one or "
        "packed, and names may begin with model. or model.language_model.; anything else is another model, or not "
        "whole. The files' headers say so, before anything is loaded."
    ),
    "weights-unexpected": (
        "The checkpoint has tensors that the family's mapping does not know; leaving them out would compute "
        "something else. Those that are known and not trained (multi-token prediction, a vision tower, an indexer) are "
        "skipped."
    ),
    "weights-shape": "A tensor of the checkpoint has another shape than model.architecture says.",
    "weights-quantised": (
        "A tensor of the checkpoint is stored in a type that is not read. Floating point is, and FP8 (e4m3) with one "
        "scale for each block of a matrix, NAME_scale_inv, as in the releases of MiniMax-M2: it is dequantised on "
        "reading. Integers, and FP8 with one scale for a whole matrix, are not."
    ),
    "weights-other-type": (
        "The checkpoint to be converted is in a type other than bfloat16 and float32, e.g. float16, so the type of the "
        "result has to be chosen: dtype=bfloat16 rounds, dtype=float32 is exact and twice as large."
    ),
    "quantised-not-runnable": (
        "The trainer dequantises an FP8 checkpoint when it reads it, but the engines would load it as FP8 and be sent "
        "weights of another type. `rlrun convert hf-to-hf SOURCE TARGET` writes it in bfloat16 once."
    ),
    "weights-tied-differ": (
        "tie_word_embeddings is true, and the checkpoint stores an output layer that differs from the "
        "embedding: one of the two would be lost."
    ),
    "folder-not-found": "A folder that the command line names does not exist. Conversions read folders, not Hub ids.",
    "target-exists": (
        "Nothing is overwritten: a conversion makes a new folder, which appears under its name when it is complete."
    ),
    "target-not-writable": "The folder cannot be made there: its parent belongs to somebody else, or is none.",
    "conversion-too-large": (
        "A conversion to or from Megatron's format holds the model once on the CPU, and Megatron copies parts of it "
        "while it reads and writes; --verify computes with two models in float32. hf-to-hf holds one tensor at a time."
    ),
    "megatron-unreadable": (
        "The folder is no checkpoint of Megatron's dist_checkpointing (format torch_dist), or files that its metadata "
        "names are missing or cut short."
    ),
    "origin-not-found": (
        "A Megatron checkpoint holds weights alone. Their config.json and tokenizer come from the Hugging Face "
        "checkpoint that a run began with, which its plan.json names, or from --origin DIR."
    ),
}
