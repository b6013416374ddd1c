"""A distribution that is older than a scope is whole after it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import disposescope as ds

D = torch.distributions

MADE = {
    "categorical": lambda: D.Categorical(probs=torch.tensor([0.2, 0.8])),
    "bernoulli": lambda: D.Bernoulli(logits=torch.zeros(3)),
    "normal in several dimensions": lambda: D.MultivariateNormal(torch.zeros(2), scale_tril=torch.eye(2)),
    "of low rank": lambda: D.LowRankMultivariateNormal(torch.zeros(2), torch.ones(2, 1), torch.ones(2)),
}
LAZY = ("logits", "probs", "covariance_matrix", "precision_matrix", "scale_tril")


def use(distribution):
    sample = distribution.sample()
    for name in LAZY:
        if hasattr(distribution, name):
            assert getattr(distribution, name).isfinite().all()
    return distribution.log_prob(sample)


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_it_computed_in_a_scope_is_there_in_the_next(make):
    distribution = make()
    for _ in range(2):
        with ds.dispose_scope() as scope:
            value = use(distribution)
            assert value in scope
    assert use(distribution).isfinite().all()


def test_what_it_was_given_stays_with_its_owner():
    with ds.dispose_scope() as scope:
        probabilities = torch.tensor([0.5, 0.5])
        distribution = D.Categorical(probs=probabilities)
        assert distribution.logits not in scope
        assert probabilities in scope
    assert isinstance(D.Categorical.logits, property)
    with pytest.raises(ds.DisposedError):
        distribution.log_prob(torch.tensor(1)) + probabilities
