"""The tables and figures of the papers, run again and compared with what is printed; and the study.

    python -m papers
    python -m papers sparse-secagg/table-1

A client of `hpcfl`, run from a checkout. A paper is a module with its `TITLE` and a tuple
`ARTEFACTS`; :mod:`papers.artefact` says what one is. What was found is kept in
results/reproduction, and shown in papers/reproduction.md and papers/study.md.
"""

from __future__ import annotations

from papers import locks, queries, sparse_secagg, zcdp
from papers.artefact import Artefact
from papers.study import artefacts as study

PAPERS = {"sparse-secagg": sparse_secagg, "zcdp": zcdp, "locks": locks, "queries": queries}
STUDY = "study"  # of no paper, and with a page of its own

ARTEFACTS: dict[str, Artefact] = {
    artefact.id: artefact for module in (*PAPERS.values(), study) for artefact in module.ARTEFACTS
}


def select(names: tuple[str, ...]) -> list[Artefact]:
    """Return the artefacts of that name, or of the papers of that name, each once.

    A LookupError names what there is not.
    """
    found: dict[str, Artefact] = {}
    for name in names:
        some = {id: one for id, one in ARTEFACTS.items() if name in (id, one.group)}
        if not some:
            raise LookupError(name)
        found |= some
    return list(found.values())
