"""What is kept in the registry: all scores in one JSON document, which is replaced as a whole.

    {"writer": 81624593, "version": 7, "rails": [90, 12, 100], "domains": [100, 85], "spine": 100, "sorted": [1, 0, 2]}

One document, not a key for each element: a decision divides a rail's score by a domain's and compares the result with
another rail's, so it needs scores of one moment, and a mixed set would give a choice that neither moment's would. Keys
of their own could be put in one etcd transaction, but that is limited to 128 operations, and K alone may be 256. The
largest fabric's document has 6 KB. `sorted` is the list of rails, worst first, that the papers keep in the registry
(part 2): it is sorted once, by who writes it.

`writer` is when (monotonic ns) whoever wrote it began. So what a controller says that was restarted, and counts
versions from zero, is newer than all that its predecessor said.
"""

import json
from functools import lru_cache
from typing import NamedTuple

from railyard.controller.health.scores import Scores


class Document(NamedTuple):
    """One state of all scores; of two, the later (writer, version) counts."""

    writer: int
    scores: Scores

    @property
    def age(self) -> tuple[int, int]:
        """Sorts documents from old to new."""
        return self.writer, self.scores.version


def encode(document: Document) -> bytes:
    """One line, without its end."""
    scores = document.scores
    return json.dumps(
        {
            "writer": document.writer,
            "version": scores.version,
            "rails": scores.rails,
            "domains": scores.domains,
            "spine": scores.spine,
            "sorted": [rail for _, rail in scores.sorted_rails],
        }
    ).encode()


@lru_cache(maxsize=4)
def decode(line: bytes) -> Document:
    """The inverse. ValueError for anything else. All agents of a process hear the same line, and share what it says."""
    try:
        data = json.loads(line)
        scores = Scores(tuple(data["rails"]), tuple(data["domains"]), data["spine"], data["version"])
        # where the cached property keeps it: nobody sorts again
        vars(scores)["sorted_rails"] = tuple((scores.rails[rail], rail) for rail in data["sorted"])
        return Document(data["writer"], scores)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a document of scores: {line[:80]!r}") from error
