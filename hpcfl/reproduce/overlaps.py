"""SparseSecAgg's Figure 2, layer by layer: overlap of each layer's own top tenth.

Devices train in the clear from the mean of all updates, whole. Every rank does all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcfl.reproduce.artefact import Context, Setting

_TENTH = 0.1


def by_layer(setting: Setting, context: Context) -> Mapping[str, Any]:
    """Return the overlap of every tensor of the model, round by round.

    The setting names `model`, `partition`, `devices`, `rounds`, `local` (options of training) and
    `inputs`: ``standardised``, or ``raw`` for intensities from 0 to 1, as some code has them.
    """
    from hpcfl.algorithms.federated.sparsification import pairwise_overlap, selection_counts
    from hpcfl.learning import datasets, models, partition
    from hpcfl.learning.training import Trainer, single_thread
    from hpcfl.options.training import LocalOptions

    single_thread()
    devices = setting["devices"]
    data = datasets.load("mnist", context.data_dir, 0)
    shares = partition.make(setting["partition"], data, devices, 0)
    inputs = data.train_inputs
    if setting["inputs"] == "raw":
        low, high = inputs.min(), inputs.max()
        inputs = (inputs - low) / (high - low)
    model = models.build(setting["model"], data.shape, data.classes, 0)
    parameters = [one for one in model.named_parameters() if one[1].requires_grad]
    ends = np.cumsum([parameter.numel() for _, parameter in parameters])
    weights = models.get_flat(model)
    trainer = Trainer(model, LocalOptions(**setting["local"]))
    found: dict[str, list[float]] = {
        name: [] for name in ("all", *(name for name, _ in parameters))
    }
    for index in range(setting["rounds"]):
        updates = [
            trainer.local_update(
                weights,
                inputs[share],
                data.train_labels[share],
                np.random.SeedSequence(0, spawn_key=(index, device)),
                index,
            )
            for device, share in enumerate(shares)
        ]
        pieces = [(0, int(ends[-1])), *zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]
        for values, (start, stop) in zip(found.values(), pieces, strict=True):
            size = max(1, round(_TENTH * (stop - start)))
            chosen = [
                np.argpartition(np.abs(one[start:stop]), stop - start - size)[stop - start - size :]
                for one in updates
            ]
            counts = selection_counts(chosen, stop - start)
            values.append(round(pairwise_overlap(counts, devices, size), 4))
        weights = (weights - np.mean(updates, axis=0)).astype(np.float32)
    return {"overlaps": found}
