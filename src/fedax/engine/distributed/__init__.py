"""Several processes: collectives, process groups, aborting all ranks."""
