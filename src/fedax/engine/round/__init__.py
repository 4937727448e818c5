"""Inside a round: context, client work, aggregation, evaluation."""
