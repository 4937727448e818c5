"""`python -m fedax.cli`."""

from fedax.cli import main

main()
