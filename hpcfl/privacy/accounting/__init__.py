"""What training costs in differential privacy: what a paper claims, and what is proven.

The account of an algorithm is an :class:`~hpcfl.privacy.accounting.account.Account`. They rest on
closed forms for Gaussian noise (:mod:`~hpcfl.privacy.accounting.zcdp`), on losses that are composed
numerically (:mod:`~hpcfl.privacy.accounting.pld`), and on bounds of sampled mechanisms
(:mod:`~hpcfl.privacy.accounting.sampling`).
"""
