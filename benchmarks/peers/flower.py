"""Flower's simulation: a virtual SuperNode for each client, Ray with one CPU for each ClientApp,
its own FedAvg.

The ServerApp stays up between blocks. It looks for replies every 5 ms in place of the usual 100.
"""

import os
import sys

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from serving import Work, serve
from torch_models import at_hand, local_steps, network, to_vector

PULL_SECONDS = 0.005


class GivenCohorts(FedAvg):
    """FedAvg with the cohorts of the work."""

    def __init__(self, work):
        super().__init__(fraction_evaluate=0.0)
        self.work = work

    def configure_train(self, server_round, arrays, config, grid):
        nodes = sorted(grid.get_node_ids())
        t = server_round - 1
        for place, client in enumerate(self.work.cohorts[t]):
            config = ConfigRecord({"round": t, "place": place, "path": sys.argv[-1]})
            content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
            yield Message(content, dst_node_id=nodes[client], message_type=MessageType.TRAIN)


client = ClientApp()


@client.train()
def train(message, context):
    torch.set_num_threads(1)
    config = message.content["config"]
    work, model, x, y = at_hand(config["path"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    batches = work.batches(config["round"], config["place"])
    local_steps(model, x, y, batches, work.rate)
    count = MetricRecord(
        {"num-examples": int(work.sizes[work.cohorts[config["round"], config["place"]]])}
    )
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": count})
    return Message(content, reply_to=message)


server = ServerApp()


@server.main()
def main(grid, context):
    grid.pull_interval = PULL_SECONDS

    def prepare(work):
        initial = ArrayRecord(network(work).state_dict())

        def rounds_of(rounds):
            result = GivenCohorts(work).start(grid=grid, initial_arrays=initial, num_rounds=rounds)
            return to_vector(work, result.arrays.to_torch_state_dict().values())

        return rounds_of

    serve(prepare)


if __name__ == "__main__":
    cores = os.cpu_count()
    backend = {
        "init_args": {
            "num_cpus": cores,
            "include_dashboard": False,
            "logging_level": "ERROR",
            "log_to_driver": False,
        },
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    clients = len(Work(sys.argv[-1]).sizes)
    run_simulation(server, client, num_supernodes=clients, backend_config=backend)
