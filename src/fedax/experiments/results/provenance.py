"""Provenance: versions and machine, on which numbers depend besides the configuration."""

from collections import Counter
from collections.abc import Sequence

from fedax.results import Record
from fedax.results.versions import packages as packages
from fedax.results.versions import versions as versions


def describe_other_versions(records: Sequence[Record]) -> list[str]:
    """Returns a sentence for each set of versions among the runs that were taken over from
    elsewhere.
    """
    counts = Counter(
        ", ".join(f"{name} {value}" for name, value in (run.versions or {}).items())
        for run in records
    )
    return [
        f"{count} of the runs were made elsewhere: {description}."
        for description, count in counts.items()
        if description
    ]
