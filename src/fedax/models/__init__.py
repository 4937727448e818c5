"""Models of the papers, as immutable descriptions.

Models of other libraries become a `Model` by an adapter.

Dense:
- `Softmax`: multinomial logistic regression.
- `MLP`: fully connected layers with ReLU.
- `Affine`: parameters of one affine layer.

Images:
- `CNN`: convolutions with pooling, then fully connected layers; `Stage` is one convolution of it.
- `mnist_cnn`: the CNN of McMahan et al. for MNIST, 1,663,370 parameters.
- `cifar_cnn`: the CNN of FedAWARE for CIFAR-10, 122,570 parameters.
- `lenet`: LeNet with ReLU, as FedBC trains it.
- `ResNet`: residual networks for small images; `ResNet()` is ResNet-20.
- `Augmentation`: random crops and flips, and normalisation; `Augmented`: a model behind it.

Text:
- `Bigram`: the next character from the last one.
- `CharLSTM`: two LSTM layers for the next character.
- `SentimentLSTM`: two LSTM layers over frozen word vectors.

For your own:
- `Model`: a model as two functions.
- `linen`, `nnx`, `equinox`, `haiku`, `torch`: modules of these libraries.
- `parameter_count`: the number of a model's parameters.
"""

from fedax.models.adapters import equinox as equinox
from fedax.models.adapters import haiku as haiku
from fedax.models.adapters import linen as linen
from fedax.models.adapters import nnx as nnx
from fedax.models.augment import Augmentation as Augmentation
from fedax.models.augment import Augmented as Augmented
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
from fedax.models.torch_modules.adapter import torch as torch
