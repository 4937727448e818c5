"""What is watched: pure functions of the global model. On or off, the trajectory is the same."""

from fedax.observe.accuracy import HoldoutScore as HoldoutScore
from fedax.observe.accuracy import Objective as Objective
from fedax.observe.accuracy import TestAccuracy as TestAccuracy
from fedax.observe.accuracy import TestLoss as TestLoss
from fedax.observe.accuracy import TrainLoss as TrainLoss
from fedax.observe.consensus import Consensus as Consensus
from fedax.observe.consensus import NodeAccuracy as NodeAccuracy
from fedax.observe.dissimilarity import Dissimilarity as Dissimilarity
from fedax.observe.drawn import Extremes as Extremes
from fedax.observe.fairness import ClientAccuracy as ClientAccuracy
from fedax.observe.fairness import LocalAccuracy as LocalAccuracy
from fedax.observe.squares import ConsensusSquare as ConsensusSquare
from fedax.observe.weights import ClientWeights as ClientWeights
