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
