"""The models of the papers, as immutable descriptions; any other JAX model goes through `fedax.tasks.from_loss`."""

from fedax.models.augment import Augmentation as Augmentation
from fedax.models.base import Model as Model
from fedax.models.base import parameter_count as parameter_count
from fedax.models.bigram import Bigram as Bigram
from fedax.models.convolutional import CNN as CNN
from fedax.models.convolutional import Stage as Stage
from fedax.models.convolutional import cifar_cnn as cifar_cnn
from fedax.models.convolutional import lenet as lenet
from fedax.models.convolutional import mnist_cnn as mnist_cnn
from fedax.models.dense import MLP as MLP
from fedax.models.dense import Affine as Affine
from fedax.models.dense import Softmax as Softmax
from fedax.models.recurrent import CharLSTM as CharLSTM
from fedax.models.recurrent import SentimentLSTM as SentimentLSTM
from fedax.models.resnet import ResNet as ResNet
