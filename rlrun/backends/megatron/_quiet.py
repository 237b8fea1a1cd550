"""Imports Megatron-core without its warnings. Import this module before any other that uses Megatron.

Without TransformerEngine and Apex, megatron-core warns some ten times while it is imported that it falls back to
torch. That is what we want here, so nobody has to read it in every rank's log.
"""

from __future__ import annotations

import logging
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import megatron.core.dist_checkpointing
    import megatron.core.distributed
    import megatron.core.models.gpt
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.optimizer
    import megatron.core.pipeline_parallel  # noqa: F401

for _name in (
    "megatron.core.dist_checkpointing",
    "megatron.core.optimizer",
    "megatron.core.distributed",
    "megatron.core.transformer.transformer_layer",  # does not know a subclass of its MLP
):
    logging.getLogger(_name).setLevel(logging.ERROR)

# Said once in every process about calls inside megatron-core that are right as they are.
warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
warnings.filterwarnings("ignore", message="full scope is deprecated")
warnings.filterwarnings("ignore", message="`load_state_dict` is deprecated", category=FutureWarning)
warnings.filterwarnings("ignore", message="Please use DTensor instead", category=FutureWarning)
