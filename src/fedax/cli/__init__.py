"""The command line, `fedax`."""

from fedax.cli.commands import app as app
from fedax.cli.commands import main as main
