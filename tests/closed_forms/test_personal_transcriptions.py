"""Methods with personal models, against straight NumPy transcriptions of their pseudocode, written
without the library's code."""

import jax
import numpy as np
import pytest

import fedax
from marks import slow
from problems import SIZES, regression, squares, vector
from transcription import L2, LR, ROUNDS, SCHEDULE, SEED, P, World

TEST_SIZES = (3, 9, 2, 0, 30)
COUNT = 20  # examples of the adapting step: more than some clients have, fewer than others


def with_test_examples():
    """The task of `problems.regression`, and test examples of its own; client 3 has none."""
    task = regression()
    rng = np.random.default_rng(5)
    train = [{name: np.asarray(values) for name, values in task.train[k].items()} for k in range(5)]
    test = [
        {"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n) - k}
        for k, n in enumerate(TEST_SIZES)
    ]
    params = {"b": np.zeros(()), "w": np.full(3, 0.1)}
    return fedax.Task(
        params, squares, fedax.FederatedData.from_arrays(train, test=test), l2=L2
    ), test


def run(algorithm, task=None):
    options = {
        "solver": fedax.SGD(LR),
        "schedule": SCHEDULE,
        "rounds": ROUNDS,
        "seed": SEED,
        "observe_every": ROUNDS,
    }
    engine = fedax.Simulation(devices=1)
    return fedax.run(algorithm, task or regression(), engine=engine, personal=True, **options)


def agree(history, model, personal):
    np.testing.assert_allclose(vector(history), model, rtol=0, atol=1e-12)
    found = np.hstack([np.reshape(leaf, (5, -1)) for leaf in jax.tree.leaves(history.personal)])
    np.testing.assert_allclose(found, personal, rtol=0, atol=1e-12)


def batches(k, following=0):
    """The rows of every step of a round: two epochs of batches of 4, each with those that follow in
    its epoch."""
    epoch = [slice(begin, begin + 4) for begin in range(0, SIZES[k], 4)]
    return [
        [epoch[(j + i) % len(epoch)] for i in range(following + 1)]
        for _ in range(2)
        for j in range(len(epoch))
    ]


def adapted(world, w, alpha, on, test, k):
    """One step on the first examples; of a client without any only the l2 is left."""
    if on == "train":
        return w - alpha * world.gradient(k, w, slice(COUNT))
    x = np.hstack([np.ones((len(test[k]["y"]), 1)), test[k]["x"]])[:COUNT]
    y = test[k]["y"][:COUNT]
    slope = x.T @ (x @ w - y) / max(len(y), 1)
    return w - alpha * (slope + L2 * w)


def test_ditto():
    world = World()
    lam = 0.6
    w = world.start
    own = np.tile(world.start, (5, 1))
    for cohort in world.cohorts():
        models = []
        for k in cohort:
            models.append(world.sgd(k, w)[0])
            own[k], _ = world.sgd(k, own[k], lambda v, w=w: lam * (v - w))
        w = np.average(models, axis=0, weights=P[cohort])
    agree(run(fedax.Ditto(lam=lam)), w, own)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trained", "beta", "decay"), [("all", 1.0, 0.0), ("all", 0.6, 0.3), ("drawn", 0.6, 0.3)]
)
def test_pfedme(trained, beta, decay):
    """Alg. 1: all clients work from w, the drawn ones' mean is the new model; or only these
    work."""
    world = World()
    lam = 3.0
    personal_lr = 0.04
    inner = 3
    w = world.start
    own = np.tile(world.start, (5, 1))
    for cohort in world.cohorts():
        models = {}
        for k in range(5) if trained == "all" else cohort:
            mine = w
            theta = w
            for (rows,) in batches(k):
                for _ in range(inner):
                    slope = world.gradient(k, theta, rows) + lam * (theta - mine)
                    theta = theta - personal_lr * (slope + decay * theta)
                mine = mine - LR * lam * (mine - theta)
            models[k] = mine
            own[k] = theta
        mean = np.average([models[k] for k in cohort], axis=0, weights=P[cohort])
        w = (1 - beta) * w + beta * mean
    assert set(np.concatenate(world.cohorts())) == set(range(5))  # everybody has a personal model
    options = {"beta": beta, "weight_decay": decay, "trained": trained}
    history = run(fedax.PFedMe(lam=lam, personal_lr=personal_lr, inner_steps=inner, **options))
    agree(history, w, own)
    assert history.bits.down.tolist() == [64 * 4 * (5 if trained == "all" else 3)] * ROUNDS
    assert history.bits.up.tolist() == [64 * 4 * 3] * ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize(("order", "on"), [("first", "test"), ("second", "train")])
def test_perfedavg(order, on):
    """The Hessian of linear regression is X'X/n + l2, whatever the model."""
    task, test = with_test_examples()
    world = World()
    alpha = 0.2
    w = world.start
    for cohort in world.cohorts():
        models = []
        for k in cohort:
            mine = w
            for here, outer, curved in batches(k, 2):
                slope = world.gradient(k, mine - alpha * world.gradient(k, mine, here), outer)
                x = world.x[k][curved]
                hessian = x.T @ x / len(x) + L2 * np.eye(4)
                mine = mine - LR * (slope - alpha * hessian @ slope if order == "second" else slope)
            models.append(mine)
        w = np.average(models, axis=0, weights=P[cohort])
    own = [adapted(world, w, alpha, on, test, k) for k in range(5)]
    agree(run(fedax.PerFedAvg(alpha=alpha, order=order, adapt_on=on), task), w, own)


def beyond_consensus(world, local, dual_lr):
    """FedBC around a local solver `local(k, x, z, lam)`: the global model, the clients' own, and
    who ever worked."""
    z = world.start
    lam = np.full(5, 0.2)
    gamma = np.full(5, 0.01)
    own = np.tile(z, (5, 1))
    visited = np.zeros(5, bool)
    for cohort in world.cohorts()[:ROUNDS]:
        for k in cohort:
            own[k] = local(k, own[k], z, lam[k])
            visited[k] = True
            slack = (own[k] - z) @ (own[k] - z) - gamma[k]
            lam[k], gamma[k] = max(lam[k] + dual_lr * slack, 0.0), gamma[k] + dual_lr * lam[k]
        z = np.average(own[cohort], axis=0, weights=lam[cohort])
    return z, own, visited


@pytest.mark.slow
@pytest.mark.parametrize("on", ["train", "test"])
def test_fedbc_finetune(on):
    """The client's own last model is adapted, without the penalty; the global one before its first
    work."""
    task, test = with_test_examples()
    world = World()
    alpha = 0.2
    z, own, visited = beyond_consensus(
        world, lambda k, x, z, lam: world.sgd(k, x, lambda x: 2 * lam * (x - z))[0], 0.3
    )
    used = np.where(visited[:, None], own, z)
    personal = [adapted(world, used[k], alpha, on, test, k) for k in range(5)]
    method = fedax.FedBCFineTune(dual_lr=0.3, lam=0.2, gamma=0.01, alpha=alpha, adapt_on=on)
    agree(run(method, task), z, personal)


@pytest.mark.parametrize(("start", "inner"), [("global", 3), slow("own", 2)])
def test_perfedbc(start, inner):
    """The penalty is in the inner steps only; the global model is what clients adapt."""
    task, test = with_test_examples()
    world = World()
    alpha = 0.2

    def local(k, own, z, lam):
        x = z if start == "global" else own
        for *here, outer in batches(k, inner):
            u = x
            for rows in here:
                u = u - alpha * (world.gradient(k, u, rows) + 2 * lam * (u - z))
            x = x - LR * world.gradient(k, u, outer)
        return x

    z, _, _ = beyond_consensus(world, local, 0.3)
    personal = [adapted(world, z, alpha, "test", test, k) for k in range(5)]
    options = {
        "alpha": alpha,
        "adapt_on": "test",
        "start": start,
        "inner_steps": inner,
    }
    agree(run(fedax.PerFedBC(dual_lr=0.3, lam=0.2, gamma=0.01, **options), task), z, personal)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [fedax.FedBC(dual_lr=0.3), fedax.PFedMe(trained="drawn")], ids=["FedBC", "PFedMe"]
)
def test_a_client_never_drawn_uses_the_global_model(method):
    world = World()
    absent = sorted(set(range(5)) - set(world.cohorts()[0].tolist()))
    engine = fedax.Simulation(devices=1)
    options = {"solver": fedax.SGD(LR), "schedule": SCHEDULE, "rounds": 1, "seed": SEED}
    history = fedax.run(method, regression(), engine=engine, personal=True, **options)
    for k in absent:
        np.testing.assert_array_equal(history.personal["w"][k], history.params["w"])
    assert not np.array_equal(history.personal["w"][world.cohorts()[0][0]], history.params["w"])


@pytest.mark.parametrize("learned", [True, slow(False)])
def test_apfl(learned):
    world = World()
    alpha = 0.3
    w = world.start
    own = np.tile(world.start, (5, 1))
    alphas = np.full(5, alpha)
    for cohort in world.cohorts():
        models = []
        for k in cohort:
            mine = w
            v = own[k]
            a = alphas[k]
            for (rows,) in batches(k):
                slope = world.gradient(k, a * v + (1 - a) * mine, rows)
                step = LR * (v - mine) @ slope if learned else 0.0
                mine = mine - LR * world.gradient(k, mine, rows)
                v = v - LR * a * slope
                a = min(max(a - step, 0), 1)
            models.append(mine)
            own[k] = v
            alphas[k] = a
        w = np.average(models, axis=0, weights=P[cohort])
    agree(
        run(fedax.APFL(alpha=alpha, learned=learned)),
        w,
        alphas[:, None] * own + (1 - alphas[:, None]) * w,
    )


def test_ifca():
    """From the starts that the run had: choices by the whole loss, means of each cluster, models
    that nobody took stay."""
    world = World()
    method = fedax.IFCA(clusters=3, spread=0.5)
    options = {"solver": fedax.SGD(LR), "schedule": SCHEDULE, "seed": SEED, "observe_every": 1}
    models = np.asarray(fedax.run(method, regression(), rounds=0, **options).state)
    assert np.abs(models - world.start).std() > 0.1
    members = []
    for cohort in world.cohorts():
        chosen = np.array([np.argmin([world.loss(k, model) for model in models]) for k in cohort])
        trained = np.array(
            [world.sgd(k, models[j])[0] for k, j in zip(cohort, chosen, strict=True)]
        )
        members.append([int((chosen == j).sum()) for j in range(3)])
        models = np.array(
            [
                np.average(trained[chosen == j], axis=0, weights=P[cohort][chosen == j])
                if (chosen == j).any()
                else models[j]
                for j in range(3)
            ]
        )
    assert np.max(members) > 1
    assert np.min(members) == 0
    history = run(method)
    assert history.logged["members"].tolist() == members
    best = [models[np.argmin([world.loss(k, model) for model in models])] for k in range(5)]
    agree(history, models.mean(0), best)
    channel = fedax.Channel(down=fedax.codecs.Quantizer(b=8))
    coded = fedax.run(method, regression(), rounds=1, channel=channel, **options)
    assert coded.bits.down[0] < history.bits.down[0]


@pytest.mark.slow
def test_ifca_finds_the_clusters():
    """Twelve bowls around two points, starts on either side: each model ends at the mean of its
    own."""
    centres = np.where(np.arange(12) % 2, 3.0, -3.0) + np.linspace(-0.3, 0.3, 12)
    task = fedax.Task(np.zeros(()), lambda w, x: (w - x) ** 2 / 2, list(centres[:, None]))
    for seed in range(20):
        method = fedax.IFCA(spread=1.0)
        options = {"solver": fedax.SGD(0.5), "seed": seed, "rounds": 40, "observe_every": 40}
        history = fedax.run(method, task, personal=True, **options)
        if sorted(history.logged["members"][-1].tolist()) == [6, 6]:
            break
    expected = [centres[centres < 0].mean(), centres[centres > 0].mean()]
    np.testing.assert_allclose(sorted(np.ravel(history.state)), expected, atol=1e-9)
    np.testing.assert_allclose(
        np.ravel(history.personal), np.where(centres > 0, expected[1], expected[0]), atol=1e-9
    )


HEAD = np.array([0])
BODY = np.array([1, 2, 3])


def in_two_parts(local, mine):
    """FedAvg of all entries but `mine` around `local(world, k, w)`: the model with the mean of
    everybody's own, and theirs."""
    world = World()
    own = np.tile(world.start[mine], (5, 1))
    shared = np.setdiff1d(np.arange(4), mine)
    body = world.start[shared]

    def whole(k):
        w = np.empty(4)
        w[mine] = own[k]
        w[shared] = body
        return w

    for cohort in world.cohorts():
        models = {k: local(world, k, whole(k)) for k in cohort}
        own[cohort] = [models[k][mine] for k in cohort]
        body = np.average([models[k][shared] for k in cohort], axis=0, weights=P[cohort])
    personal = np.array([whole(k) for k in range(5)])
    return personal.mean(0), personal


def only(entries, local):
    """A local work of which only some entries count in every step."""
    mask = np.isin(np.arange(4), entries)

    def step(world, k, w):
        for (rows,) in batches(k):
            w = w - LR * mask * world.gradient(k, w, rows)
        return w

    def whole_batch(world, k, w):
        return w - LR * mask * world.gradient(k, w)

    return step if local == "work" else whole_batch


@pytest.mark.parametrize(
    ("method", "mine"),
    [
        (fedax.FedPer(head="b"), HEAD),
        slow(fedax.LGFedAvg(head=lambda name, leaf: leaf.shape == ()), BODY),
        slow(fedax.FedBN(norms=["w"]), BODY),
    ],
)
def test_parts_that_stay_are_trained_with_the_others(method, mine):
    history = run(method)
    agree(history, *in_two_parts(lambda world, k, w: world.sgd(k, w)[0], mine))
    assert (
        history.bits.up.tolist()
        == history.bits.down.tolist()
        == [3 * 64 * (4 - len(mine))] * ROUNDS
    )


@pytest.mark.parametrize("body", ["step", slow("work")])
def test_fedrep(body):
    """The head's steps, then the body's at the new head."""
    head = only(HEAD, "work")
    then = only(BODY, body)
    history = run(fedax.FedRep(head="b", body=body))
    agree(history, *in_two_parts(lambda world, k, w: then(world, k, head(world, k, w)), HEAD))
    assert history.bits.up.tolist() == history.bits.down.tolist() == [3 * 64 * 3] * ROUNDS


@pytest.mark.slow
def test_leaves_that_stay_are_looked_at_where_they_are():
    """Own accuracy is that of the client's own leaves; a codec with feedback codes what is sent,
    and nothing else."""
    task, test = with_test_examples()
    method = fedax.FedPer(head="w")
    observe = [fedax.observe.ClientAccuracy(score="loss", personal=True)]
    options = {
        "solver": fedax.SGD(LR),
        "schedule": SCHEDULE,
        "rounds": ROUNDS,
        "seed": SEED,
        "observe_every": ROUNDS,
    }
    channel = fedax.Channel(up=fedax.codecs.TopK(1.0, feedback=True))
    history = fedax.run(method, task, observe=observe, channel=channel, **options)
    model, personal = in_two_parts(lambda world, k, w: world.sgd(k, w)[0], BODY)
    np.testing.assert_allclose(vector(history), model, rtol=0, atol=1e-7)  # messages have 32 bits
    x = [np.hstack([np.ones((len(own["y"]), 1)), own["x"]]) for own in test]
    losses = [
        np.mean((a @ w - own["y"]) ** 2) / 2 if len(a) else np.nan
        for a, w, own in zip(x, personal, test, strict=True)
    ]
    np.testing.assert_allclose(history.metrics["local_loss"][-1], losses, rtol=1e-6)


CLASSES = 3
TAU = 0.5
MU = 0.8
TWO_LAYERS = {
    "a": np.random.default_rng(1).normal(size=(4, 2)),
    "b": np.random.default_rng(2).normal(size=(2, CLASSES)),
}


def logits_of(params, examples):
    return examples["x"] @ params["a"] @ params["b"]


def cross_entropy(params, examples):
    z = logits_of(params, examples)
    return (
        jax.nn.logsumexp(z, axis=1) - jax.numpy.take_along_axis(z, examples["y"][:, None], 1)[:, 0]
    )


def two_layers():
    """A linear network of two layers on labels of which clients have different shares, one client
    two classes alone."""
    rng = np.random.default_rng(3)
    data = [
        {
            "x": rng.normal(size=(n, 4)),
            "y": rng.integers(0, 2 if k == 1 else CLASSES, size=n).astype(np.int32),
        }
        for k, n in enumerate(SIZES)
    ]
    predict = lambda params, examples: jax.nn.softmax(logits_of(params, examples))  # noqa: E731
    return fedax.Task(TWO_LAYERS, cross_entropy, data, predictor=predict, l2=L2), data


def probabilities(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def layer_slopes(x, y, a, b, shift=0.0, further=0.0):
    """Gradients by both layers of the mean cross entropy of x a (b + further) + shift, as they
    enter x a b."""
    error = (probabilities(x @ a @ (b + further) + shift) - np.eye(CLASSES)[y]) / len(y)
    return x.T @ error @ (b + further).T, (x @ a).T @ error


def steps_of(data, k):
    return [(data[k]["x"][rows], data[k]["y"][rows]) for (rows,) in batches(k)]


@pytest.mark.slow
@pytest.mark.parametrize("tuned", ["all", "head", "body"])
def test_fedbabu(tuned):
    task, data = two_layers()
    a = TWO_LAYERS["a"]
    b = TWO_LAYERS["b"]

    def trained(k, a, b, moved):
        for x, y in steps_of(data, k):
            slope_a, slope_b = layer_slopes(x, y, a, b)
            a = a - LR * (slope_a + L2 * a) * ("a" in moved)
            b = b - LR * (slope_b + L2 * b) * ("b" in moved)
        return a, b

    for cohort in World().cohorts():
        a = np.average([trained(k, a, b, "a")[0] for k in cohort], axis=0, weights=P[cohort])
    history = run(fedax.FedBABU(head="b", tuned=tuned), task)
    np.testing.assert_allclose(history.params["a"], a, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(history.params["b"], b)
    moved = {"all": "ab", "head": "b", "body": "a"}[tuned]
    for name, rows in zip(
        "ab", zip(*(trained(k, a, b, moved) for k in range(5)), strict=True), strict=True
    ):
        np.testing.assert_allclose(history.personal[name], rows, rtol=0, atol=1e-12)
    assert history.bits.up.tolist() == [3 * 64 * a.size] * ROUNDS


@pytest.mark.slow
def test_fedrod():
    """Both steps at the same point: the balanced softmax for body and generic head, then the sum of
    logits for the own head."""
    task, data = two_layers()
    a = TWO_LAYERS["a"]
    b = TWO_LAYERS["b"]
    own = np.tile(b, (5, 1, 1))
    with np.errstate(divide="ignore"):
        shifts = [
            np.log(np.bincount(client["y"], minlength=CLASSES) / len(client["y"]))
            for client in data
        ]
    assert any(np.isinf(shift).any() for shift in shifts)
    for cohort in World().cohorts():
        bodies = []
        heads = []
        for k in cohort:
            body = a
            head = b
            for x, y in steps_of(data, k):
                slope_a, slope_b = layer_slopes(x, y, body, head, shift=shifts[k])
                _, slope_own = layer_slopes(x, y, body, head, further=own[k])
                own[k] = own[k] - LR * (slope_own + L2 * (head + own[k]))
                body = body - LR * (slope_a + L2 * body)
                head = head - LR * (slope_b + L2 * head)
            bodies.append(body)
            heads.append(head)
        a, b = (np.average(rows, axis=0, weights=P[cohort]) for rows in (bodies, heads))
    history = run(fedax.FedRoD(head="b"), task)
    np.testing.assert_allclose(history.params["a"], a, rtol=0, atol=1e-12)
    np.testing.assert_allclose(history.params["b"], b, rtol=0, atol=1e-12)
    np.testing.assert_allclose(history.personal["b"], b + own, rtol=0, atol=1e-12)
    assert fedax.footprint(fedax.FedRoD(head="b"), task).phases[0].step_gradients == 2


@pytest.mark.parametrize(("passes", "threshold"), [slow(14, 0.0), (200, 0.05)])
def test_fedala(passes, threshold):
    """As released, with the first round of a client as FedAvg, passes until losses settle in its
    second one, and one pass from then on."""
    world = World()
    rate = 0.4
    share = 0.6
    counted = []
    w = world.start
    head = BODY
    own = np.tile(w[head], (5, 1))
    blend = np.ones((5, 3))
    rounds = np.zeros(5, int)

    def start(k):
        """The model to train from, and the weights."""
        weights = blend[k].copy()
        losses = []
        gap = (w[head] - own[k]) * (rounds[k] > 0)
        point = w.copy()
        seen = [rows for (rows,) in batches(k)][: -(-max(round(share * SIZES[k]), 1) // 4)]
        point[head] = w[head] - gap + gap * weights
        while rounds[k]:
            for rows in seen:
                x = world.x[k][rows]
                y = world.y[k][rows]
                loss = np.mean((x @ point - y) ** 2) / 2 + L2 / 2 * point @ point
                slope = world.gradient(k, point, rows)[head]
                weights = np.clip(weights - rate * slope * gap, 0, 1)
                point[head] = w[head] - gap + gap * weights
            losses.append(loss)
            settled = len(losses) > 10 and np.std(losses[-10:]) < threshold
            if rounds[k] > 1 or settled or len(losses) == passes:
                break
        counted.append(len(losses))
        return point, weights

    for cohort in world.cohorts():
        begun = {k: start(k) for k in cohort}
        models = {k: world.sgd(k, begun[k][0])[0] for k in cohort}
        for k in cohort:
            own[k], blend[k], rounds[k] = models[k][head], begun[k][1], rounds[k] + 1
        w = np.average([models[k] for k in cohort], axis=0, weights=P[cohort])
    assert 11 <= max(counted) <= 20
    assert (max(counted) == passes) == (threshold == 0)
    assert 0 == blend.min() < blend.max() <= 1
    method = fedax.FedALA(head="w", weight_lr=rate, share=share, passes=passes, threshold=threshold)
    history = run(method)
    agree(history, w, np.array([start(k)[0] for k in range(5)]))
    np.testing.assert_allclose(history.state.clients.all().weights, blend, rtol=0, atol=1e-12)
    assert history.bits.up.tolist() == [3 * 64 * 4] * ROUNDS


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_moon():
    """Features x a; the gradient of a cosine by hand."""
    task, data = two_layers()
    a = TWO_LAYERS["a"]
    b = TWO_LAYERS["b"]
    last = np.tile(a, (5, 1, 1))
    for cohort in World().cohorts():
        bodies = []
        heads = []
        for k in cohort:
            body = a
            head = b
            past = last[k]
            for x, y in steps_of(data, k):
                slope_a, slope_b = layer_slopes(x, y, body, head)
                z = unit(x @ body)
                near = unit(x @ a)
                far = unit(x @ past)
                up = (z * near).sum(1, keepdims=True)
                down = (z * far).sum(1, keepdims=True)
                share = 1 / (1 + np.exp((up - down) / TAU))  # of the negative pair
                turn = ((far - down * z) - (near - up * z)) / np.linalg.norm(
                    x @ body, axis=1, keepdims=True
                )
                slope_a = slope_a + MU * x.T @ (share * turn / TAU) / len(y)
                body = body - LR * (slope_a + L2 * body)
                head = head - LR * (slope_b + L2 * head)
            last[k] = body
            bodies.append(body)
            heads.append(head)
        a, b = (np.average(rows, axis=0, weights=P[cohort]) for rows in (bodies, heads))
    method = fedax.MOON(
        mu=MU, temperature=TAU, features=lambda params, examples, key: examples["x"] @ params["a"]
    )
    options = {"solver": fedax.SGD(LR), "schedule": SCHEDULE, "rounds": ROUNDS, "seed": SEED}
    history = fedax.run(method, task, engine=fedax.Simulation(devices=1), **options)
    np.testing.assert_allclose(history.params["a"], a, rtol=0, atol=1e-11)
    np.testing.assert_allclose(history.params["b"], b, rtol=0, atol=1e-11)


@pytest.mark.slow
def test_moon_without_its_term_is_fedavg():
    task, _ = two_layers()
    plain, off = (run(method, task) for method in (fedax.FedAvg(), fedax.MOON(mu=0.0)))
    np.testing.assert_allclose(vector(off), vector(plain), rtol=0, atol=1e-12)
