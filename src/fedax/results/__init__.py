"""Results of runs: records, tables, and one self-contained HTML page."""

from fedax.results.page import Page as Page
from fedax.results.page import Sheet as Sheet
from fedax.results.page import render as render
from fedax.results.record import Record as Record
