"""Observers: pure functions of the global model. On or off, the trajectory is the same.

Losses and scores:
- `TrainLoss`: mean loss over all clients' training examples.
- `TrainingLoss`: mean minibatch loss of the last cohort while it trains.
- `TrainScore`: any score of the task over them.
- `Objective`: the objective that is minimised, with l2, and the gap to its minimum.
- `TestLoss`: mean loss on the central test set.
- `TestAccuracy`: accuracy on the central test set.
- `CentralScore`: any score of the task on the central test set.
- `ValidationLoss`, `ValidationAccuracy`: on the clients' validation examples; `ValidationScore`:
  any score.

All predictions together:
- `AUC`, `F1`, `CalibrationError`: of a classifier's probabilities.
- `SetMetric`: any function of labels and predictions; `OnPredictions` is the base of these.

Single clients:
- `ClientAccuracy`: a score of the global model, or of the clients' own, on each client's test
  examples.
- `Unseen`: a score on clients that never take part, before and after adapting to each.
- `LocalAccuracy`: accuracy of each client's own model on its own test examples.
- `ClientWeights`: the weights of the clients in a mean over all of them.
- `Extremes`: the smallest and the largest client of the last cohort.

Heterogeneity and consensus:
- `Dissimilarity`: dissimilarity of the clients' gradients, and gradient diversity.
- `Consensus`: mean distance of the clients' models to their mean.
- `ConsensusSquare`: mean squared distance, as in theorems.
- `Curvature`: the ends of the spectrum of the clients' Hessians.
- `Inexactness`: how exact FedDANE's local solutions are.
- `Optimum`: the distance to a known minimiser, and the gap.
- `NodeAccuracy`: score of each node's own model on the central test set.

For your own:
- `Observer`: the base class of observers. `View`: the global model as an observer sees it.
"""

from fedax.observe.base import Observer as Observer
from fedax.observe.base import View as View
from fedax.observe.heterogeneity import Consensus as Consensus
from fedax.observe.heterogeneity import ConsensusSquare as ConsensusSquare
from fedax.observe.heterogeneity import Dissimilarity as Dissimilarity
from fedax.observe.predictions import AUC as AUC
from fedax.observe.predictions import F1 as F1
from fedax.observe.predictions import CalibrationError as CalibrationError
from fedax.observe.predictions import OnPredictions as OnPredictions
from fedax.observe.predictions import SetMetric as SetMetric
from fedax.observe.scores import CentralScore as CentralScore
from fedax.observe.scores import ClientAccuracy as ClientAccuracy
from fedax.observe.scores import ClientWeights as ClientWeights
from fedax.observe.scores import Extremes as Extremes
from fedax.observe.scores import LocalAccuracy as LocalAccuracy
from fedax.observe.scores import NodeAccuracy as NodeAccuracy
from fedax.observe.scores import Objective as Objective
from fedax.observe.scores import TestAccuracy as TestAccuracy
from fedax.observe.scores import TestLoss as TestLoss
from fedax.observe.scores import TrainLoss as TrainLoss
from fedax.observe.scores import TrainScore as TrainScore
from fedax.observe.scores import Unseen as Unseen
from fedax.observe.scores import ValidationAccuracy as ValidationAccuracy
from fedax.observe.scores import ValidationLoss as ValidationLoss
from fedax.observe.scores import ValidationScore as ValidationScore
from fedax.observe.theory import Curvature as Curvature
from fedax.observe.theory import Inexactness as Inexactness
from fedax.observe.theory import Optimum as Optimum
from fedax.observe.theory import TrainingLoss as TrainingLoss
