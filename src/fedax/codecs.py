"""Codecs: vectors in fewer bits, as compiled arithmetic and as the bytes of a real network.

- `Identity`: the numbers as they are.
- `Quantizer`: the grid of quantized DFedAvgM, unbiased or rounded down.
- `QSGD`: stochastic rounding relative to the norm.
- `TopK`: the largest entries by magnitude, with error feedback.
- `RandK`: random entries, unbiased.
- `Sign`: the signs and the mean magnitude, with error feedback.
- `EF21`, `DIANA`: a biased or an unbiased codec for differences to a memory that clients and server
  share.
- `CODECS`: codecs by their name in experiment files; `make_codec` makes one.
- `packed`, `unpacked`: whole numbers of a few bits as bytes, and back.
- `SCALE`: bits of a scale or a value.
- `Codec`: the base class of codecs.

All scales and values travel as 32-bit floats and are rounded to them before use, so that
`decode(encode(...))` is exactly what a simulation computes with.
"""

from fedax.communication.codecs import CODECS as CODECS
from fedax.communication.codecs import QSGD as QSGD
from fedax.communication.codecs import SCALE as SCALE
from fedax.communication.codecs import Codec as Codec
from fedax.communication.codecs import Identity as Identity
from fedax.communication.codecs import Quantizer as Quantizer
from fedax.communication.codecs import RandK as RandK
from fedax.communication.codecs import Sign as Sign
from fedax.communication.codecs import TopK as TopK
from fedax.communication.codecs import make_codec as make_codec
from fedax.communication.codecs import packed as packed
from fedax.communication.codecs import unpacked as unpacked
from fedax.communication.memory_codecs import DIANA as DIANA
from fedax.communication.memory_codecs import EF21 as EF21

__all__ = [
    "CODECS",
    "DIANA",
    "EF21",
    "QSGD",
    "SCALE",
    "Codec",
    "Identity",
    "Quantizer",
    "RandK",
    "Sign",
    "TopK",
    "make_codec",
    "packed",
    "unpacked",
]
