"""Traced counts are the papers' counts."""

import numpy as np
import pytest

import fedax
from problems import regression

# per participant: phases with vectors down and up, memory in vectors, gradients of 20 local steps
# with 5 batches an epoch
PAPERS = [
    (fedax.FedAvg(), [(1, 1)], 0, 20),  # McMahan et al., Alg. 1
    (fedax.GD(), [(1, 1)], 0, 5),  # one full gradient
    (fedax.SCAFFOLD(), [(2, 2)], 1, 20),  # Alg. 1: x and c down, both changes up; c_i stays
    (fedax.SCAFFOLD(option="I"), [(2, 2)], 1, 25),  # one more pass, line 12
    # Alg. 2: w down, gradient up; w and g down, model up
    (fedax.FedDANE(), [(1, 1), (2, 1)], 0, 30),
    (fedax.FedDANE(pipelined=True), [(2, 2)], 0, 25),  # Sec. V-C: one communication a round
    (fedax.FedDyn(), [(1, 1)], 1, 20),  # the client keeps its gradient correction
    (fedax.FedAWARE(), [(1, 1)], 0, 20),
    (fedax.FedBC(), [(1, 1)], 1, 20),
    (fedax.Ditto(), [(1, 1)], 1, 40),  # two models are trained
    (fedax.PerFedAvg(), [(1, 1)], 0, 40),
    (fedax.PerFedAvg(order="second"), [(1, 1)], 0, 60),  # and a Hessian-vector product
    # Alg. 1: K gradients a step; all work, the drawn ones send
    (fedax.PFedMe(inner_steps=7), [(1, 0), (0, 1)], 2, 140),
    (fedax.PFedMe(trained="drawn"), [(1, 1)], 2, 100),
    (fedax.DFedAvgM(), [(0, 1)], 1, 20),
    # model, own copy, mean of the neighbours' copies
    (fedax.QuantizedDFedAvgM(mode="choco"), [(0, 1)], 3, 20),
    (fedax.DGD(), [(0, 1)], 1, 5),
]


@pytest.mark.parametrize(
    ("algorithm", "phases", "memory", "gradients"), PAPERS, ids=lambda v: type(v).__name__
)
def test_the_count_of_the_paper(algorithm, phases, memory, gradients):
    found = fedax.footprint(algorithm)
    assert [(phase.down.vectors, phase.up.vectors) for phase in found.phases] == phases
    assert found.memory.vectors == memory
    assert found.gradients(steps=20, epoch=5) == gradients


def test_weights_and_losses_are_numbers():
    """FedBC sends its multiplier, q-FedAvg its normaliser; a quantized vector of 4 entries has 32 +
    4 b bits."""
    assert fedax.footprint(fedax.FedBC()).phases[0].up == (1, 1)
    assert fedax.footprint(fedax.QFedAvg()).phases[0].up == (1, 1)
    assert (
        fedax.footprint(fedax.QuantizedDFedAvgM(b=4), regression()).phases[0].up_bits == 32 + 4 * 4
    )


def test_who_takes_part():
    drawn = fedax.footprint(fedax.FedAWARE(startup="all"))
    everyone = fedax.footprint(fedax.AFL())
    assert not drawn.phases[0].everyone  # from round 1 on
    assert everyone.phases[0].everyone
    assert [phase.everyone for phase in fedax.footprint(fedax.PFedMe()).phases] == [True, False]
    assert fedax.footprint(fedax.DSGD()).phases[0].links


def test_a_method_of_ones_own_is_traced():
    """Without a citation, with a channel that remembers what messages lost: two vectors of one phase,
    one of the other."""

    class Two(fedax.Algorithm):
        def round(self, fed, w):
            both = fed.average(self.both, fed.sample(), w)
            return w - 0.1 * fed.average(self.one, fed.sample(), *both)

        def both(self, client, w):
            return fedax.Upload((client.gradient(w), w))

        def one(self, client, g, w):
            return fedax.Upload(g + client.gradient(w))

    assert [phase.up.vectors for phase in fedax.footprint(Two()).phases] == [2, 1]
    history = fedax.run(
        Two(), regression(), rounds=2, channel=fedax.Channel(up=fedax.codecs.TopK(0.5))
    )
    assert [len(memory.all()) for memory in history.carry.lost] == [2, 1]
    assert all(np.shape(rows) == (5, 4) for memory in history.carry.lost for rows in memory.all())
