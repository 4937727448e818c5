"""Logistic regression in NumPy, without the library's code: value, gradient, minimiser and
smoothness.

All take examples as rows of `a`, labels as `signs` of -1 or 1, the regulariser's `l2`, and the
examples' `weights` of sum 1, by default equal ones: f(w) = sum_i weights_i log(1 + exp(-signs_i
<a_i, w>)) + l2/2 |w|^2."""

import numpy as np


def newton(a, signs, l2, weights=None):
    """The minimiser."""
    w = np.zeros(a.shape[1])
    for _ in range(30):
        chance = 1 / (1 + np.exp(signs * (a @ w)))
        hessian = (a.T * (_shares(a, weights) * chance * (1 - chance))) @ a + l2 * np.eye(len(w))
        step = np.linalg.solve(hessian, gradient(w, a, signs, l2, weights))
        w = w - step
        if np.linalg.norm(step) < 1e-13 * np.linalg.norm(w):
            break
    return w


def value(w, a, signs, l2, weights=None):
    return _shares(a, weights) @ np.logaddexp(0, -signs * (a @ w)) + l2 / 2 * w @ w


def gradient(w, a, signs, l2, weights=None):
    return -a.T @ (_shares(a, weights) * signs / (1 + np.exp(signs * (a @ w)))) + l2 * w


def smoothness(a, l2):
    """The largest curvature anywhere, that at w = 0, for equal weights."""
    return np.linalg.eigvalsh(a.T @ a)[-1] / (4 * len(a)) + l2


def _shares(a, weights):
    return np.full(len(a), 1 / len(a)) if weights is None else weights
