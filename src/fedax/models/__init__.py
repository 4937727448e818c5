"""The models of the papers, as immutable descriptions; any other JAX model goes through `fedax.tasks.from_loss`."""

from fedax.models.base import Model as Model
from fedax.models.bigram import Bigram as Bigram
from fedax.models.dense import MLP as MLP
from fedax.models.dense import Affine as Affine
from fedax.models.dense import Softmax as Softmax
