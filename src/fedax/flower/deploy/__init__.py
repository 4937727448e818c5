"""Deployment of an experiment over Flower: the folder of a deployment, its keys, its processes, and
both sides' programs.
"""

from fedax.flower.deploy.settings import Deployment as Deployment

__all__ = ["Deployment"]
