"""Codes: the weights, read when the trainer starts."""

from __future__ import annotations

CODES: dict[str, str] = {
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
}
