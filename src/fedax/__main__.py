"""`python -m fedax` is the command `fedax`."""

from fedax.cli import main

if __name__ == "__main__":
    main()
