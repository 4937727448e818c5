"""Results of runs: records, tables, and one self-contained HTML page."""

from fedax.report.page import Page as Page
from fedax.report.page import Sheet as Sheet
from fedax.report.page import render as render
from fedax.report.record import Record as Record
