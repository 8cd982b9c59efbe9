"""The tables and figures of the papers, run again and compared with what is printed.

A paper is a module with a tuple `ARTEFACTS`; :mod:`hpcfl.reproduce.artefact` says what one is.
"""

from __future__ import annotations

from hpcfl.errors import no_such
from hpcfl.reproduce import locks, queries, sparse_secagg, zcdp
from hpcfl.reproduce.artefact import Artefact
from hpcfl.reproduce.study import artefacts as study

PAPERS = {
    "sparse-secagg": "Ergun, Sami and Guler, Sparsified Secure Aggregation (arXiv:2112.12872)",
    "zcdp": "Hu, Guo and Gong, Concentrated Differentially Private Federated Learning "
    "(2021; preprint and journal have the same figures)",
    "locks": "LOCKS: user differentially private federated optimal client sampling",
    "queries": "Optimizing the numbers of queries and replies in federated learning with "
    "differential privacy (FedSGD-DPC)",
}

STUDY = "study"  # of no paper, and with a page of its own

ARTEFACTS: dict[str, Artefact] = {
    artefact.id: artefact
    for module in (sparse_secagg, zcdp, locks, queries, study)
    for artefact in module.ARTEFACTS
}


def select(names: tuple[str, ...]) -> list[Artefact]:
    """Return the artefacts of that name, or of the papers of that name."""
    found: dict[str, Artefact] = {}
    for name in names:
        some = {
            id: artefact for id, artefact in ARTEFACTS.items() if name in (id, id.partition("/")[0])
        }
        if not some:
            raise no_such(
                "table or figure",
                name,
                [*ARTEFACTS, *PAPERS, STUDY],
                also="'hpcfl reproduce --list' shows them all",
                listed=False,
            )
        found |= some
    return list(found.values())
