"""A test of the noise: how well what is released tells two neighbouring datasets apart.

A small instance of an algorithm is run many times on each of two neighbouring datasets. Rates of
error below what (epsilon, delta)-differential privacy allows are evidence against that epsilon
(Jagielski, Ullman and Oprea 2020, "Auditing differentially private machine learning"): with a rate
TPR of runs on the one that are recognised, and FPR of runs on the other that are taken for it,

    TPR <= exp(epsilon) FPR + delta.

The threshold is chosen on one half of the runs, the rates are bounded on the other (Clopper and
Pearson 1934). The bound holds whatever the mechanism is. For Gaussian noise the rates bound
mu >= Phi^-1(TPR) - Phi^-1(FPR), which is converted to epsilon exactly and needs far fewer runs
(Nasr et al. 2023, "Tight auditing of differentially private machine learning"); for any other
mechanism that conversion proves nothing.

The datasets differ in a canary: a record, or a user's data, whose gradient is clipped, in
coordinates that nothing else touches. Data and model are made for that; batches, clipping, noise,
contributions, quantisation and the server's step are those of training. Secure aggregation is
played by the sum of its integers, which is all that it lets the server see. The observer knows all
data but the canary, all settings, who takes part, and every device's order of samples.
"""
