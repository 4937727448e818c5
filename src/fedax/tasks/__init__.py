"""Tasks: ready-made ones, and those of a user's loss or model.

From your loss, model or data:
- `from_loss`: a task from a per-example loss and plain arrays, for any JAX model.
- `from_model`: a task of a model and a loss of its outputs.
- `classification`: a model that gives logits on federated data.
- `logistic`: binary logistic regression on federated data; `LogisticLoss` is its loss.
- `of_source`: a function that makes federated data, as a classification task.

Made or shipped data:
- `synthetic`: Synthetic(alpha, beta) of the FedProx paper: 60 features, 10 classes.
- `digits`: the small digits of scikit-learn: 64 features, 10 classes.

Data from files (`fedax data list` lists the data sets and how to download them):
- `mnist`: MNIST, 784 features, 10 classes.
- `fashion_mnist`: Fashion-MNIST, 10 classes.
- `mnist_devices`: MNIST on 1,000 devices with two digits each, as in FedProx and FedDANE.
- `mnist_writers`: MNIST by writer.
- `femnist`: handwritten characters by writer, 62 classes.
- `femnist_letters`: ten lower-case letters of FEMNIST on 200 devices, as in FedProx and FedDANE.
- `cifar10`: CIFAR-10, images of 32 x 32 x 3.
- `shakespeare`: next characters by speaking role.
- `tinyshakespeare`: the same of a small corpus.
- `sent140`: sentiment of tweets by user.
- `from_table`: CSV and Parquet files, frames of pandas, tables of the `datasets` library.
- `stored`: clients in NumPy files that are read as they are needed.
- `libsvm`: binary logistic regression on a LIBSVM text file.
- `a5a`, `a9a`, `mushrooms`, `w8a`: the same on their file.

By name:
- `task_makers`: all ready-made tasks.
- `make_task`: a task by its name.
- `defaults`: the options of a task, with defaults.
"""

from fedax.tasks.from_model import classification as classification
from fedax.tasks.from_model import from_model as from_model
from fedax.tasks.logistic import LogisticLoss as LogisticLoss
from fedax.tasks.logistic import a5a as a5a
from fedax.tasks.logistic import a9a as a9a
from fedax.tasks.logistic import libsvm as libsvm
from fedax.tasks.logistic import logistic as logistic
from fedax.tasks.logistic import mushrooms as mushrooms
from fedax.tasks.logistic import w8a as w8a
from fedax.tasks.named import defaults as defaults
from fedax.tasks.named import make_task as make_task
from fedax.tasks.named import task_makers as task_makers
from fedax.tasks.own_models.from_loss import from_loss as from_loss
from fedax.tasks.sources import cifar10 as cifar10
from fedax.tasks.sources import digits as digits
from fedax.tasks.sources import fashion_mnist as fashion_mnist
from fedax.tasks.sources import femnist as femnist
from fedax.tasks.sources import femnist_letters as femnist_letters
from fedax.tasks.sources import from_table as from_table
from fedax.tasks.sources import mnist as mnist
from fedax.tasks.sources import mnist_devices as mnist_devices
from fedax.tasks.sources import mnist_writers as mnist_writers
from fedax.tasks.sources import of_source as of_source
from fedax.tasks.sources import shakespeare as shakespeare
from fedax.tasks.sources import stored as stored
from fedax.tasks.sources import synthetic as synthetic
from fedax.tasks.sources import tinyshakespeare as tinyshakespeare
from fedax.tasks.tweets import sent140 as sent140
