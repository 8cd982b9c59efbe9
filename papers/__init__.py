"""The papers' tables and figures, run again and compared with the printed ones; and the study.

    python -m papers
    python -m papers sparse-secagg/table-1

This package is a client of `hpcfl`, run from a checkout. A paper is a module with its `TITLE` and a
tuple `ARTEFACTS` of objects defined in :mod:`papers.artefact`. The results are kept in
results/reproduction, and shown in papers/reproduction.md and papers/study.md.
"""

from __future__ import annotations

from papers import locks, queries, sparse_secagg, zcdp
from papers.artefact import Artefact
from papers.study import artefacts as study

PAPERS = {"sparse-secagg": sparse_secagg, "zcdp": zcdp, "locks": locks, "queries": queries}
STUDY = "study"  # belongs to no paper, and has its own page

ARTEFACTS: dict[str, Artefact] = {
    artefact.id: artefact for module in (*PAPERS.values(), study) for artefact in module.ARTEFACTS
}


def select(names: tuple[str, ...]) -> list[Artefact]:
    """Return the artefacts with these names, or of the papers with these names, each once.

    Raise LookupError with the first unknown name.
    """
    found: dict[str, Artefact] = {}
    for name in names:
        some = {id: one for id, one in ARTEFACTS.items() if name in (id, one.group)}
        if not some:
            raise LookupError(name)
        found |= some
    return list(found.values())
