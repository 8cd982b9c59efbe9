"""What training costs in differential privacy: what a paper claims, and what is proven.

:mod:`~hpcfl.privacy.accounting.zcdp` has closed forms for Gaussian noise,
:mod:`~hpcfl.privacy.accounting.pld` composes any losses numerically,
:mod:`~hpcfl.privacy.accounting.sampling` has the bounds of sampled mechanisms, and
:mod:`~hpcfl.privacy.accounting.accountant` is what an algorithm declares its account with.
"""
