"""What is learned: ready-made tasks, and tasks from your own loss."""

from fedax.tasks.classify import Accuracy as Accuracy
from fedax.tasks.classify import CrossEntropy as CrossEntropy
from fedax.tasks.classify import classification as classification
from fedax.tasks.logistic import LogisticLoss as LogisticLoss
from fedax.tasks.logistic import a5a as a5a
from fedax.tasks.logistic import a9a as a9a
from fedax.tasks.logistic import libsvm as libsvm
from fedax.tasks.logistic import logistic as logistic
from fedax.tasks.logistic import mushrooms as mushrooms
from fedax.tasks.logistic import w8a as w8a
from fedax.tasks.named import catalogue as catalogue
from fedax.tasks.named import defaults as defaults
from fedax.tasks.named import make as make
from fedax.tasks.own import from_loss as from_loss
from fedax.tasks.ready import digits as digits
from fedax.tasks.ready import mnist as mnist
from fedax.tasks.ready import synthetic as synthetic
from fedax.tasks.sources import cifar10 as cifar10
from fedax.tasks.sources import client_files as client_files
from fedax.tasks.sources import fashion_mnist as fashion_mnist
from fedax.tasks.sources import femnist as femnist
from fedax.tasks.sources import mnist_devices as mnist_devices
from fedax.tasks.sources import mnist_writers as mnist_writers
from fedax.tasks.sources import of_source as of_source
from fedax.tasks.sources import shakespeare as shakespeare
from fedax.tasks.sources import tinyshakespeare as tinyshakespeare
