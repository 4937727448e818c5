"""The public names of fedax; `fedax/__init__.py` loads each when it is first used."""

from . import algorithms as algorithms
from . import attacks as attacks
from . import codecs as codecs
from . import core as core
from . import data as data
from . import flower as flower
from . import graphs as graphs
from . import layers as layers
from . import models as models
from . import observe as observe
from . import privacy as privacy
from . import tasks as tasks
from . import theory as theory
from .algorithms.decentralized.beer import BEER as BEER
from .algorithms.decentralized.dfedavgm import DFedAvgM as DFedAvgM
from .algorithms.decentralized.dfedsam import DFedSAM as DFedSAM
from .algorithms.decentralized.dgd import DGD as DGD
from .algorithms.decentralized.dsgd import DSGD as DSGD
from .algorithms.decentralized.exactdiffusion import NIDS as NIDS
from .algorithms.decentralized.exactdiffusion import (
    ExactDiffusion as ExactDiffusion,
)
from .algorithms.decentralized.extra import EXTRA as EXTRA
from .algorithms.decentralized.gradienttracking import (
    GradientTracking as GradientTracking,
)
from .algorithms.decentralized.gtadam import GTAdam as GTAdam
from .algorithms.decentralized.gtsgd import GTSGD as GTSGD
from .algorithms.decentralized.pushsum import PushSum as PushSum
from .algorithms.decentralized.quantized_dfedavgm import (
    QuantizedDFedAvgM as QuantizedDFedAvgM,
)
from .algorithms.personalized.apfl import APFL as APFL
from .algorithms.personalized.ditto import Ditto as Ditto
from .algorithms.personalized.fedala import FedALA as FedALA
from .algorithms.personalized.fedbabu import FedBABU as FedBABU
from .algorithms.personalized.fedbn import FedBN as FedBN
from .algorithms.personalized.fedper import FedPer as FedPer
from .algorithms.personalized.fedrep import FedRep as FedRep
from .algorithms.personalized.fedrod import FedRoD as FedRoD
from .algorithms.personalized.ifca import IFCA as IFCA
from .algorithms.personalized.lgfedavg import LGFedAvg as LGFedAvg
from .algorithms.personalized.perfedavg import PerFedAvg as PerFedAvg
from .algorithms.personalized.perfedbc import FedBCFineTune as FedBCFineTune
from .algorithms.personalized.perfedbc import PerFedBC as PerFedBC
from .algorithms.personalized.pfedme import PFedMe as PFedMe
from .algorithms.server.afl import AFL as AFL
from .algorithms.server.bulyan import Bulyan as Bulyan
from .algorithms.server.centeredclip import CenteredClip as CenteredClip
from .algorithms.server.coordinatemedian import (
    CoordinateMedian as CoordinateMedian,
)
from .algorithms.server.dane import DANE as DANE
from .algorithms.server.fedadmm import FedADMM as FedADMM
from .algorithms.server.fedavg import FedAvg as FedAvg
from .algorithms.server.fedaware import FedAWARE as FedAWARE
from .algorithms.server.fedbc import FedBC as FedBC
from .algorithms.server.fedcm import FedCM as FedCM
from .algorithms.server.feddane import FedDANE as FedDANE
from .algorithms.server.feddyn import FedDyn as FedDyn
from .algorithms.server.fedexp import FedExP as FedExP
from .algorithms.server.fedexprox import FedExProx as FedExProx
from .algorithms.server.fedlc import FedLC as FedLC
from .algorithms.server.fedlin import FedLin as FedLin
from .algorithms.server.fedmgda import FedMGDA as FedMGDA
from .algorithms.server.fednova import FedNova as FedNova
from .algorithms.server.fedntd import FedNTD as FedNTD
from .algorithms.server.fedopt import FedAdagrad as FedAdagrad
from .algorithms.server.fedopt import FedAdam as FedAdam
from .algorithms.server.fedopt import FedAvgM as FedAvgM
from .algorithms.server.fedopt import FedYogi as FedYogi
from .algorithms.server.fedprox import FedProx as FedProx
from .algorithms.server.fedred import FedRed as FedRed
from .algorithms.server.fedsam import FedSAM as FedSAM
from .algorithms.server.fedspeed import FedSpeed as FedSpeed
from .algorithms.server.fedvarp import MIFA as MIFA
from .algorithms.server.fedvarp import FedVARP as FedVARP
from .algorithms.server.gd import GD as GD
from .algorithms.server.gd import LocalGD as LocalGD
from .algorithms.server.geometricmedian import (
    GeometricMedian as GeometricMedian,
)
from .algorithms.server.krum import Krum as Krum
from .algorithms.server.mime import Mime as Mime
from .algorithms.server.mime import MimeLite as MimeLite
from .algorithms.server.moon import MOON as MOON
from .algorithms.server.proxskip import ProxSkip as ProxSkip
from .algorithms.server.qfedavg import QFedAvg as QFedAvg
from .algorithms.server.scaffold import SCAFFOLD as SCAFFOLD
from .algorithms.server.scaffoldm import SCAFFOLDM as SCAFFOLDM
from .algorithms.server.sdane import SDANE as SDANE
from .algorithms.server.sdane import AccSDANE as AccSDANE
from .algorithms.server.trimmedmean import TrimmedMean as TrimmedMean
from .communication.channel import Channel as Channel
from .communication.privacy import Privacy as Privacy
from .conformance.reference import Eager as Eager
from .core import SGD as SGD
from .core import Algorithm as Algorithm
from .core import Asynchronous as Asynchronous
from .core import Client as Client
from .core import Clock as Clock
from .core import Conditions as Conditions
from .core import Exact as Exact
from .core import FedaxError as FedaxError
from .core import Federation as Federation
from .core import History as History
from .core import Inexact as Inexact
from .core import InvalidInput as InvalidInput
from .core import LocalProblem as LocalProblem
from .core import Optax as Optax
from .core import Schedule as Schedule
from .core import Task as Task
from .core import Upload as Upload
from .core import hyper as hyper
from .engine.backends.mpi import MPI as MPI
from .engine.backends.simulation import Simulation as Simulation
from .engine.compilation.cache import keep_programs as keep_programs
from .engine.distributed.multihost import connect_hosts as connect_hosts
from .engine.driver.early_stopping import Budget as Budget
from .engine.driver.early_stopping import Divergence as Divergence
from .engine.driver.early_stopping import EarlyStopping as EarlyStopping
from .engine.driver.run import run as run
from .engine.driver.run import run_grid as run_grid
from .engine.driver.run import start as start
from .engine.round.trace import footprint as footprint
from .experiments.running.trackers import Tracking as Tracking
from .flower.server import Flower as Flower
from .graphs import Graph as Graph
from .models.storage import load_params as load_params
from .models.storage import load_state as load_state
from .models.storage import save_params as save_params
from .results.single import compare as compare
from .results.single import plot as plot
from .results.single import table as table
from .tasks.from_model import classification as classification
from .tasks.from_model import from_model as from_model
from .tasks.lora import lora as lora
from .tasks.sources import task as task

__version__: str
from .core.algorithm import Citation as Citation
from .core.task import FederatedData as FederatedData
