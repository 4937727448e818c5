"""Results of runs: records, tables, and one self-contained HTML page."""

# no page, which imports pandas: clients of a deployment read experiment files without it
from fedax.results.record import Record as Record
