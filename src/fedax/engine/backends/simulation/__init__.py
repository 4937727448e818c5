"""The compiled simulation: all rounds between two observations are one program."""

from fedax.engine.backends.simulation.engine import Simulation as Simulation

__all__ = ["Simulation"]
