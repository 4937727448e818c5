"""The command line, `fedax`."""

from fedax.cli.main import app as app
from fedax.cli.main import main as main
