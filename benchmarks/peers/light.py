"""Coding masks with FedML's functions, N = 100, U = 70, T = 33."""

import importlib.util
import sys
import time

import numpy as np

spec = importlib.util.spec_from_file_location("light", sys.argv[1])
light = importlib.util.module_from_spec(spec)
spec.loader.exec_module(light)
N, U, T, P = 100, 70, 33, 2**15 - 19
D = 165_000 // (U - T) * (U - T)  # it takes multiples only


def cpu(work):
    start = time.process_time()
    found = work()
    return found, time.process_time() - start


mask = np.random.default_rng().integers(P, size=(D, 1))
coded, spent = cpu(lambda: light.mask_encoding(D, N, U, T, P, mask))
print(f"encoding {spent:.3f} s")
points, holders = np.arange(U) + N + 1, np.arange(N) + 1
found, spent = cpu(lambda: light.LCC_decoding_with_points(coded[:U], holders[:U], points, P))
print(f"decoding {spent:.3f} s, right: {(found.reshape(-1, 1)[:D] == mask).all()}")
