"""FedLab's standalone pipeline: its serial trainer, and its synchronous server with an average
weighted by sizes."""

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils import Aggregators, Logger, SerializationTool
from serving import serve
from torch_models import network, tensors, to_vector


class Loaders:
    """The batches of a client as a loader; a client is named by its round and place in the
    cohort."""

    def __init__(self, work):
        self.work = work
        (self.x, self.y) = tensors(work)

    def get_dataloader(self, name, batch_size):
        for rows in self.work.batches(*divmod(name, self.work.cohort)):
            rows = torch.from_numpy(rows)
            yield self.x[rows], self.y[rows]

    def size(self, name):
        return int(self.work.sizes[self.work.cohorts[divmod(name, self.work.cohort)]])


class Trainer(SGDSerialClientTrainer):
    """The serial trainer, which also sends the clients' sizes."""

    def local_process(self, payload, id_list):
        super().local_process(payload, id_list)
        self.cache = [
            [*pack, self.dataset.size(name)] for pack, name in zip(self.cache, id_list, strict=True)
        ]


class Server(SyncServerHandler):
    """The synchronous server with the cohorts of the work."""

    @property
    def num_clients_per_round(self):
        return self.cohort

    def sample_clients(self):
        return [self.round * self.cohort + place for place in range(self.cohort)]

    def global_update(self, buffer):
        vectors, sizes = zip(*buffer, strict=True)
        mean = Aggregators.fedavg_aggregate(list(vectors), [float(size) for size in sizes])
        SerializationTool.deserialize_model(self._model, mean)


class Pipeline(StandalonePipeline):
    def evaluate(self):
        pass


def prepare(work):
    torch.set_num_threads(1)  # two wait for each other wherever something else runs
    logger = Logger("fedlab")
    # its serialization wants parameters in PyTorch's usual order of memory
    model = network(work).to(memory_format=torch.contiguous_format)
    initial = SerializationTool.serialize_model(model)
    trainer = Trainer(model, len(work.sizes), logger=logger)
    trainer.setup_dataset(Loaders(work))
    # one pass: a loader has the batches of all epochs
    trainer.setup_optim(1, work.batch, work.rate)

    def train(rounds):
        server = Server(model, rounds, 1.0, logger=logger)
        server.cohort = work.cohort
        server.set_model(initial)
        Pipeline(server, trainer).main()
        return to_vector(work, server.model.parameters())

    return train


if __name__ == "__main__":
    serve(prepare)
