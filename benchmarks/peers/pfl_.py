"""pfl's SimulatedBackend with a PyTorch model: FederatedAveraging weighted by datapoints.

By `python -m torch.distributed.run`, pfl's way to several processes, which share the cohort: one
for each core, with one thread."""

import os
import sys
from pathlib import Path

os.environ["PFL_PYTORCH_DEVICE"] = "cpu"

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm import FederatedAveraging
from pfl.algorithm.base import NNAlgorithmParams
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from serving import Work, serve
from torch import nn
from torch_models import network, tensors, to_vector

EVALUATED = 1
"""The batch size of evaluations, which no training has."""


class Model(nn.Module):
    """The network with the loss and the metrics that pfl asks for."""

    def __init__(self, work):
        super().__init__()
        self.network = network(work)
        self.criterion = nn.CrossEntropyLoss()

    def loss(self, x, y):
        return self.criterion(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x, y):
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Batches(Dataset):
    """A user whose batches are those of the work. pfl always evaluates in its first iteration: on a
    single example here."""

    def __init__(self, x, y, batches, size):
        super().__init__((x, y))
        self.batches = batches
        self.size = size

    def __len__(self):
        return self.size

    def iter(self, batch_size):
        x, y = self.raw_data
        for rows in self.batches if batch_size != EVALUATED else [self.batches[0][:1]]:
            rows = torch.from_numpy(rows)
            yield x[rows], y[rows]


def prepare(work):
    torch.set_num_threads(1)
    x, y = tensors(work)
    module = Model(work)
    initial = {name: value.clone() for name, value in module.state_dict().items()}
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))

    def user(name):
        return Batches(x, y, work.batches(*name), int(work.sizes[work.cohorts[name]]))

    def train(rounds):
        module.load_state_dict(initial)
        names = ((t, place) for t in range(rounds) for place in range(work.cohort))
        data = FederatedDataset(user, lambda: next(names))
        backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
        local = NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.rate, local_batch_size=work.batch
        )  # one pass: a user has the batches of all epochs
        evaluation = NNEvalHyperParams(local_batch_size=EVALUATED)
        plan = NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=work.cohort,
            val_cohort_size=0,
        )
        FederatedAveraging().run(
            plan, backend, model, local, evaluation, send_metrics_to_platform=False
        )
        return to_vector(work, module.network.parameters())

    return train


def along(train):
    """The rounds that the first process announces, until there are none."""
    announced = torch.zeros(1, dtype=torch.int64)
    while True:
        torch.distributed.broadcast(announced, 0)
        if not announced:
            return
        train(int(announced))


def announcing(train):
    def announced(rounds):
        torch.distributed.broadcast(torch.tensor([rounds]), 0)
        return train(rounds)

    return announced


if __name__ == "__main__":
    if torch.distributed.get_rank():
        along(prepare(Work(Path(sys.argv[-1]))))
    else:
        serve(lambda work: announcing(prepare(work)))
        torch.distributed.broadcast(torch.tensor([0]), 0)
    torch.distributed.destroy_process_group()
