"""Federated optimization in JAX: write a method once, simulate it fast, deploy the same code.

    history = fedax.run(fedax.FedAvg(), fedax.task("synthetic"), rounds=50)

Runs:
- `run`: run an algorithm on a task.
- `run_grid`: run a grid of hyperparameters and seeds as one compiled program.
- `compare`: a page with the curves of several runs, or a figure. `table`: their final values, for
  LaTeX and others. `plot`: the curves of a run as a figure.
- `start`: a run to be stepped by hand.
- `Schedule`: the clients that work in a round, and how much. `Conditions`: what keeps them from it.
  `Asynchronous`: a server that does not wait for all of them.
- `SGD`, `Optax`, `Exact`, `Inexact`: local solvers.
- `Channel`: codecs of what clients and server send, and attacks of clients.
- `Clock`: the clients' devices, for the seconds and joules of a virtual clock.
- `Divergence`: early end of a diverging run; `EarlyStopping`: of one that no longer becomes better;
  `Budget`: of one that has spent its time or energy.
- `Tracking`: a progress hook that sends curves to TensorBoard or Weights & Biases.
- `History`: the result of a run.
- `load_params`, `load_state`, `save_params`: models from and to files.
- `connect_hosts`: use the devices of several hosts.
- `keep_programs`: keep compiled programs between processes.
- `Simulation`, `Eager`, `MPI`, `Flower`: engines: compiled, step by step for reference, one process
  for each client, deployed.
- `Task`: a federated learning problem. `task`: that of a data set, or of your own code, by name.
- `from_model`: a task of a model and a loss of its outputs. `classification`: of a model whose
  outputs are logits.
- `lora`: a task of fine-tuning a frozen model by low-rank adapters.
- `Graph`: a communication graph with its mixing matrix.

Algorithms with a server and one model:
- `FedAvg`: federated averaging. `FedProx`: with a proximal term. `FedNova`: normalised by the
  number of steps.
- `FedAvgM`, `FedAdam`, `FedYogi`, `FedAdagrad`: with a server optimizer. `FedExP`: with
  extrapolated server steps.
- `DANE`, `FedDANE`: with gradient-corrected local problems. `SDANE`, `AccSDANE`, `FedRed`,
  `FedLin`: their successors.
- `ProxSkip`: local steps that skip communication. `FedExProx`: with extrapolated proximal points.
- `FedCM`, `Mime`, `MimeLite`: with the server's momentum in local steps.
- `FedSAM`, `FedSpeed`: with sharpness-aware ones. `MOON`: contrastive.
- `FedLC`, `FedNTD`: with losses for clients whose labels differ.
- `SCAFFOLD`, `FedDyn`, `FedADMM`: with memory of each client. `FedVARP`, `MIFA`: with the last
  changes of those that are away.
- `FedBC`: with multipliers of a consensus tolerance. `FedAWARE`: along the least-norm combination
  of momenta.
- `QFedAvg`, `AFL`, `FedMGDA`: for fairness.
- `GD`, `LocalGD`: gradient descent, with one and with several local steps.
- `CoordinateMedian`, `TrimmedMean`, `Krum`, `GeometricMedian`, `Bulyan`, `CenteredClip`: robust
  against hostile clients.
- `SCAFFOLDM`: SCAFFOLD whose local steps mix in the last mean direction of all clients.

Personalized algorithms:
- `Ditto`, `PerFedAvg`, `PFedMe`: a model of its own for every client.
- `PerFedBC`, `FedBCFineTune`: the same after FedBC.
- `FedPer`, `FedRep`, `LGFedAvg`, `FedBN`: some leaves of the model stay at each client.
- `FedBABU`, `FedRoD`: a body for all, with a head that is fine-tuned, or with a second head for
  each client.
- `APFL`: mixtures of a local model and the global one. `IFCA`: one model for each cluster of
  clients.
- `FedALA`: FedAvg whose clients start from a learned mixture of the global head and their last
  one.

Algorithms without a server:
- `DFedAvgM`, `QuantizedDFedAvgM`: local training, then averages with the neighbours.
- `DGD`, `DSGD`: a gradient step and an average with the neighbours in every round.
- `GradientTracking`, `GTSGD`, `GTAdam`: the same with estimates of the mean gradient. `BEER`: with
  compressed messages.
- `EXTRA`, `ExactDiffusion`, `NIDS`: the same with corrections by the last step. `DFedSAM`: with
  sharpness-aware training.
- `PushSum`: local training on directed graphs.

To write an algorithm:
- `Algorithm`: its base class. `Citation`: its citation. `hyper`: declares a hyperparameter.
- `Federation`: the verbs of a round. `Client`: a client as a work function sees it.
- `LocalProblem`: the local problem. `Upload`: the result of a work function.
- `footprint`: phases, traffic, memory and gradients of a round of an algorithm.
- `core` has these and the types around them, from which a method's file imports.

Data and errors:
- `FederatedData`: the examples of all clients.
- `FedaxError`: the base of all errors. `InvalidInput`: a value outside what a field allows.

Modules:
- `algorithms`: the algorithms by family, and by name.
- `attacks`: harm that a part of the clients does.
- `codecs`: quantization and sparsification.
- `core`: what a method's file imports, rules of schedules, and errors.
- `data`: federated data sets and partitions.
- `flower`: deployment with Flower, and trials of it in one process.
- `graphs`: topologies and mixing matrices.
- `models`: the papers' models.
- `observe`: observers of a run.
- `privacy`: accounting of differential privacy.
- `tasks`: tasks of your data, model or loss.
- `theory`: the papers' theorems as formulas.
"""

from importlib.metadata import version as _version
from typing import Any

import lazy_loader as _lazy

_load, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
__version__ = _version("fedax")


def __getattr__(name: str) -> Any:
    if name in __all__:
        globals()[name] = value = _load(name)
        return value
    from difflib import get_close_matches

    matches = get_close_matches(name, __all__, n=1)
    hint = f" Did you mean {matches[0]!r}?" if matches else ""
    raise AttributeError(f"module 'fedax' has no attribute {name!r}.{hint}")
